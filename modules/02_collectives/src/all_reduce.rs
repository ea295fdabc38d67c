//! All-reduce: every rank gives a buffer, and every rank gets the element-wise sum, or average, of all of them.
//!
//! Both functions put work into the communicator's stream and return at once. Every rank must call them, with buffers of
//! the same length.

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

/// Writes the sum of all ranks' `send` into `recv`, on every rank. `send` stays as it is.
///
/// # Errors
/// `send` and `recv` differ in length (the error says both lengths; nothing was sent), or NCCL refuses.
pub fn sum(comm: &Comm, send: &CudaView<f32>, recv: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: sum
    // Compare the two lengths, then sum `send` over all ranks into `recv`.
    // cudarc takes the count from `send` and never looks at `recv`: a shorter one would be written past its end.
    todo!("Compare the two lengths, then sum `send` over all ranks into `recv`")
    // ANCHOR_END: sum
}

/// Replaces every rank's `buffer` by the average of all of them.
///
/// # Errors
/// NCCL refuses.
pub fn average_in_place(comm: &Comm, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: average_in_place
    // Average `buffer` over all ranks, in place, with one operation: no second buffer, no kernel that divides.
    todo!("Average `buffer` over all ranks, in place, with one operation")
    // ANCHOR_END: average_in_place
}
