//! Reduce-scatter: combines the buffers of all ranks, and each rank gets one part of the result.
//!
//! It is the first half of an all-reduce. Between the two halves, each rank can work on its own part of the result.

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

/// Averages `send` over all ranks, and writes this rank's part of the average into `part`. Every rank must call it with the same
/// two lengths.
///
/// # Errors
/// Fails if `send` is not as long as all ranks' parts combined, or if an NCCL call fails.
pub fn average_part(comm: &Comm, send: &CudaView<f32>, part: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: average_part
    // Average over all ranks, and keep this rank's part:
    // 1. on rank `r`, `part` contains the elements of the average from index `r * part.len()` on;
    // 2. `send` does not change;
    // 3. if `send` is not as long as all ranks' parts combined, send nothing, and return an error that contains
    //    both lengths (the length of `send` and the total length of the parts);
    // 4. make one reduce-scatter, and return as soon as the work is enqueued.
    todo!("Average over all ranks, and keep this rank's part")
    // ANCHOR_END: average_part
}

/// Replaces every rank's `buffer` with the average over all ranks, with a reduce-scatter and an all-gather. Every rank
/// must call it, with the same length. The length is at least 1, and need not be a multiple of the world size.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn average_in_two_steps(comm: &Comm, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: average_in_two_steps
    // Average `buffer` over all ranks in two steps:
    // 1. on every rank, the averages replace all values, for any length;
    // 2. each rank averages one part, and the parts are then gathered: one reduce-scatter and one all-gather, and no all-reduce;
    // 3. the results are bit-identical on all ranks;
    // 4. return as soon as the work is enqueued.
    todo!("Average `buffer` over all ranks in two steps")
    // ANCHOR_END: average_in_two_steps
}
