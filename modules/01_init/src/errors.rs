//! Stops all ranks when one rank fails.
//!
//! A rank that returns early doesn't stop the others: they reach the next collective, and wait there. So the ranks must
//! decide together whether to continue.

use anyhow::ensure;
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

/// Returns the ranks that have failed, in ascending order, on every rank. Every rank must call it; it returns once all of them have.
///
/// # Errors
/// Fails if an NCCL or driver call fails.
pub fn failed_ranks(comm: &Comm, failed: bool) -> anyhow::Result<Vec<usize>> {
    let stream = comm.stream();
    let mut marks = vec![0_u32; comm.world_size()];
    marks[comm.rank()] = failed.into();
    // Take the maximum over all ranks, element by element, so that every rank sees every mark.
    let mut on_gpu = stream.clone_htod(&marks)?;
    comm.all_reduce_in_place(&mut on_gpu, &ReduceOp::Max).readable()?;
    let marks = stream.clone_dtoh(&on_gpu)?;
    stream.synchronize()?;
    Ok((0..marks.len()).filter(|&rank| marks[rank] != 0).collect())
}

/// Prepares on every rank, and then communicates on all ranks or on none. Every rank must call it.
///
/// `prepare` involves only this rank: it may read a file, allocate memory, or validate its input. `communicate`
/// receives what `prepare` returned, and calls collectives. If `prepare` fails, the communicator is still usable.
///
/// # Errors
/// Fails if `prepare` fails on any rank, or if `communicate`, an NCCL call, or a driver call fails on this one. If both `prepare`
/// and [`failed_ranks`] fail, either error may be returned.
pub fn together<T, R>(
    comm: &Comm,
    prepare: impl FnOnce() -> anyhow::Result<T>,
    communicate: impl FnOnce(T) -> anyhow::Result<R>,
) -> anyhow::Result<R> {
    // ANCHOR: together
    // Prepare on this rank, and communicate only if every rank prepared successfully:
    // 1. if `prepare` failed on any rank, no rank calls `communicate`, and every rank returns an error;
    // 2. a rank on which it failed returns its own error;
    // 3. every other rank returns an error that names all ranks on which it failed;
    // 4. each rank calls `failed_ranks` once, and no rank waits for a rank that has left;
    // 5. a prepared value that isn't used is dropped.
    todo!("Prepare on this rank, and communicate only if every rank prepared successfully")
    // ANCHOR_END: together
}
