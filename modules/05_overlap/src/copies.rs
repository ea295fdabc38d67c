//! A third stream, for the copies: the next batch comes in and the last result goes out while the GPU computes and
//! communicates.
//!
//! A GPU has engines of its own for copies. They work in parallel with its kernels if the copies are in another stream, and if the host's
//! side of them is *pinned*: memory that the system never moves. From and to other memory, such as a `Vec`, a call may stage
//! the bytes, and wait until that is done.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut, PinnedHostSlice};

/// Three streams of one GPU.
pub struct Streams {
    /// For kernels.
    pub compute: Arc<CudaStream>,
    /// For NCCL: the communicator's own.
    pub comm: Arc<CudaStream>,
    /// For copies between the host and the GPU.
    pub copy: Arc<CudaStream>,
}

/// What is done with a batch. Each call puts work into one stream, and returns at once.
pub trait Work {
    /// On the compute stream: computes in place.
    ///
    /// # Errors
    /// What the driver answers.
    fn compute(&mut self, batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    /// On the comm stream: sums the buffer over all ranks, in place.
    ///
    /// # Errors
    /// What NCCL answers.
    fn all_reduce(&mut self, batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;
}

/// Takes every batch through the GPU: in from `inputs[i]`, compute, all-reduce, out to `outputs[i]`. There are as many outputs
/// as inputs, and all have the length of a buffer. Batch i uses `buffers[i % 2]`, so that the next one can come in and be
/// computed while this one communicates.
///
/// Returns at once, with everything enqueued. Whatever is enqueued on the copy stream afterwards comes after all batches. Before,
/// the buffers must be ready for the copy stream. cudarc's event tracking is off.
///
/// # Errors
/// Those of the work, and what the driver answers.
pub fn stream_through(
    streams: &Streams,
    work: &mut impl Work,
    buffers: &mut [CudaViewMut<f32>; 2],
    inputs: &[PinnedHostSlice<f32>],
    outputs: &mut [PinnedHostSlice<f32>],
) -> anyhow::Result<()> {
    // ANCHOR: stream_through
    // Enqueue each batch's way through the three streams.
    // The copies are `memcpy_htod` and `memcpy_dtoh`. In which order does the copy stream get them, so that it never waits too
    // early? Every second batch has the same buffer: what orders those?
    todo!("Enqueue each batch's way through the three streams")
    // ANCHOR_END: stream_through
}
