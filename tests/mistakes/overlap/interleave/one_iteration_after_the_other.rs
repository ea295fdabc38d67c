// mistake: the right edges in the plain order: the next preprocessing stands behind a wait for the sum
// fails: interleave::communication_runs_beside_computation
// says: at no time both
// says: something keeps the compute stream

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};

pub trait Stages {
    fn preprocess(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;
    fn all_reduce(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;
    fn postprocess(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;
}

pub fn interleave(
    compute: &Arc<CudaStream>,
    comm: &Arc<CudaStream>,
    stages: &mut impl Stages,
    buffers: &mut [CudaViewMut<f32>],
) -> anyhow::Result<()> {
    for (iteration, buffer) in buffers.iter_mut().enumerate() {
        stages.preprocess(iteration, buffer)?;
        comm.wait(&compute.record_event(None)?)?;
        stages.all_reduce(iteration, buffer)?;
        compute.wait(&comm.record_event(None)?)?;
        stages.postprocess(iteration, buffer)?;
    }
    comm.wait(&compute.record_event(None)?)?;
    Ok(())
}
