//! Communication that depends on data: whether to step at all.
//!
//! Gradients in half precision are computed a thousand times too large, so that small ones don't vanish; now and then one of them
//! overflows, and becomes infinite or no number. Such a step is skipped. But a rank sees its own gradient only, and a step has a
//! collective in it, in which all ranks take part or none. So what depends on data is decided by all ranks together, on
//! what all of them have seen.

use collectives::all_reduce::average_in_place;
use cudarc::driver::CudaViewMut;
use cudarc::nccl::{Comm, ReduceOp};
use lab::{Kernels, Readable};

/// Whether any rank says yes: the same answer on every rank. Every rank must call it, with an answer of its own. Waits for
/// all of them.
///
/// # Errors
/// What the driver and NCCL answer.
pub fn any_rank(comm: &Comm, yes: bool) -> anyhow::Result<bool> {
    // ANCHOR: any_rank
    // Bring the ranks' answers together, on every rank, and see whether one of them is a yes.
    // One number in a buffer of one element will do. Of which type, with which operator? Mind what each makes of one yes among four.
    let stream = comm.stream();
    let mut answer = stream.clone_htod(&[u32::from(yes)])?;
    comm.all_reduce_in_place(&mut answer, &ReduceOp::Max).readable()?;
    let answer = stream.clone_dtoh(&answer)?;
    stream.synchronize()?;
    Ok(answer != [0])
    // ANCHOR_END: any_rank
}

/// One step of gradient descent, all ranks together: with the average of the ranks' gradients if each of them is finite
/// everywhere; else none, and all parameters stay as they are. `gradient` is this rank's own, and may be written to.
/// Returns whether the step was made: the same on every rank.
///
/// # Errors
/// What the driver and NCCL answer.
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
    // Step with the averaged gradient, unless any rank's overflowed.
    // `overflowed` is what this rank has seen. Module 02's `average_in_place(comm, gradient)` needs all ranks;
    // `kernels.sgd_step(&stream, parameters, gradient, learning_rate)` makes the step.
    if any_rank(comm, overflowed)? {
        return Ok(false);
    }
    average_in_place(comm, gradient)?;
    kernels.sgd_step(&stream, parameters, gradient, learning_rate)?;
    Ok(true)
    // ANCHOR_END: step
}
