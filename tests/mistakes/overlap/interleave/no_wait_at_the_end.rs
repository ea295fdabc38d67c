// mistake: the comm stream doesn't wait for the last postprocessing
// fails: interleave::the_comm_stream_comes_after_it_too
// says: data race
// says: the comm stream, which has to come after the last postprocessing too

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
    let mut reduced = None;
    for iteration in 0..buffers.len() {
        stages.preprocess(iteration, &mut buffers[iteration])?;
        comm.wait(&compute.record_event(None)?)?;
        stages.all_reduce(iteration, &mut buffers[iteration])?;
        let before = reduced.replace(comm.record_event(None)?);
        if let Some(before) = before {
            compute.wait(&before)?;
            stages.postprocess(iteration - 1, &mut buffers[iteration - 1])?;
        }
    }
    if let Some(last) = reduced {
        compute.wait(&last)?;
        stages.postprocess(buffers.len() - 1, &mut buffers[buffers.len() - 1])?;
    }
    Ok(())
}
