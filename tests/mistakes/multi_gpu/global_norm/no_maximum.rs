// mistake: nothing is taken off the scores
// fails: global_norm::softmax_is_over_all_parts
// says: take the largest score off before

use collectives::all_reduce::average_in_place;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::{Kernels, Readable};

pub fn global_norm(comm: &Comm, kernels: &Kernels, part: &CudaView<f32>) -> anyhow::Result<f32> {
    let stream = comm.stream();
    let mut number = stream.alloc_zeros::<f32>(1)?;
    kernels.sum_of_squares(&stream, &mut number, part)?;
    comm.all_reduce_in_place(&mut number, &ReduceOp::Sum).readable()?;
    Ok(stream.clone_dtoh(&number)?[0].sqrt())
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
    kernels.exp_minus(&stream, part, &number)?;
    kernels.sum(&stream, &mut number, part)?;
    comm.all_reduce_in_place(&mut number, &ReduceOp::Sum).readable()?;
    kernels.divide(&stream, part, &number)
}
