// mistake: halves are summed, and divided when they have overflowed
// fails: dtypes::halves_are_averaged_without_overflow
// says: got inf
// says: sum to more than 65504, the largest f16: what is divided later is lost

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
    let stream = comm.stream();
    comm.all_reduce_in_place(buffer, &ReduceOp::Sum).readable()?;
    let ranks = comm.world_size() as f32;
    let sums = stream.clone_dtoh(buffer)?;
    let average: Vec<f16> = sums.into_iter().map(|sum| f16::from_f32(sum.to_f32() / ranks)).collect();
    stream.memcpy_htod(&average, buffer)?;
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
