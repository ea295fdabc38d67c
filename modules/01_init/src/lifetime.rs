//! Keeps one communicator for all iterations.
//!
//! Creating a communicator takes far longer than most collectives. Dropping one calls `ncclCommAbort`, which ends everything still
//! in flight.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};
use cudarc::nccl::{Comm, Id, ReduceOp};
use lab::Readable;

/// A rank that has no communicator yet.
pub struct UnconnectedRank<'a> {
    /// The number in the group, from 0.
    pub rank: usize,
    /// The number of ranks in the group.
    pub world_size: usize,
    /// The stream on which the rank's communicators work.
    pub stream: Arc<CudaStream>,
    /// Returns a new id at each call. The n-th call returns the same id on all ranks.
    pub next_id: &'a dyn Fn() -> anyhow::Result<Id>,
}

impl UnconnectedRank<'_> {
    /// Creates a communicator with a new id. Returns once all ranks have called it.
    ///
    /// # Errors
    /// Fails if NCCL fails.
    pub fn connect(&self) -> anyhow::Result<Comm> {
        self.stream.context().bind_to_thread()?;
        let id = (self.next_id)()?;
        Comm::from_rank(self.stream.clone(), self.rank, self.world_size, id).readable()
    }
}

/// Sums the tensor over all ranks, in place. Every rank must call it, and it returns at once. Module 02 is about such calls.
///
/// # Errors
/// Fails if NCCL fails.
pub fn sum(comm: &Comm, tensor: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    comm.all_reduce_in_place(tensor, &ReduceOp::Sum).readable()?;
    Ok(())
}

/// Runs a number of iterations. In each, `fill(iteration, tensors)` enqueues this rank's values on the stream of `rank`. Then each
/// tensor is summed over all ranks.
///
/// # Errors
/// Fails if `fill`, NCCL, or the driver fails.
pub fn run(
    rank: &UnconnectedRank,
    iterations: usize,
    tensors: &mut [CudaViewMut<f32>],
    mut fill: impl FnMut(usize, &mut [CudaViewMut<f32>]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // ANCHOR: run
    // Run all iterations:
    // 1. in each, `fill` is called once, and after it every tensor is summed;
    // 2. each rank creates one communicator in total;
    // 3. when the call returns, all sums are done, but the host does not wait in every iteration.
    todo!("Run all iterations")
    // ANCHOR_END: run
}

/// Does the same with a new communicator for each iteration. Don't write this; the checks count its communicators.
///
/// # Errors
/// Fails as [`run`] does.
pub fn run_anew(
    rank: &UnconnectedRank,
    iterations: usize,
    tensors: &mut [CudaViewMut<f32>],
    mut fill: impl FnMut(usize, &mut [CudaViewMut<f32>]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    (0..iterations).try_for_each(|iteration| run(rank, 1, tensors, |_, tensors| fill(iteration, tensors)))
}
