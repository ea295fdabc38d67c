// mistake: only a failure on rank 0 is told to the others
// fails: errors::every_rank_learns_who_failed
// says: waited for others in vain, where preparing failed on ranks [1]
// says: rank 1 never called it

use anyhow::ensure;
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

pub fn failed_ranks(comm: &Comm, failed: bool) -> anyhow::Result<Vec<usize>> {
    let stream = comm.stream();
    let mut marks = vec![0_u32; comm.world_size()];
    marks[comm.rank()] = failed.into();
    let mut on_gpu = stream.clone_htod(&marks)?;
    comm.all_reduce_in_place(&mut on_gpu, &ReduceOp::Max).readable()?;
    let marks = stream.clone_dtoh(&on_gpu)?;
    stream.synchronize()?;
    Ok((0..marks.len()).filter(|&rank| marks[rank] != 0).collect())
}

pub fn together<T, R>(
    comm: &Comm,
    prepare: impl FnOnce() -> anyhow::Result<T>,
    communicate: impl FnOnce(T) -> anyhow::Result<R>,
) -> anyhow::Result<R> {
    let prepared = prepare();
    let failed = failed_ranks(comm, comm.rank() == 0 && prepared.is_err())?;
    let prepared = prepared?;
    ensure!(failed.is_empty(), "not begun, because ranks {failed:?} have failed");
    communicate(prepared)
}
