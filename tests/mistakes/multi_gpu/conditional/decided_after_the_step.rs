// mistake: the step is made, and then it is decided
// fails: conditional::an_overflow_on_any_rank_skips_the_step
// says: parameters are no numbers any more: the step was made before it was decided

use collectives::all_reduce::average_in_place;
use cudarc::driver::CudaViewMut;
use cudarc::nccl::{Comm, ReduceOp};
use lab::{Kernels, Readable};

pub fn any_rank(comm: &Comm, yes: bool) -> anyhow::Result<bool> {
    let stream = comm.stream();
    let mut answer = stream.clone_htod(&[u32::from(yes)])?;
    comm.all_reduce_in_place(&mut answer, &ReduceOp::Max).readable()?;
    let answer = stream.clone_dtoh(&answer)?;
    stream.synchronize()?;
    Ok(answer != [0])
}

pub fn step(
    comm: &Comm,
    kernels: &Kernels,
    parameters: &mut CudaViewMut<f32>,
    gradient: &mut CudaViewMut<f32>,
    learning_rate: f32,
) -> anyhow::Result<bool> {
    let stream = comm.stream();
    let mut count = stream.alloc_zeros::<u32>(1)?;
    kernels.count_not_finite(&stream, &mut count, gradient)?;
    let overflowed = stream.clone_dtoh(&count)? != [0];
    average_in_place(comm, gradient)?;
    kernels.sgd_step(&stream, parameters, gradient, learning_rate)?;
    Ok(!any_rank(comm, overflowed)?)
}
