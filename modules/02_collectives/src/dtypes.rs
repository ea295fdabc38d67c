//! Types: what a sum over the ranks rounds, what it overflows, and what tolerance follows.
//!
//! NCCL adds in the type of the buffer. A type with p significant bits rounds each addition by at most 2⁻ᵖ, relative to
//! its result: p is 53 for `f64`, 24 for `f32`, 11 for `f16`, and 8 for `bf16`. Whole numbers are exact, and wrap.

use approx::abs_diff_eq;
use cudarc::driver::CudaViewMut;
use cudarc::nccl::{Comm, ReduceOp};
use half::f16;
use lab::Readable;

/// How far the sum of a value from each rank may be from the exact sum, in whatever order the ranks are added. No value is
/// above `largest` in magnitude; their type has so many `significant_bits`.
pub fn sum_bound(significant_bits: u32, world_size: usize, largest: f64) -> f64 {
    // ANCHOR: sum_bound
    // Multiply the number of additions by the most that one of them can round.
    // No result on the way is larger than all values together. A bound that is much too large fails the checks too.
    todo!("Multiply the number of additions by the most that one of them can round")
    // ANCHOR_END: sum_bound
}

/// Whether `got` may be the sum of a value from each rank, where `exact` is that sum without rounding. The other arguments are those
/// of [`sum_bound`]. A NaN is no sum.
pub fn may_be_sum(got: f64, exact: f64, significant_bits: u32, world_size: usize, largest: f64) -> bool {
    // ANCHOR: may_be_sum
    // Compare the two with `approx`, and give it the bound.
    // Without `epsilon = …`, it takes 2⁻⁵², which suits neither the type nor the number of ranks. `relative_eq!` measures by the
    // result, and where the ranks' values cancel, that is nearly 0: their rounding is not.
    todo!("Compare the two with `approx`, and give it the bound")
    // ANCHOR_END: may_be_sum
}

/// Replaces every rank's `buffer` by the average of all of them, also where their sum is beyond the largest `f16`, 65504.
/// Every rank must call it, with a buffer of the same length. Returns at once.
///
/// # Errors
/// NCCL refuses.
pub fn average_halves(comm: &Comm, buffer: &mut CudaViewMut<f16>) -> anyhow::Result<()> {
    // ANCHOR: average_halves
    // Average `buffer` over all ranks, in place, and divide before anything is added.
    // One of NCCL's operators does so, for floats.
    todo!("Average `buffer` over all ranks, in place, and divide before anything is added")
    // ANCHOR_END: average_halves
}

/// The mean over the ranks of each byte, such as a pixel, with its fraction. Every rank must call it, with as many bytes,
/// and gets the same. Waits for the result.
///
/// # Errors
/// What NCCL or the driver answers.
pub fn mean_of_bytes(comm: &Comm, bytes: &[u8]) -> anyhow::Result<Vec<f64>> {
    // ANCHOR: mean_of_bytes
    // Sum the bytes of all ranks in a type that holds the sum, then divide on the host.
    // A `u8` wraps beyond 255, and the average of whole numbers is a whole number again.
    todo!("Sum the bytes of all ranks in a type that holds the sum, then divide on the host")
    // ANCHOR_END: mean_of_bytes
}
