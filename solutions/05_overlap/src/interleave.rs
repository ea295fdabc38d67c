//! A pipeline on two streams: one iteration communicates while the next iteration computes.
//!
//! An iteration has three stages: two kernels on the compute stream, and an all-reduce on the comm stream between them. Only
//! events order the two streams.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};

/// The three stages of an iteration. Each call enqueues work on one stream, and returns immediately.
pub trait Stages {
    /// On the compute stream: fills the buffer with this rank's data for the iteration.
    ///
    /// # Errors
    /// Returns any error from the driver.
    fn preprocess(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    /// On the comm stream: sums the buffer over all ranks, in place.
    ///
    /// # Errors
    /// Returns any error from NCCL.
    fn all_reduce(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    /// On the compute stream: turns the sum into the result, in place.
    ///
    /// # Errors
    /// Returns any error from the driver.
    fn postprocess(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;
}

/// Runs one iteration for each buffer: iteration `i` runs its three stages in `buffers[i]`.
///
/// Enqueues everything and returns immediately. Later work on either stream runs after all iterations. Before the call,
/// the buffers are ready for the compute stream. Both streams are on one GPU, and cudarc's event tracking is off.
///
/// # Errors
/// Returns any error from the stages or the driver.
pub fn interleave(
    compute: &Arc<CudaStream>,
    comm: &Arc<CudaStream>,
    stages: &mut impl Stages,
    buffers: &mut [CudaViewMut<f32>],
) -> anyhow::Result<()> {
    // ANCHOR: interleave
    // Enqueue all stages of all iterations:
    // 1. a stage starts after the stage before it in the same iteration;
    // 2. an iteration's all-reduce can run in parallel with the next iteration's preprocessing;
    // 3. work enqueued on either stream after this call runs after all iterations;
    // 4. the host does not wait;
    // 5. there may be any number of iterations, even none.
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
    comm.wait(&compute.record_event(None)?)?;
    Ok(())
    // ANCHOR_END: interleave
}
