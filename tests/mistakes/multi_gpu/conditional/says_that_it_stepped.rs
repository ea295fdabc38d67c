// mistake: the step is skipped, and the answer is that it was made
// fails: conditional::an_overflow_on_any_rank_skips_the_step
// says: no parameter has changed, and `step` says that the step was made

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
    if any_rank(comm, overflowed)? {
        return Ok(true);
    }
    average_in_place(comm, gradient)?;
    kernels.sgd_step(&stream, parameters, gradient, learning_rate)?;
    Ok(true)
}
