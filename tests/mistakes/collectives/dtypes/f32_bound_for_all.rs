// mistake: every type gets the tolerance of f32
// fails: dtypes::a_true_sum_is_within_its_bound
// says: a sum of 2 f16 values
// says: it is the bound of a type with more bits

use approx::abs_diff_eq;
use cudarc::driver::CudaViewMut;
use cudarc::nccl::{Comm, ReduceOp};
use half::f16;
use lab::Readable;

pub fn sum_bound(_significant_bits: u32, world_size: usize, largest: f64) -> f64 {
    let additions = world_size as f64 - 1.0;
    let largest_result = world_size as f64 * largest;
    additions * largest_result * f64::powi(2.0, -24)
}

pub fn may_be_sum(got: f64, exact: f64, significant_bits: u32, world_size: usize, largest: f64) -> bool {
    abs_diff_eq!(got, exact, epsilon = sum_bound(significant_bits, world_size, largest))
}

pub fn average_halves(comm: &Comm, buffer: &mut CudaViewMut<f16>) -> anyhow::Result<()> {
    comm.all_reduce_in_place(buffer, &ReduceOp::Avg).readable()?;
    Ok(())
}

pub fn mean_of_bytes(comm: &Comm, bytes: &[u8]) -> anyhow::Result<Vec<f64>> {
    let stream = comm.stream();
    let wide: Vec<i32> = bytes.iter().copied().map(i32::from).collect();
    let mut sums = stream.clone_htod(&wide)?;
    comm.all_reduce_in_place(&mut sums, &ReduceOp::Sum).readable()?;
    let ranks = comm.world_size() as f64;
    Ok(stream.clone_dtoh(&sums)?.into_iter().map(|sum| f64::from(sum) / ranks).collect())
}
