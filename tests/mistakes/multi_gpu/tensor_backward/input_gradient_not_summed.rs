// mistake: each rank hands back what its own columns give
// fails: tensor_backward::back_through_columns
// says: this is what its own columns give back: the input goes into the columns of all ranks

use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::Comm;
use lab::{Linear, Mlp};

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
    mlp.relu_gradient()?;
    column_backward(comm, &mut mlp.first, input, &mlp.hidden_gradient.as_view(), input_gradient)
}
