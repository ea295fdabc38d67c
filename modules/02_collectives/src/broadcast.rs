//! Broadcast: one rank, the *root*, has a buffer, and every rank gets a copy of it.
//!
//! Replicas of a model start equal because of a broadcast, and stay equal as long as nothing goes wrong. Whether they are
//! equal is worth asking: a difference in one bit grows with every step.

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

/// Replaces every rank's `buffer` by that of rank `root`. Every rank must call it with the same root and length. Returns
/// at once: the copy is work in the communicator's stream.
///
/// # Errors
/// `root` is no rank (the error says the root and the world size; nothing was sent), or NCCL refuses.
pub fn broadcast(comm: &Comm, buffer: &mut CudaViewMut<f32>, root: usize) -> anyhow::Result<()> {
    // ANCHOR: broadcast
    // Send `buffer` from rank `root` to every rank, in place.
    // Look first whether `root` is a rank at all: NCCL's own answer has no numbers.
    todo!("Send `buffer` from rank `root` to every rank, in place")
    // ANCHOR_END: broadcast
}

/// Whether the buffers of all ranks are equal, bit for bit. Every rank gets the same answer, and no buffer is changed.
/// Every rank must call it, with a buffer of the same length.
///
/// # Errors
/// What NCCL or the driver answers.
pub fn replicas_equal(comm: &Comm, buffer: &CudaView<f32>) -> anyhow::Result<bool> {
    // ANCHOR: replicas_equal
    // Compare each rank's bits with rank 0's, then let all ranks hear whether any differs.
    // `==` is not enough: it calls two equal NaNs different, and 0.0 and −0.0 equal.
    todo!("Compare each rank's bits with rank 0's, then let all ranks hear whether any differs")
    // ANCHOR_END: replicas_equal
}
