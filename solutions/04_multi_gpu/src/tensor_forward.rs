//! Tensor parallelism: a layer that lies on several GPUs, a part of its weights on each.
//!
//! A linear layer computes `input · weights + bias`; `weights` has a row for each input and a column for each output. It
//! can be cut in two ways. A rank with some of the *columns* needs the whole input, and gets some of the outputs. A rank with
//! some of the *rows* needs some of the inputs, and gets one term of a sum, for all of the outputs. Behind one another they fit: what a
//! column-parallel layer leaves on a rank is what a row-parallel one needs there.

use std::ops::Range;

use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::{Linear, Mlp, Readable, Weights};

/// The part of a layer with these of its columns: they are its outputs. Each output's bias goes with it.
pub fn column_shard(whole: &Weights, columns: Range<usize>) -> Weights {
    // ANCHOR: column_shard
    // Take these columns of the weights, and their biases.
    // `whole.weights` is row-major: the `whole.outputs` weights of input 0, then those of input 1, and so on.
    let rows = whole.weights.chunks_exact(whole.outputs);
    Weights {
        inputs: whole.inputs,
        outputs: columns.len(),
        weights: rows.flat_map(|row| &row[columns.clone()]).copied().collect(),
        bias: whole.bias[columns].to_vec(),
    }
    // ANCHOR_END: column_shard
}

/// The part of a layer with these of its rows: they are its inputs. It has the whole bias, as every such part has.
pub fn row_shard(whole: &Weights, rows: Range<usize>) -> Weights {
    // ANCHOR: row_shard
    // Take these rows of the weights, and the whole bias.
    // Where does the first of these rows start in `whole.weights`, and where does the last one end?
    Weights {
        inputs: rows.len(),
        outputs: whole.outputs,
        weights: whole.weights[rows.start * whole.outputs..rows.end * whole.outputs].to_vec(),
        bias: whole.bias.clone(),
    }
    // ANCHOR_END: row_shard
}

/// The outputs of this rank's columns: `input` is the whole one, `output` has a column for each of the shard's. Returns at
/// once.
///
/// # Errors
/// What the driver answers.
pub fn column_parallel(
    shard: &Linear,
    input: &CudaView<f32>,
    output: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: column_parallel
    // Compute `input · columns + bias`.
    // In `lab`'s terms: `shard.multiply(input, output)`, `shard.add_bias(output)`. Has this rank to hear of the others?
    shard.multiply(input, output)?;
    shard.add_bias(output)
    // ANCHOR_END: column_parallel
}

/// The whole output, on every rank: `input` has a column for each of this rank's rows, and every rank calls it with those of its
/// own. Returns at once.
///
/// # Errors
/// What the driver and NCCL answer.
pub fn row_parallel(
    comm: &Comm,
    shard: &Linear,
    input: &CudaView<f32>,
    output: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: row_parallel
    // Compute `input · rows` on each rank, make the layer's product of these, and add the bias.
    // Every rank has the bias, but the layer has it once.
    shard.multiply(input, output)?;
    comm.all_reduce_in_place(output, &ReduceOp::Sum).readable()?;
    shard.add_bias(output)
    // ANCHOR_END: row_parallel
}

/// Two layers with ReLU between them, the first column-parallel and the second row-parallel: from the whole input to the
/// whole output, on every rank, with one collective. Leaves this rank's hidden units in `mlp.hidden`. Returns at once.
///
/// # Errors
/// What the driver and NCCL answer.
pub fn mlp(
    comm: &Comm,
    mlp: &mut Mlp,
    input: &CudaView<f32>,
    output: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: mlp
    // Put the two layers behind one another: the hidden units go from the first to the second where they are.
    // `mlp.first` and `mlp.second` are this rank's parts, `mlp.hidden` is the buffer between them, which `as_view()` and
    // `as_view_mut()` lend; `mlp.relu()` works on it.
    column_parallel(&mlp.first, input, &mut mlp.hidden.as_view_mut())?;
    mlp.relu()?;
    row_parallel(comm, &mlp.second, &mlp.hidden.as_view(), output)
    // ANCHOR_END: mlp
}
