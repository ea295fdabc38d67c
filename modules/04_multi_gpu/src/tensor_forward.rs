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
    todo!("Take these columns of the weights, and their biases")
    // ANCHOR_END: column_shard
}

/// The part of a layer with these of its rows: they are its inputs. It has the whole bias, as every such part has.
pub fn row_shard(whole: &Weights, rows: Range<usize>) -> Weights {
    // ANCHOR: row_shard
    // Take these rows of the weights, and the whole bias.
    // Where does the first of these rows start in `whole.weights`, and where does the last one end?
    todo!("Take these rows of the weights, and the whole bias")
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
    todo!("Compute `input · columns + bias`")
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
    todo!("Compute `input · rows` on each rank, make the layer's product of these, and add the bias")
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
    todo!("Put the two layers behind one another")
    // ANCHOR_END: mlp
}
