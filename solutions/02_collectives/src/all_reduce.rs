//! All-reduce: combines the buffers of all ranks element by element, and every rank gets the result.
//!
//! Every rank must make the same call, with buffers of the same length. Both functions enqueue work on the communicator's stream.

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

/// Sums `send` over all ranks into every rank's `recv`.
///
/// # Errors
/// Fails if `send` and `recv` differ in length, or if an NCCL call fails.
pub fn sum(comm: &Comm, send: &CudaView<f32>, recv: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: sum
    // Sum `send` over all ranks into `recv`:
    // 1. on every rank, element `i` of `recv` is the sum of element `i` over all ranks;
    // 2. `send` does not change;
    // 3. if the two lengths differ, send nothing, and return an error that contains both;
    // 4. make one all-reduce and no copy, and return as soon as the work is enqueued.
    ensure!(
        send.len() == recv.len(),
        "the send buffer has {} elements, but the receive buffer has {}",
        send.len(),
        recv.len()
    );
    comm.all_reduce(send, recv, &ReduceOp::Sum).readable()?;
    Ok(())
    // ANCHOR_END: sum
}

/// Replaces every rank's `buffer` with the average over all ranks.
///
/// # Errors
/// Returns any error from NCCL.
pub fn average_in_place(comm: &Comm, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: average_in_place
    // Average `buffer` over all ranks:
    // 1. on every rank, the averages replace the values;
    // 2. no second buffer is used;
    // 3. make one all-reduce, and return as soon as the work is enqueued.
    comm.all_reduce_in_place(buffer, &ReduceOp::Avg).readable()?;
    Ok(())
    // ANCHOR_END: average_in_place
}
