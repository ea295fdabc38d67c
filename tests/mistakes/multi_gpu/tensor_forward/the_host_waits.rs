// mistake: the host waits for the sum before it adds the bias
// fails: tensor_forward::no_layer_waits_on_the_host
// says: does it wait on the host?

use std::ops::Range;

use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::{Linear, Mlp, Readable, Weights};

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
    comm: &Comm,
    shard: &Linear,
    input: &CudaView<f32>,
    output: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    shard.multiply(input, output)?;
    comm.all_reduce_in_place(output, &ReduceOp::Sum).readable()?;
    comm.stream().synchronize()?;
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
