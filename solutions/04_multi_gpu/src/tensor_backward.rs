//! Tensor parallelism backwards: the gradients of layers whose weights lie on several GPUs.
//!
//! Backwards, a linear layer needs its input and the gradient of its output. From them come the gradients of its weights,
//! of its bias, and of its input, which is the output of the layer before. What is whole on the way forward is whole on the
//! way back, and what is cut is cut: the hidden units' gradients lie where the hidden units lie.

use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::{Linear, Mlp, Readable};

/// Backwards through a column-parallel layer. `input` is the whole input; `output_gradient` has this rank's columns alone.
/// Leaves the gradients of this rank's weights and biases in the shard, and that of the whole input, equal on every rank, in
/// `input_gradient`. Returns at once.
///
/// # Errors
/// What the driver and NCCL answer.
pub fn column_backward(
    comm: &Comm,
    shard: &mut Linear,
    input: &CudaView<f32>,
    output_gradient: &CudaView<f32>,
    input_gradient: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: column_backward
    // Compute all three gradients, and find out which of them takes more than this rank knows.
    // `shard.differentiate(input, output_gradient)` leaves the gradients of weights and biases in the shard, and
    // `shard.multiply_back(output_gradient, input_gradient)` computes `output_gradient · columnsᵀ`. The input goes into
    // the columns of every rank.
    shard.differentiate(input, output_gradient)?;
    shard.multiply_back(output_gradient, input_gradient)?;
    comm.all_reduce_in_place(input_gradient, &ReduceOp::Sum).readable()?;
    Ok(())
    // ANCHOR_END: column_backward
}

/// Backwards through a row-parallel layer. `input` has a column for each of this rank's rows; `output_gradient` is the whole
/// one, equal on every rank. Leaves the gradients of this rank's weights and of the bias in the shard, and that of this
/// rank's part of the input in `input_gradient`. Returns at once.
///
/// # Errors
/// What the driver answers.
pub fn row_backward(
    shard: &mut Linear,
    input: &CudaView<f32>,
    output_gradient: &CudaView<f32>,
    input_gradient: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: row_backward
    // Compute all three gradients.
    // This rank's rows are the only ones that its part of the input goes into.
    shard.differentiate(input, output_gradient)?;
    shard.multiply_back(output_gradient, input_gradient)
    // ANCHOR_END: row_backward
}

/// Backwards through a column-parallel layer, ReLU, and a row-parallel layer, with one collective. `mlp.hidden` holds this
/// rank's hidden units from the forward pass, `mlp.hidden_gradient` gets their gradient. Returns at once.
///
/// # Errors
/// What the driver and NCCL answer.
pub fn mlp_backward(
    comm: &Comm,
    mlp: &mut Mlp,
    input: &CudaView<f32>,
    output_gradient: &CudaView<f32>,
    input_gradient: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: mlp_backward
    // Go back through both layers, the last one first.
    // `mlp.relu_gradient()` goes back through ReLU: it works on `mlp.hidden_gradient`, and takes `mlp.hidden` to do so.
    let mut hidden_gradient = mlp.hidden_gradient.as_view_mut();
    row_backward(&mut mlp.second, &mlp.hidden.as_view(), output_gradient, &mut hidden_gradient)?;
    mlp.relu_gradient()?;
    column_backward(comm, &mut mlp.first, input, &mlp.hidden_gradient.as_view(), input_gradient)
    // ANCHOR_END: mlp_backward
}
