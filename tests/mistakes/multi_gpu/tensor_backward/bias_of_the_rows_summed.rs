// mistake: the second layer's bias gets its gradient from every rank
// fails: tensor_backward::back_through_two_layers
// says: the gradient of the bias is wrong
// says: it is in it 2 times: every rank has the whole of it already

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
    Ok(())
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
    comm.all_reduce_in_place(&mut mlp.second.bias_gradient_mut(), &ReduceOp::Sum).readable()?;
    mlp.relu_gradient()?;
    column_backward(comm, &mut mlp.first, input, &mlp.hidden_gradient.as_view(), input_gradient)
}
