// mistake: each rank keeps the term of its own rows
// fails: tensor_forward::rows_add_up_to_the_whole_output
// says: this is the term of its own rows: the terms of all ranks must be summed

use std::ops::Range;

use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::Comm;
use lab::{Linear, Mlp, Weights};

pub fn column_shard(whole: &Weights, columns: Range<usize>) -> Weights {
    let rows = whole.weights.chunks_exact(whole.outputs);
    Weights {
        inputs: whole.inputs,
        outputs: columns.len(),
        weights: rows.flat_map(|row| &row[columns.clone()]).copied().collect(),
        bias: whole.bias[columns].to_vec(),
    }
}

pub fn row_shard(whole: &Weights, rows: Range<usize>) -> Weights {
    Weights {
        inputs: rows.len(),
        outputs: whole.outputs,
        weights: whole.weights[rows.start * whole.outputs..rows.end * whole.outputs].to_vec(),
        bias: whole.bias.clone(),
    }
}

pub fn column_parallel(
    shard: &Linear,
    input: &CudaView<f32>,
    output: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    shard.multiply(input, output)?;
    shard.add_bias(output)
}

pub fn row_parallel(
    _comm: &Comm,
    shard: &Linear,
    input: &CudaView<f32>,
    output: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    shard.multiply(input, output)?;
    shard.add_bias(output)
}

pub fn mlp(
    comm: &Comm,
    mlp: &mut Mlp,
    input: &CudaView<f32>,
    output: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    column_parallel(&mlp.first, input, &mut mlp.hidden.as_view_mut())?;
    mlp.relu()?;
    row_parallel(comm, &mlp.second, &mlp.hidden.as_view(), output)
}
