//! Reductions to one number over all ranks: the norm of a vector that is spread over them, and a softmax.
//!
//! Each rank reduces its part, the ranks combine their numbers, and each rank continues with the result.

use collectives::all_gather::all_gather;
use collectives::all_reduce::average_in_place;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::{Kernels, Readable};

/// Returns the Euclidean norm √(x₀² + x₁² + …) of a vector that is spread over the ranks: the same number on every rank. The parts
/// may differ in length. Waits for the GPU.
///
/// # Errors
/// Returns the errors of the driver and of NCCL.
pub fn global_norm(comm: &Comm, kernels: &Kernels, part: &CudaView<f32>) -> anyhow::Result<f32> {
    let stream = comm.stream();
    let mut number = stream.alloc_zeros::<f32>(1)?;
    // ANCHOR: global_norm
    // Compute the norm of all parts together:
    // 1. every element of every part is in it once;
    // 2. every rank gets the same bits;
    // 3. the squares are summed on the GPU, and one element from each rank is enough communication.
    todo!("Compute the norm of all parts together")
    // ANCHOR_END: global_norm
}

/// Averages `gradient` over the ranks, and scales it down to the norm `max_norm` if it is longer, without changing its direction. Before,
/// each rank has its own whole gradient. Afterwards, all ranks have the same. Returns the average's norm before scaling. Waits for the GPU.
///
/// # Errors
/// Returns the errors of the driver and of NCCL.
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
    // 1. the norm is that of the average over the ranks;
    // 2. a longer average is scaled to `max_norm`, and a shorter one stays as it is;
    // 3. the returned norm is the one before scaling;
    // 4. one collective is enough, and the gradient stays on the GPU.
    todo!("Average the gradient, and shorten it if it is too long")
    // ANCHOR_END: average_and_clip
}

/// Computes a softmax in place over scores that are spread over the ranks. Each score x becomes exp(x − m) / s, where m is the
/// largest score of all ranks, and s is the sum of all exp(x − m). Returns without waiting for the GPU.
///
/// # Errors
/// Returns the errors of the driver and of NCCL.
pub fn softmax(comm: &Comm, kernels: &Kernels, part: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let stream = comm.stream();
    let mut number = stream.alloc_zeros::<f32>(1)?;
    let mut of_all = stream.alloc_zeros::<f32>(comm.world_size())?;
    // ANCHOR: softmax
    // Compute the softmax over all ranks' scores:
    // 1. every rank subtracts the same m, and divides by the same s;
    // 2. all numbers stay on the GPU, and the host does not wait;
    // 3. `number` and `of_all` are the only memory that it takes.
    todo!("Compute the softmax over all ranks' scores")
    // ANCHOR_END: softmax
}
