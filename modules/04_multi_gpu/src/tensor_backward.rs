//! Tensor parallelism, backward: the gradients of layers whose weights are spread over several GPUs.
//!
//! A linear layer receives the gradient of its output, and computes the gradients of its weights, its bias, and its input.

use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::{Linear, Mlp, Readable};

/// Computes the backward pass of a column-parallel layer. `input` is the complete input, and `output_gradient` has only
/// this rank's columns. Leaves the gradients of this rank's weights and biases in the shard, and the gradient of the
/// complete input, equal on every rank, in `input_gradient`. Returns without waiting for the GPU.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn column_backward(
    comm: &Comm,
    shard: &mut Linear,
    input: &CudaView<f32>,
    output_gradient: &CudaView<f32>,
    input_gradient: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: column_backward
    // Compute the three gradients of the layer:
    // 1. each is what one GPU with the entire layer would compute, or this rank's part of it;
    // 2. a gradient needs a collective only if this rank can't compute it alone;
    // 3. the host does not wait for the GPU.
    todo!("Compute the three gradients of the layer")
    // ANCHOR_END: column_backward
}

/// Computes the backward pass of a row-parallel layer. `input` has a column for each of this rank's rows.
/// `output_gradient` is complete, and equal on every rank. Leaves the gradients of this rank's weights and of the bias in
/// the shard, and the gradient of this rank's part of the input in `input_gradient`. Returns without waiting for the GPU.
///
/// # Errors
/// Returns any error from the driver.
pub fn row_backward(
    shard: &mut Linear,
    input: &CudaView<f32>,
    output_gradient: &CudaView<f32>,
    input_gradient: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: row_backward
    // Compute the three gradients of the layer:
    // 1. each is what one GPU with the entire layer would compute, or this rank's part of it;
    // 2. the host does not wait for the GPU.
    todo!("Compute the three gradients of the layer")
    // ANCHOR_END: row_backward
}

/// Computes the backward pass of a row-parallel layer, ReLU, and a column-parallel layer. `mlp.hidden` contains this rank's
/// hidden units from the forward pass, and `mlp.hidden_gradient` receives their gradient. Returns without waiting for the GPU.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn mlp_backward(
    comm: &Comm,
    mlp: &mut Mlp,
    input: &CudaView<f32>,
    output_gradient: &CudaView<f32>,
    input_gradient: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: mlp_backward
    // Go back through both layers:
    // 1. every gradient is what one GPU would compute, or this rank's part of it;
    // 2. `mlp.hidden_gradient` receives the gradient of the hidden units before ReLU;
    // 3. both layers together take one collective.
    todo!("Go back through both layers")
    // ANCHOR_END: mlp_backward
}
