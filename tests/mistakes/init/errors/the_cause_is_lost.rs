// mistake: every rank says who failed, and none says why
// fails: errors::a_failed_rank_keeps_its_own_error
// says: failed, as `the disk of machine 700 is full`: its error must say so

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
    let failed = failed_ranks(comm, prepared.is_err())?;
    ensure!(failed.is_empty(), "not begun, because ranks {failed:?} have failed");
    communicate(prepared?)
}
