//! What to do when one rank fails.
//!
//! A rank that leaves takes nobody with it: the others go on to the next collective, and wait there for it. So a rank that
//! fails stays for one more collective, in which the ranks tell each other how they are. Then all go on, or none does.

use anyhow::ensure;
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

/// Tells every rank which ranks have failed, in ascending order. Every rank must call it; it returns when all have.
///
/// # Errors
/// What NCCL and the driver answer.
pub fn failed_ranks(comm: &Comm, failed: bool) -> anyhow::Result<Vec<usize>> {
    let stream = comm.stream();
    let mut marks = vec![0_u32; comm.world_size()];
    marks[comm.rank()] = failed.into();
    // The largest of all ranks' marks, in each place: what one rank has marked, all have.
    let mut on_gpu = stream.clone_htod(&marks)?;
    comm.all_reduce_in_place(&mut on_gpu, &ReduceOp::Max).readable()?;
    let marks = stream.clone_dtoh(&on_gpu)?;
    stream.synchronize()?;
    Ok((0..marks.len()).filter(|&rank| marks[rank] != 0).collect())
}

/// Prepares on every rank, and then communicates on every rank; but on none if preparing failed on any of them.
///
/// `prepare` concerns this rank alone: it reads a file, allocates, looks at its input. `communicate` gets what it returned,
/// and makes collective calls, which need all ranks. After an error of `prepare` the communicator is as good as before.
///
/// # Errors
/// Preparing failed: on a rank where it did, its own error; on all others, one that says which ranks failed. Or the error of
/// `communicate`; or what NCCL and the driver answer.
pub fn together<T, R>(
    comm: &Comm,
    prepare: impl FnOnce() -> anyhow::Result<T>,
    communicate: impl FnOnce(T) -> anyhow::Result<R>,
) -> anyhow::Result<R> {
    // ANCHOR: together
    // Prepare, tell the other ranks how it went, and communicate only if all are ready.
    // `failed_ranks` is a collective itself: who has to call it?
    todo!("Prepare, tell the other ranks how it went, and communicate only if all are ready")
    // ANCHOR_END: together
}
