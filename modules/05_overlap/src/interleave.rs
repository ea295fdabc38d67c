//! A pipeline on two streams: one iteration communicates while the next iteration computes.
//!
//! An iteration has three stages: two kernels on the compute stream, and an all-reduce on the comm stream between them. Only
//! events order the two streams.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};

/// The three stages of an iteration. Each call enqueues work on one stream, and returns at once.
pub trait Stages {
    /// On the compute stream: fills the buffer with this rank's data of the iteration.
    ///
    /// # Errors
    /// Returns the driver's error.
    fn preprocess(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    /// On the comm stream: sums the buffer over all ranks, in place.
    ///
    /// # Errors
    /// Returns NCCL's error.
    fn all_reduce(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    /// On the compute stream: turns the sum into the result, in place.
    ///
    /// # Errors
    /// Returns the driver's error.
    fn postprocess(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;
}

/// Runs one iteration for each buffer: iteration `i` runs its three stages in `buffers[i]`.
///
/// Returns at once, with everything enqueued. Later work on either stream comes after all iterations. Before the call, the
/// buffers are ready for the compute stream. Both streams are on one GPU, and cudarc's event tracking is off.
///
/// # Errors
/// Returns the errors of the stages and of the driver.
pub fn interleave(
    compute: &Arc<CudaStream>,
    comm: &Arc<CudaStream>,
    stages: &mut impl Stages,
    buffers: &mut [CudaViewMut<f32>],
) -> anyhow::Result<()> {
    // ANCHOR: interleave
    // Enqueue all stages of all iterations:
    // 1. a stage starts after the stage before it in the same iteration;
    // 2. the all-reduce of an iteration is free to run in parallel with the preprocessing of the next one;
    // 3. what is enqueued on either stream after this call comes after all iterations;
    // 4. the host waits for nothing;
    // 5. there may be any number of iterations, even none.
    todo!("Enqueue all stages of all iterations")
    // ANCHOR_END: interleave
}
