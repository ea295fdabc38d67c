//! Communication that depends on data: either all ranks make a step, or none does.
//!
//! A rank sees only its own gradient, but a step contains a collective. So the ranks decide together, based on what all of them have seen.

use collectives::all_reduce::average_in_place;
use cudarc::driver::CudaViewMut;
use cudarc::nccl::{Comm, ReduceOp};
use lab::{Kernels, Readable};

/// Returns whether any rank passes `true`. The result is the same on every rank. Every rank must call it with its own answer. Waits
/// for all ranks.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn any_rank(comm: &Comm, yes: bool) -> anyhow::Result<bool> {
    // ANCHOR: any_rank
    // Combine the ranks' answers:
    // 1. one or more `true` answers are enough, no matter which ranks they come from;
    // 2. every rank gets the same result;
    // 3. a single collective on one element is enough.
    let stream = comm.stream();
    let mut answer = stream.clone_htod(&[u32::from(yes)])?;
    comm.all_reduce_in_place(&mut answer, &ReduceOp::Max).readable()?;
    let answer = stream.clone_dtoh(&answer)?;
    stream.synchronize()?;
    Ok(answer != [0])
    // ANCHOR_END: any_rank
}

/// Makes one step of gradient descent with the average of the ranks' gradients, if every rank's gradient is finite.
/// Otherwise, no rank makes the step, and no parameter changes. `gradient` is this rank's own, and may be overwritten.
/// Returns whether the step was made, which is the same on every rank.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn step(
    comm: &Comm,
    kernels: &Kernels,
    parameters: &mut CudaViewMut<f32>,
    gradient: &mut CudaViewMut<f32>,
    learning_rate: f32,
) -> anyhow::Result<bool> {
    let stream = comm.stream();
    let mut count = stream.alloc_zeros::<u32>(1)?;
    kernels.count_not_finite(&stream, &mut count, gradient)?;
    let overflowed = stream.clone_dtoh(&count)? != [0];
    // ANCHOR: step
    // Step with the averaged gradient, unless any rank's gradient overflowed:
    // 1. `overflowed` says whether this rank's own gradient has overflowed;
    // 2. either all ranks step or none does, and all of them call the same collectives;
    // 3. a skipped step changes no parameter;
    // 4. a step averages the gradient once, and copies no part of it to the host.
    if any_rank(comm, overflowed)? {
        return Ok(false);
    }
    average_in_place(comm, gradient)?;
    kernels.sgd_step(&stream, parameters, gradient, learning_rate)?;
    Ok(true)
    // ANCHOR_END: step
}
