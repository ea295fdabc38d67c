//! A pipeline on two streams: while one iteration communicates, the next one computes.
//!
//! An iteration has three stages. The first and the last are kernels on the compute stream, the second is an all-reduce on
//! the comm stream. Nothing orders two streams but events: one stream records, the other waits. Neither call keeps the
//! host.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};

/// The three stages of an iteration. Each call puts work into one stream, and returns at once.
pub trait Stages {
    /// On the compute stream: fills the buffer with what this rank has for the iteration.
    ///
    /// # Errors
    /// What the driver answers.
    fn preprocess(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    /// On the comm stream: sums the buffer over all ranks, in place.
    ///
    /// # Errors
    /// What NCCL answers.
    fn all_reduce(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    /// On the compute stream: turns the sum into the result, in place.
    ///
    /// # Errors
    /// What the driver answers.
    fn postprocess(&mut self, iteration: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;
}

/// Runs one iteration for each buffer: iteration `i` goes through its three stages in `buffers[i]`. The all-reduce of an
/// iteration is free to run in parallel with the preprocessing of the next one.
///
/// Returns at once, with everything enqueued. Whatever is enqueued on either stream afterwards comes after all iterations.
/// Before, the buffers must be ready for the compute stream. Both streams are on one GPU, and cudarc's event tracking
/// is off.
///
/// # Errors
/// Those of the stages, and what the driver answers.
pub fn interleave(
    compute: &Arc<CudaStream>,
    comm: &Arc<CudaStream>,
    stages: &mut impl Stages,
    buffers: &mut [CudaViewMut<f32>],
) -> anyhow::Result<()> {
    // ANCHOR: interleave
    // Enqueue every stage, and an event wherever one stream needs what the other one does.
    // A stream works in the order in which you enqueue: a stage that waits keeps everything back that is behind it. So in
    // which order does the compute stream get its stages? `record_event` and `wait` are methods of a stream.
    todo!("Enqueue every stage, and an event wherever one stream needs what the other one does")
    // ANCHOR_END: interleave
}
