//! A stream for copies: batches are copied in and results out while the GPU computes and communicates.
//!
//! A GPU has separate copy engines. They work in parallel with its kernels if the copies are on another stream and the host
//! memory is *pinned*: memory that the system never moves. For other memory, such as a `Vec`, a copy may make the host wait.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut, PinnedHostSlice};

/// Three streams of one GPU.
pub struct Streams {
    /// For kernels.
    pub compute: Arc<CudaStream>,
    /// For NCCL: the communicator's own stream.
    pub comm: Arc<CudaStream>,
    /// For copies between host and GPU.
    pub copy: Arc<CudaStream>,
}

/// The work on one batch. Each call enqueues work on one stream, and returns at once.
pub trait Work {
    /// On the compute stream: computes in place.
    ///
    /// # Errors
    /// Returns the driver's error.
    fn compute(&mut self, batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;

    /// On the comm stream: sums the buffer over all ranks, in place.
    ///
    /// # Errors
    /// Returns NCCL's error.
    fn all_reduce(&mut self, batch: usize, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()>;
}

/// Processes every batch on the GPU: batch `i` is `inputs[i]`, and its result is written to `outputs[i]`. There are as many
/// outputs as inputs, each as long as a buffer. Batch `i` uses `buffers[i % 2]`.
///
/// Returns at once, with everything enqueued. Later work on the copy stream comes after all batches. Before the call, the
/// buffers are ready for the copy stream. cudarc's event tracking is off.
///
/// # Errors
/// Returns the errors of the work and of the driver.
pub fn stream_through(
    streams: &Streams,
    work: &mut impl Work,
    buffers: &mut [CudaViewMut<f32>; 2],
    inputs: &[PinnedHostSlice<f32>],
    outputs: &mut [PinnedHostSlice<f32>],
) -> anyhow::Result<()> {
    // ANCHOR: stream_through
    // Enqueue the path of every batch through the three streams:
    // 1. each batch is copied in, computed, summed over all ranks, and copied out, in this order;
    // 2. copies are on the copy stream, and from or to pinned memory: one brings a batch in, and one takes its result out;
    // 3. the next batch is free to come in and to be computed while one is summed;
    // 4. a batch comes into a buffer only after the result before it there has been copied out;
    // 5. the host waits for nothing.
    let Streams { compute, comm, copy } = streams;
    let mut reduced = None;
    for (batch, input) in inputs.iter().enumerate() {
        let buffer = &mut buffers[batch % 2];
        copy.memcpy_htod(input, buffer)?;
        compute.wait(&copy.record_event(None)?)?;
        work.compute(batch, buffer)?;
        comm.wait(&compute.record_event(None)?)?;
        work.all_reduce(batch, buffer)?;
        let before = reduced.replace(comm.record_event(None)?);
        if let Some(before) = before {
            copy.wait(&before)?;
            copy.memcpy_dtoh(&buffers[(batch - 1) % 2], &mut outputs[batch - 1])?;
        }
    }
    if let Some(last) = reduced {
        copy.wait(&last)?;
        copy.memcpy_dtoh(&buffers[(inputs.len() - 1) % 2], &mut outputs[inputs.len() - 1])?;
    }
    Ok(())
    // ANCHOR_END: stream_through
}
