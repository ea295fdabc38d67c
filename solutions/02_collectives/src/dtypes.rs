//! Types: how inexact a sum over the ranks may be, which sums overflow, and how to choose a tolerance.
//!
//! A float with p significant bits rounds each addition by at most 2⁻ᵖ of its result: p is 53 for `f64`, 24 for `f32`,
//! 11 for `f16`, and 8 for `bf16`. Integers are exact, but wrap.

use approx::abs_diff_eq;
use cudarc::driver::CudaViewMut;
use cudarc::nccl::{Comm, ReduceOp};
use half::f16;
use lab::Readable;

/// Returns how far a sum of one value from each rank may be from the exact sum, whatever the order of the additions. No
/// value is larger than `largest` in magnitude, and the values' type has `significant_bits` significant bits.
pub fn sum_bound(significant_bits: u32, world_size: usize, largest: f64) -> f64 {
    // ANCHOR: sum_bound
    // Bound the error of a sum:
    // 1. a sum is off by at most this much, whatever the order of the additions;
    // 2. the bound is at most four times the largest error that can occur, so that wrong sums are rejected.
    let additions = world_size as f64 - 1.0;
    let largest_result = world_size as f64 * largest;
    additions * largest_result * f64::powi(2.0, -(significant_bits as i32))
    // ANCHOR_END: sum_bound
}

/// Returns whether `got` may be the sum of one value from each rank, if `exact` is the sum without rounding. The other
/// arguments are the same as for [`sum_bound`].
pub fn may_be_sum(got: f64, exact: f64, significant_bits: u32, world_size: usize, largest: f64) -> bool {
    // ANCHOR: may_be_sum
    // Compare a sum with the exact one:
    // 1. the two may be as far apart as `sum_bound` allows, but no farther;
    // 2. the same holds if positive and negative values cancel;
    // 3. a NaN is never accepted as a sum.
    abs_diff_eq!(got, exact, epsilon = sum_bound(significant_bits, world_size, largest))
    // ANCHOR_END: may_be_sum
}

/// Replaces every rank's `buffer` with the average over all ranks. Every rank must call it, with a buffer of the same length.
///
/// # Errors
/// Returns any error from NCCL.
pub fn average_halves(comm: &Comm, buffer: &mut CudaViewMut<f16>) -> anyhow::Result<()> {
    // ANCHOR: average_halves
    // Average `f16` values over all ranks:
    // 1. on every rank, the averages replace the values;
    // 2. they are correct even if the sum is larger than 65504, the largest `f16`;
    // 3. make one all-reduce without a second buffer, and return as soon as the work is enqueued.
    comm.all_reduce_in_place(buffer, &ReduceOp::Avg).readable()?;
    Ok(())
    // ANCHOR_END: average_halves
}

/// Returns the mean of each byte (such as a pixel) over the ranks. Every rank must call it, with the same number of bytes.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn mean_of_bytes(comm: &Comm, bytes: &[u8]) -> anyhow::Result<Vec<f64>> {
    // ANCHOR: mean_of_bytes
    // Average bytes over all ranks:
    // 1. every rank returns the mean of each byte, including its fractional part;
    // 2. it is correct for any bytes, even if all of them are 255;
    // 3. one collective sends all bytes.
    let stream = comm.stream();
    let wide: Vec<i32> = bytes.iter().copied().map(i32::from).collect();
    let mut sums = stream.clone_htod(&wide)?;
    comm.all_reduce_in_place(&mut sums, &ReduceOp::Sum).readable()?;
    let sums = stream.clone_dtoh(&sums)?;
    stream.synchronize()?;
    let ranks = comm.world_size() as f64;
    Ok(sums.into_iter().map(|sum| f64::from(sum) / ranks).collect())
    // ANCHOR_END: mean_of_bytes
}
