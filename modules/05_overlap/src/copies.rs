//! A stream for copies: batches are copied in, and results are copied out, while the GPU computes and communicates.
//!
//! A GPU has separate copy engines. They work in parallel with its kernels if the copies are on another stream and the host memory
//! is *pinned*: memory that the system never moves. A copy to or from other memory, such as a `Vec`, may make the host wait.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut, PinnedHostSlice};

/// Three streams on one GPU. They may also be the same stream.
pub struct Streams {
    /// For kernels.
    pub compute: Arc<CudaStream>,
    /// For NCCL: the communicator's own stream.
    pub comm: Arc<CudaStream>,
    /// For copies between the host and the GPU.
    pub copy: Arc<CudaStream>,
}

/// The work on one batch. Each call enqueues work on one stream, and returns immediately.
pub trait Work {
    /// On the compute stream: computes in place.
    ///
    /// # Errors
    /// Returns any error from the driver.
    fn compute(&mut self, batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    /// On the comm stream: sums the buffer over all ranks, in place.
    ///
    /// # Errors
    /// Returns any error from NCCL.
    fn all_reduce(&mut self, batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;
}

/// Processes every batch on the GPU: batch `i` is `inputs[i]`, and its result is written to `outputs[i]`. There are as
/// many outputs as inputs, each as long as a buffer. Batch `i` uses `buffers[i % 2]`.
///
/// Enqueues everything and returns immediately. Later work on the copy stream runs after all batches. Before the call,
/// the buffers are ready for the copy stream. cudarc's event tracking is off.
///
/// # Errors
/// Returns any error from the work or the driver.
pub fn stream_through(
    streams: &Streams,
    work: &mut impl Work,
    buffers: &mut [CudaViewMut<f32>; 2],
    inputs: &[PinnedHostSlice<f32>],
    outputs: &mut [PinnedHostSlice<f32>],
) -> anyhow::Result<()> {
    // ANCHOR: stream_through
    // Enqueue every batch's path through the three streams:
    // 1. each batch is copied in, computed, summed over all ranks, and copied out, in that order;
    // 2. copies run on the copy stream, to or from pinned memory: one copies a batch in, and one copies its result out;
    // 3. while one batch is being summed, the next can be copied in and computed;
    // 4. a batch is copied into a buffer only after the buffer's previous result has been copied out;
    // 5. the host does not wait.
    todo!("Enqueue every batch's path through the three streams")
    // ANCHOR_END: stream_through
}
