//! Reference results, computed on the host, for the checks for several exercises.

use std::ops::Range;

use lab::irregular;

/// Returns the inputs of each rank. They are integers below 2²⁴ / n, so their sums are exact in any order.
pub(super) fn inputs(world_size: usize, len: usize) -> Vec<Vec<f32>> {
    (0..world_size).map(|rank| irregular::integers(rank, len)).collect()
}

/// Returns the sum over the ranks.
pub(super) fn added(inputs: &[Vec<f32>]) -> Vec<f32> {
    (0..inputs[0].len()).map(|index| inputs.iter().map(|input| input[index]).sum()).collect()
}

pub(super) fn divided(values: &[f32], by: usize) -> Vec<f32> {
    values.iter().map(|value| value / by as f32).collect()
}

/// Returns a bound on the error of an average of [`inputs`]. NCCL multiplies each value by 1/n, and then sums. 1/n and
/// each of the n products round by 2⁻²⁴, relative to at most 1000/n. Then n − 1 sums of at most 1000 round by 2⁻²⁴
/// each. The expected value rounds once more. If n is a power of 2, nothing rounds.
pub(super) fn average_bound(world_size: usize) -> f64 {
    if world_size.is_power_of_two() { 0.0 } else { 1000.0 * (2.0 + world_size as f64) * f64::powi(2.0, -24) }
}

/// Returns the range of a rank's part if each part has `len` elements.
pub(super) fn place(rank: usize, len: usize) -> Range<usize> {
    rank * len..(rank + 1) * len
}

/// Returns the worlds with two and three ranks. A call costs the same in larger worlds.
pub(super) fn small_worlds() -> Vec<usize> {
    lab::world_sizes().into_iter().filter(|size| (2..=3).contains(size)).collect()
}
