// mistake: the norms of the parts are summed
// fails: global_norm::it_is_the_norm_of_all_parts
// says: this is the sum of the parts' norms: norms can't be summed, their squares can

use collectives::all_gather::all_gather;
use collectives::all_reduce::average_in_place;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::{Kernels, Readable};

pub fn global_norm(comm: &Comm, kernels: &Kernels, part: &CudaView<f32>) -> anyhow::Result<f32> {
    let stream = comm.stream();
    let mut number = stream.alloc_zeros::<f32>(1)?;
    kernels.sum_of_squares(&stream, &mut number, part)?;
    let mut number = stream.clone_htod(&[stream.clone_dtoh(&number)?[0].sqrt()])?;
    comm.all_reduce_in_place(&mut number, &ReduceOp::Sum).readable()?;
    Ok(stream.clone_dtoh(&number)?[0])
}

pub fn average_and_clip(
    comm: &Comm,
    kernels: &Kernels,
    gradient: &mut CudaViewMut<f32>,
    max_norm: f32,
) -> anyhow::Result<f32> {
    let stream = comm.stream();
    let mut number = stream.alloc_zeros::<f32>(1)?;
    average_in_place(comm, gradient)?;
    kernels.sum_of_squares(&stream, &mut number, gradient)?;
    let norm = stream.clone_dtoh(&number)?[0].sqrt();
    if norm > max_norm {
        kernels.scale(&stream, gradient, max_norm / norm)?;
    }
    Ok(norm)
}

pub fn softmax(comm: &Comm, kernels: &Kernels, part: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let stream = comm.stream();
    let mut number = stream.alloc_zeros::<f32>(1)?;
    let mut of_all = stream.alloc_zeros::<f32>(comm.world_size())?;
    kernels.maximum(&stream, &mut number, part)?;
    all_gather(comm, &number.as_view(), &mut of_all.as_view_mut())?;
    kernels.maximum(&stream, &mut number, &of_all)?;
    kernels.exp_minus(&stream, part, &number)?;
    kernels.sum(&stream, &mut number, part)?;
    comm.all_reduce_in_place(&mut number, &ReduceOp::Sum).readable()?;
    kernels.divide(&stream, part, &number)
}
