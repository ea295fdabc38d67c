// mistake: the sum is over the hidden units' gradients, not over the input's
// fails: tensor_backward::back_through_two_layers
// says: mlp.hidden_gradient is wrong
// says: the ranks' gradients were summed on the wrong side: each rank has hidden units of its own

use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::{Linear, Mlp, Readable};

pub fn column_backward(
    _comm: &Comm,
    shard: &mut Linear,
    input: &CudaView<f32>,
    output_gradient: &CudaView<f32>,
    input_gradient: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    shard.differentiate(input, output_gradient)?;
    shard.multiply_back(output_gradient, input_gradient)?;
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
    comm.all_reduce_in_place(&mut hidden_gradient, &ReduceOp::Sum).readable()?;
    mlp.relu_gradient()?;
    column_backward(comm, &mut mlp.first, input, &mlp.hidden_gradient.as_view(), input_gradient)
}
