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
    /// The rank's number in the group, from 0.
    pub rank: usize,
    /// The number of ranks in the group.
    pub world_size: usize,
    /// The stream that the rank's communicators use.
    pub stream: Arc<CudaStream>,
    /// Returns a new id on each call. The nth call returns the same id on all ranks.
    pub next_id: &'a dyn Fn() -> anyhow::Result<Id>,
}

impl UnconnectedRank<'_> {
    /// Creates a communicator with a new id. Returns once all ranks have called it.
    ///
    /// # Errors
    /// Fails if an NCCL call fails.
    pub fn connect(&self) -> anyhow::Result<Comm> {
        self.stream.context().bind_to_thread()?;
        let id = (self.next_id)()?;
        Comm::from_rank(self.stream.clone(), self.rank, self.world_size, id).readable()
    }
}

/// Sums the tensor over all ranks, in place. Every rank must call it; it returns immediately. Module 02 covers such calls.
///
/// # Errors
/// Fails if an NCCL call fails.
pub fn sum(comm: &Comm, tensor: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    comm.all_reduce_in_place(tensor, &ReduceOp::Sum).readable()?;
    Ok(())
}

/// Runs the given number of iterations. In each iteration, `fill(iteration, tensors)` writes this rank's values into
/// the tensors, on the stream of `rank`. Then each tensor is summed over all ranks.
///
/// # Errors
/// Fails if `fill`, an NCCL call, or a driver call fails.
pub fn run(
    rank: &UnconnectedRank,
    iterations: usize,
    tensors: &mut [CudaViewMut<f32>],
    mut fill: impl FnMut(usize, &mut [CudaViewMut<f32>]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // ANCHOR: run
    // Run all iterations:
    // 1. in each, call `fill` once, and then sum every tensor;
    // 2. each rank creates only one communicator in total;
    // 3. all sums are done when the call returns `Ok`, but the host does not wait in every iteration.
    todo!("Run all iterations")
    // ANCHOR_END: run
}

/// Creates a new communicator for each iteration. It exists only for the checks, which count its communicators.
///
/// # Errors
/// Fails like [`run`].
pub fn run_anew(
    rank: &UnconnectedRank,
    iterations: usize,
    tensors: &mut [CudaViewMut<f32>],
    mut fill: impl FnMut(usize, &mut [CudaViewMut<f32>]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    (0..iterations).try_for_each(|iteration| run(rank, 1, tensors, |_, tensors| fill(iteration, tensors)))
}
