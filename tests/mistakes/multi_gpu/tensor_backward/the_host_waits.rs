// mistake: the host waits for the sum of the input's gradient
// fails: tensor_backward::no_layer_waits_on_the_host
// says: does it wait on the host?

use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::{Linear, Mlp, Readable};

pub fn column_backward(
    comm: &Comm,
    shard: &mut Linear,
    input: &CudaView<f32>,
    output_gradient: &CudaView<f32>,
    input_gradient: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    shard.differentiate(input, output_gradient)?;
    shard.multiply_back(output_gradient, input_gradient)?;
    comm.all_reduce_in_place(input_gradient, &ReduceOp::Sum).readable()?;
    Ok(comm.stream().synchronize()?)
}

pub fn row_backward(
    shard: &mut Linear,
    input: &CudaView<f32>,
    output_gradient: &CudaView<f32>,
    input_gradient: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    shard.differentiate(input, output_gradient)?;
    shard.multiply_back(output_gradient, input_gradient)
}

pub fn mlp_backward(
    comm: &Comm,
    mlp: &mut Mlp,
    input: &CudaView<f32>,
    output_gradient: &CudaView<f32>,
    input_gradient: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    let mut hidden_gradient = mlp.hidden_gradient.as_view_mut();
    row_backward(&mut mlp.second, &mlp.hidden.as_view(), output_gradient, &mut hidden_gradient)?;
    mlp.relu_gradient()?;
    column_backward(comm, &mut mlp.first, input, &mlp.hidden_gradient.as_view(), input_gradient)
}
