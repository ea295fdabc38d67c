// mistake: the sums come behind the loop, once for all iterations
// fails: lifetime::every_iteration_is_summed
// says: it was summed once, and not in each iteration

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};
use cudarc::nccl::{Comm, Id, ReduceOp};
use lab::Readable;

pub struct UnconnectedRank<'a> {
    pub rank: usize,
    pub world_size: usize,
    pub stream: Arc<CudaStream>,
    pub next_id: &'a dyn Fn() -> anyhow::Result<Id>,
}

impl UnconnectedRank<'_> {
    pub fn connect(&self) -> anyhow::Result<Comm> {
        self.stream.context().bind_to_thread()?;
        let id = (self.next_id)()?;
        Comm::from_rank(self.stream.clone(), self.rank, self.world_size, id).readable()
    }
}

pub fn sum(comm: &Comm, tensor: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    comm.all_reduce_in_place(tensor, &ReduceOp::Sum).readable()?;
    Ok(())
}

pub fn run(
    rank: &UnconnectedRank,
    iterations: usize,
    tensors: &mut [CudaViewMut<f32>],
    mut fill: impl FnMut(usize, &mut [CudaViewMut<f32>]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let comm = rank.connect()?;
    for iteration in 0..iterations {
        fill(iteration, tensors)?;
    }
    for tensor in tensors.iter_mut() {
        sum(&comm, tensor)?;
    }
    Ok(rank.stream.synchronize()?)
}

pub fn run_anew(
    rank: &UnconnectedRank,
    iterations: usize,
    tensors: &mut [CudaViewMut<f32>],
    mut fill: impl FnMut(usize, &mut [CudaViewMut<f32>]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    (0..iterations).try_for_each(|iteration| run(rank, 1, tensors, |_, tensors| fill(iteration, tensors)))
}
