// mistake: a computation waits for all that the comm stream has: for the next receive, too
// fails: pipeline_parallel::the_next_comes_in_beside_computing
// says: at no time both
// says: the event that this computation waits for stands behind it

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
    let mut received = None;
    for next in 0..=micro_batches {
        let arrived = received.take();
        if next < micro_batches {
            stage.receive(next, &mut buffers[next % 2])?;
            received = Some(comm.record_event(None)?);
        }
        if arrived.is_some() {
            let (current, buffer) = (next - 1, &mut buffers[(next - 1) % 2]);
            compute.wait(&comm.record_event(None)?)?;
            stage.compute(current, buffer)?;
            comm.wait(&compute.record_event(None)?)?;
            stage.send(current, buffer)?;
        }
    }
    Ok(())
}

pub fn bubble(stages: usize, micro_batches: usize) -> f64 {
    (stages - 1) as f64 / (micro_batches + stages - 1) as f64
}
