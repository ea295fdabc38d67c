//! How long a communicator lives.
//!
//! To make one, all ranks meet, look at how their GPUs are connected, open those connections, and allocate buffers for
//! them. That takes far longer than most of what is sent afterwards. And dropping one is no quiet farewell: cudarc calls
//! `ncclCommAbort`, which ends what is still in flight.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};
use cudarc::nccl::{Comm, Id, ReduceOp};
use lab::Readable;

/// A rank before it has a communicator.
pub struct UnconnectedRank<'a> {
    /// Its number in the group, from 0.
    pub rank: usize,
    /// Ranks in the group.
    pub world_size: usize,
    /// What its communicators will work on.
    pub stream: Arc<CudaStream>,
    /// A new id at each call: the n-th call gives the same one to all ranks.
    pub next_id: &'a dyn Fn() -> anyhow::Result<Id>,
}

impl UnconnectedRank<'_> {
    /// Makes a communicator, with a new id. Returns when all ranks have called it.
    ///
    /// # Errors
    /// What NCCL answers.
    pub fn connect(&self) -> anyhow::Result<Comm> {
        self.stream.context().bind_to_thread()?;
        let id = (self.next_id)()?;
        Comm::from_rank(self.stream.clone(), self.rank, self.world_size, id).readable()
    }
}

/// Sums the tensor over all ranks, in place. Every rank must call it; returns at once. Module 02 is about such calls.
///
/// # Errors
/// What NCCL answers.
pub fn sum(comm: &Comm, tensor: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    comm.all_reduce_in_place(tensor, &ReduceOp::Sum).readable()?;
    Ok(())
}

/// Runs so many iterations with one communicator. In each of them `fill(iteration, tensors)` puts what this rank has into
/// the tensors, by the stream of `rank`, and then each tensor is summed over all ranks. When it returns, all of it is
/// done.
///
/// # Errors
/// Those of `fill`, and what NCCL and the driver answer.
pub fn run(
    rank: &UnconnectedRank,
    iterations: usize,
    tensors: &mut [CudaViewMut<f32>],
    mut fill: impl FnMut(usize, &mut [CudaViewMut<f32>]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // ANCHOR: run
    // Run all iterations, and connect once for all of them.
    // `fill` and `sum` return before their work is done. The communicator is dropped at the end of this function.
    let comm = rank.connect()?;
    for iteration in 0..iterations {
        fill(iteration, tensors)?;
        for tensor in tensors.iter_mut() {
            sum(&comm, tensor)?;
        }
    }
    Ok(rank.stream.synchronize()?)
    // ANCHOR_END: run
}

/// The same, as it should not be done: each iteration has a communicator of its own. The checks count them.
///
/// # Errors
/// As [`run`].
pub fn run_anew(
    rank: &UnconnectedRank,
    iterations: usize,
    tensors: &mut [CudaViewMut<f32>],
    mut fill: impl FnMut(usize, &mut [CudaViewMut<f32>]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    (0..iterations).try_for_each(|iteration| run(rank, 1, tensors, |_, tensors| fill(iteration, tensors)))
}
