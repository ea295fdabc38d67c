// mistake: the event marks the place in front of the preprocessing, not the one behind it
// fails: interleave::a_late_preprocess_is_waited_for
// says: data race
// says: by ncclAllReduce on stream 1

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
        let ready = compute.record_event(None)?;
        stages.preprocess(iteration, &mut buffers[iteration])?;
        comm.wait(&ready)?;
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
    comm.wait(&compute.record_event(None)?)?;
    Ok(())
}
