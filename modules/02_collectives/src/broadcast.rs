//! Broadcast: copies one rank's buffer to all ranks. That rank is the *root*.
//!
//! Replicas of a model that start out equal stay equal unless something goes wrong. `replicas_equal` checks this.

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

/// Replaces every rank's `buffer` with the one from rank `root`. Every rank must call it, with the same root and the same length.
///
/// # Errors
/// Fails if `root` is not below the world size, or if an NCCL call fails.
pub fn broadcast(comm: &Comm, buffer: &mut CudaViewMut<f32>, root: usize) -> anyhow::Result<()> {
    // ANCHOR: broadcast
    // Copy the root's `buffer` to every rank:
    // 1. afterwards, all ranks have the root's values, bit for bit;
    // 2. any rank can be the root;
    // 3. if `root` is not below the world size, send nothing, and return an error that contains both numbers;
    // 4. make one broadcast without a second buffer, and return as soon as the work is enqueued.
    todo!("Copy the root's `buffer` to every rank")
    // ANCHOR_END: broadcast
}

/// Returns whether the buffers of all ranks are equal, bit for bit. Every rank must call it, with buffers of the same length.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn replicas_equal(comm: &Comm, buffer: &CudaView<f32>) -> anyhow::Result<bool> {
    // ANCHOR: replicas_equal
    // Find out whether all replicas are equal:
    // 1. the result is true only if every bit of every rank's buffer is the same;
    // 2. every rank returns the same result;
    // 3. no buffer changes;
    // 4. the number of calls does not grow with the length of the buffer.
    todo!("Find out whether all replicas are equal")
    // ANCHOR_END: replicas_equal
}
