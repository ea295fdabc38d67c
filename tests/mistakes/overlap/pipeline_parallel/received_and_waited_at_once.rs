// mistake: the seed's own order: receive, wait, compute, send
// fails: pipeline_parallel::the_next_comes_in_beside_computing
// says: at no time both
// says: the receive was waited for at once

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};

pub trait Stage {
    fn receive(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    fn compute(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    fn send(&mut self, micro_batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;
}

pub fn run_stage(
    compute: &Arc<CudaStream>,
    comm: &Arc<CudaStream>,
    stage: &mut impl Stage,
    buffers: &mut [CudaViewMut<f32>; 2],
    micro_batches: usize,
) -> anyhow::Result<()> {
    for current in 0..micro_batches {
        let buffer = &mut buffers[current % 2];
        stage.receive(current, buffer)?;
        compute.wait(&comm.record_event(None)?)?;
        stage.compute(current, buffer)?;
        comm.wait(&compute.record_event(None)?)?;
        stage.send(current, buffer)?;
    }
    Ok(())
}

pub fn bubble(stages: usize, micro_batches: usize) -> f64 {
    (stages - 1) as f64 / (micro_batches + stages - 1) as f64
}
