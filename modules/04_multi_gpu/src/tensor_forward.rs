//! Tensor parallelism, forward: a layer that is spread over several GPUs, with a part of its weights on each.
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
    // 1. the part is a whole layer of its own, with all inputs and these outputs;
    // 2. its weights are row-major, like those of the whole;
    // 3. the bias of an output goes with its column.
    todo!("Take these columns of the weights")
    // ANCHOR_END: column_shard
}

/// Returns the part of a layer that consists of these rows. Each row is an input.
pub fn row_shard(whole: &Weights, rows: Range<usize>) -> Weights {
    // ANCHOR: row_shard
    // Take these rows of the weights:
    // 1. the part is a whole layer of its own, with these inputs and all outputs;
    // 2. its weights are row-major, like those of the whole;
    // 3. it has the whole bias.
    todo!("Take these rows of the weights")
    // ANCHOR_END: row_shard
}

/// Computes the outputs of this rank's columns. `input` is the whole input, and `output` has a column for each output of the shard.
/// Returns without waiting for the GPU.
///
/// # Errors
/// Returns the errors of the driver.
pub fn column_parallel(
    shard: &Linear,
    input: &CudaView<f32>,
    output: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: column_parallel
    // Compute this rank's outputs of the layer:
    // 1. `output` is what one GPU would have in these columns, with the bias;
    // 2. the host does not wait for the GPU.
    todo!("Compute this rank's outputs of the layer")
    // ANCHOR_END: column_parallel
}

/// Computes the whole output, on every rank. `input` has a column for each of this rank's rows. Every rank must call it, with its
/// own input. Returns without waiting for the GPU.
///
/// # Errors
/// Returns the errors of the driver and of NCCL.
pub fn row_parallel(
    comm: &Comm,
    shard: &Linear,
    input: &CudaView<f32>,
    output: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: row_parallel
    // Compute the whole output from the ranks' rows:
    // 1. `output` is what one GPU would have, on every rank;
    // 2. every rank's shard has the bias, and the layer has it once;
    // 3. one collective, and the host does not wait for the GPU.
    todo!("Compute the whole output from the ranks' rows")
    // ANCHOR_END: row_parallel
}

/// Runs two layers with ReLU between them: the first is column-parallel, and the second is row-parallel. Input and output are
/// whole, on every rank. Leaves this rank's hidden units in `mlp.hidden`. Returns without waiting for the GPU.
///
/// # Errors
/// Returns the errors of the driver and of NCCL.
pub fn mlp(
    comm: &Comm,
    mlp: &mut Mlp,
    input: &CudaView<f32>,
    output: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: mlp
    // Run the two layers:
    // 1. `output` is what one GPU would have, on every rank;
    // 2. `mlp.hidden` has this rank's hidden units after ReLU;
    // 3. one collective for both layers.
    todo!("Run the two layers")
    // ANCHOR_END: mlp
}
