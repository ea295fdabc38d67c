// mistake: the sum of bytes is a byte, and wraps
// fails: dtypes::the_mean_of_bytes_does_not_wrap
// says: the sums wrapped at 256: a u8 can't hold them

use approx::abs_diff_eq;
use cudarc::driver::CudaViewMut;
use cudarc::nccl::{Comm, ReduceOp};
use half::f16;
use lab::Readable;

pub fn sum_bound(significant_bits: u32, world_size: usize, largest: f64) -> f64 {
    let additions = world_size as f64 - 1.0;
    let largest_result = world_size as f64 * largest;
    additions * largest_result * f64::powi(2.0, -(significant_bits as i32))
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
    let mut sums = stream.clone_htod(bytes)?;
    comm.all_reduce_in_place(&mut sums, &ReduceOp::Sum).readable()?;
    let ranks = comm.world_size() as f64;
    Ok(stream.clone_dtoh(&sums)?.into_iter().map(|sum| f64::from(sum) / ranks).collect())
}
