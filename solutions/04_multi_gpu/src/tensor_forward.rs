//! Tensor parallelism, forward: a layer that is spread over several GPUs, each with a part of its weights.
//!
//! A linear layer computes `input · weights + bias`. Its weights have a row for each input and a column for each output.

use std::ops::Range;

use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::{Linear, Mlp, Readable, Weights};

/// Returns the part of a layer that consists of these columns. Each column is an output.
pub fn column_shard(whole: &Weights, columns: Range<usize>) -> Weights {
    // ANCHOR: column_shard
    // Take these columns of the weights:
    // 1. the part is a complete layer in its own right, with all inputs and these outputs;
    // 2. its weights are row-major, like the original layer's;
    // 3. each output's bias stays with its column.
    let rows = whole.weights.chunks_exact(whole.outputs);
    Weights {
        inputs: whole.inputs,
        outputs: columns.len(),
        weights: rows.flat_map(|row| &row[columns.clone()]).copied().collect(),
        bias: whole.bias[columns].to_vec(),
    }
    // ANCHOR_END: column_shard
}

/// Returns the part of a layer that consists of these rows. Each row is an input.
pub fn row_shard(whole: &Weights, rows: Range<usize>) -> Weights {
    // ANCHOR: row_shard
    // Take these rows of the weights:
    // 1. the part is a complete layer in its own right, with these inputs and all outputs;
    // 2. its weights are row-major, like the original layer's;
    // 3. it has the entire bias.
    Weights {
        inputs: rows.len(),
        outputs: whole.outputs,
        weights: whole.weights[rows.start * whole.outputs..rows.end * whole.outputs].to_vec(),
        bias: whole.bias.clone(),
    }
    // ANCHOR_END: row_shard
}

/// Computes the outputs of this rank's columns. `input` is the complete input, and `output` has a column for each of
/// the shard's outputs. Returns without waiting for the GPU.
///
/// # Errors
/// Returns any error from the driver.
pub fn column_parallel(
    shard: &Linear,
    input: &CudaView<f32>,
    output: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: column_parallel
    // Compute this rank's outputs of the layer:
    // 1. `output` is what one GPU would compute in these columns, including the bias;
    // 2. the host does not wait for the GPU.
    shard.multiply(input, output)?;
    shard.add_bias(output)
    // ANCHOR_END: column_parallel
}

/// Computes the complete output on every rank. `input` has a column for each of this rank's rows. Every rank must call
/// it, with its own input. Returns without waiting for the GPU.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn row_parallel(
    comm: &Comm,
    shard: &Linear,
    input: &CudaView<f32>,
    output: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: row_parallel
    // Compute the complete output from the ranks' rows:
    // 1. on every rank, `output` is what one GPU would compute;
    // 2. every rank's shard has the bias, but it must be added only once;
    // 3. one collective is enough, and the host does not wait for the GPU.
    shard.multiply(input, output)?;
    comm.all_reduce_in_place(output, &ReduceOp::Sum).readable()?;
    shard.add_bias(output)
    // ANCHOR_END: row_parallel
}

/// Runs two layers with ReLU between them: the first is column-parallel, and the second is row-parallel. The input and the
/// output are complete on every rank. Leaves this rank's hidden units in `mlp.hidden`. Returns without waiting for the GPU.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn mlp(
    comm: &Comm,
    mlp: &mut Mlp,
    input: &CudaView<f32>,
    output: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: mlp
    // Run the two layers:
    // 1. on every rank, `output` is what one GPU would compute;
    // 2. `mlp.hidden` contains this rank's hidden units after ReLU;
    // 3. both layers together take one collective.
    column_parallel(&mlp.first, input, &mut mlp.hidden.as_view_mut())?;
    mlp.relu()?;
    row_parallel(comm, &mlp.second, &mlp.hidden.as_view(), output)
    // ANCHOR_END: mlp
}
