//! Reductions to a single number over all ranks: the norm of a vector that is spread over them, and a softmax.
//!
//! Each rank reduces its part, the ranks combine their numbers, and each rank continues with the result.

use collectives::all_gather::all_gather;
use collectives::all_reduce::average_in_place;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::{Kernels, Readable};

/// Returns the Euclidean norm √(x₀² + x₁² + …) of a vector that is spread over the ranks. The result is the same on
/// every rank. The parts may differ in length. Waits for the GPU.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn global_norm(comm: &Comm, kernels: &Kernels, part: &CudaView<f32>) -> anyhow::Result<f32> {
    let stream = comm.stream();
    let mut number = stream.alloc_zeros::<f32>(1)?;
    // ANCHOR: global_norm
    // Compute the norm of all parts together:
    // 1. every element of every part is counted once;
    // 2. the result is bit-identical on every rank;
    // 3. the squares are summed on the GPU, and each rank communicates a single element.
    kernels.sum_of_squares(&stream, &mut number, part)?;
    comm.all_reduce_in_place(&mut number, &ReduceOp::Sum).readable()?;
    Ok(stream.clone_dtoh(&number)?[0].sqrt())
    // ANCHOR_END: global_norm
}

/// Averages `gradient` over the ranks. If the average's norm exceeds `max_norm`, scales it down to that norm without
/// changing its direction. Before the call, each rank has its own complete gradient; after it, all ranks have the same
/// one. Returns the average's norm before scaling. Waits for the GPU.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn average_and_clip(
    comm: &Comm,
    kernels: &Kernels,
    gradient: &mut CudaViewMut<f32>,
    max_norm: f32,
) -> anyhow::Result<f32> {
    let stream = comm.stream();
    let mut number = stream.alloc_zeros::<f32>(1)?;
    // ANCHOR: average_and_clip
    // Average the gradient, and shorten it if it is too long:
    // 1. the norm is computed from the average over the ranks;
    // 2. an average that is too long is scaled to `max_norm`, and a shorter one does not change;
    // 3. the norm from before scaling is returned;
    // 4. one collective is enough, and the gradient stays on the GPU.
    average_in_place(comm, gradient)?;
    kernels.sum_of_squares(&stream, &mut number, gradient)?;
    let norm = stream.clone_dtoh(&number)?[0].sqrt();
    if norm > max_norm {
        kernels.scale(&stream, gradient, max_norm / norm)?;
    }
    Ok(norm)
    // ANCHOR_END: average_and_clip
}

/// Computes a softmax in place over scores that are spread over the ranks. Each score x becomes exp(x − m) / s, where m
/// is the largest score on any rank, and s is the sum of exp(x − m) over all scores. Every rank has at least one score.
/// Returns without waiting for the GPU.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn softmax(comm: &Comm, kernels: &Kernels, part: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let stream = comm.stream();
    let mut number = stream.alloc_zeros::<f32>(1)?;
    let mut of_all = stream.alloc_zeros::<f32>(comm.world_size())?;
    // ANCHOR: softmax
    // Compute the softmax over all ranks' scores:
    // 1. every rank subtracts the same m, and divides by the same s;
    // 2. all numbers stay on the GPU, and the host does not wait;
    // 3. it uses no memory besides `number` and `of_all`.
    kernels.maximum(&stream, &mut number, part)?;
    all_gather(comm, &number.as_view(), &mut of_all.as_view_mut())?;
    kernels.maximum(&stream, &mut number, &of_all)?;
    kernels.exp_minus(&stream, part, &number)?;
    kernels.sum(&stream, &mut number, part)?;
    comm.all_reduce_in_place(&mut number, &ReduceOp::Sum).readable()?;
    kernels.divide(&stream, part, &number)
    // ANCHOR_END: softmax
}
