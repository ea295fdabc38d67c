// mistake: the tolerance is the one that `approx` takes by itself
// fails: dtypes::a_sum_is_compared_by_its_bound
// says: `approx` takes 2⁻⁵² unless it is given an `epsilon`

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

pub fn may_be_sum(got: f64, exact: f64, _significant_bits: u32, _world_size: usize, _largest: f64) -> bool {
    abs_diff_eq!(got, exact)
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
    let sums = stream.clone_dtoh(&sums)?;
    stream.synchronize()?;
    let ranks = comm.world_size() as f64;
    Ok(sums.into_iter().map(|sum| f64::from(sum) / ranks).collect())
}
