//! One number of all ranks: the norm of a vector that lies in parts on them, and what is made of it.
//!
//! A rank knows its part. What it has to know of the others is little: a number from each. The pattern is always the
//! same: reduce on the rank, bring the ranks' numbers together, and go on with the result on the rank.

use collectives::all_gather::all_gather;
use collectives::all_reduce::average_in_place;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::{Kernels, Readable};

/// The Euclidean norm of the vector whose parts the ranks have, √(x₀² + x₁² + …): the same on every rank. The parts may
/// differ in length. Waits for the GPU.
///
/// # Errors
/// What the driver and NCCL answer.
pub fn global_norm(comm: &Comm, kernels: &Kernels, part: &CudaView<f32>) -> anyhow::Result<f32> {
    let stream = comm.stream();
    let mut number = stream.alloc_zeros::<f32>(1)?;
    // ANCHOR: global_norm
    // Find the norm of all parts together.
    // `kernels.sum_of_squares(&stream, &mut number, part)` leaves one number on this rank. Of which numbers is the sum over the
    // ranks the sum over the vector?
    todo!("Find the norm of all parts together")
    // ANCHOR_END: global_norm
}

/// Averages `gradient` over the ranks, and shortens it to `max_norm` where it is longer; its direction stays. Each rank has a
/// whole gradient of its own before, and all have the same one after. Returns the average's norm before it was
/// shortened. Waits for the GPU.
///
/// # Errors
/// What the driver and NCCL answer.
pub fn average_and_clip(
    comm: &Comm,
    kernels: &Kernels,
    gradient: &mut CudaViewMut<f32>,
    max_norm: f32,
) -> anyhow::Result<f32> {
    let stream = comm.stream();
    let mut number = stream.alloc_zeros::<f32>(1)?;
    // ANCHOR: average_and_clip
    // Average, find the norm, and scale by max_norm / norm if that is below 1.
    // In which order? After the average, the whole gradient lies on every rank. `kernels.scale(&stream, gradient, factor)`
    // multiplies it.
    todo!("Average, find the norm, and scale by max_norm / norm if that is below 1")
    // ANCHOR_END: average_and_clip
}

/// Softmax over the scores of which each rank has a part, in place: each score x becomes exp(x − m) / (the sum of all such), where
/// m is the largest score of all ranks. Returns at once.
///
/// # Errors
/// What the driver and NCCL answer.
pub fn softmax(comm: &Comm, kernels: &Kernels, part: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let stream = comm.stream();
    let mut number = stream.alloc_zeros::<f32>(1)?;
    let mut of_all = stream.alloc_zeros::<f32>(comm.world_size())?;
    // ANCHOR: softmax
    // Find the largest score of all ranks, make exponentials, and divide by the sum of all of them.
    // Nothing has to come to the host: `kernels.maximum(&stream, &mut number, part)` and `kernels.sum(…)` leave a number on the GPU,
    // `kernels.exp_minus(&stream, part, &number)` and `kernels.divide(…)` take it from there. Module 02's `all_gather(comm, shard,
    // whole)` brings a number from each rank into `of_all`.
    todo!("Find the largest score of all ranks, make exponentials, and divide by the sum of all of them")
    // ANCHOR_END: softmax
}
