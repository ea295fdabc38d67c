// mistake: the host waits until all parts are there
// fails: all_to_all::no_call_waits_on_the_host
// says: does it wait on the host?

use std::ops::Range;

use anyhow::{Context, ensure};
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, group_end, group_start};
use lab::Readable;

fn parts(comm: &Comm, whole: usize) -> impl Iterator<Item = (i32, Range<usize>)> {
    let len = whole / comm.world_size();
    (0..comm.world_size()).map(move |rank| (rank as i32, rank * len..(rank + 1) * len))
}

fn of_root<T>(comm: &Comm, root: usize, whole: Option<T>) -> anyhow::Result<Option<T>> {
    match comm.rank() == root {
        true => Ok(Some(whole.with_context(|| format!("rank {root} is the root, and has no whole"))?)),
        false => Ok(None),
    }
}

fn check_lengths(comm: &Comm, whole: usize, part: usize) -> anyhow::Result<()> {
    let world_size = comm.world_size();
    ensure!(
        whole == part * world_size,
        "the whole has {whole} elements, but {world_size} parts of {part} have {}",
        part * world_size
    );
    Ok(())
}

pub fn scatter(
    comm: &Comm,
    whole: Option<&CudaView<f32>>,
    part: &mut CudaViewMut<f32>,
    root: usize,
) -> anyhow::Result<()> {
    let whole = of_root(comm, root, whole)?;
    whole.map_or(Ok(()), |whole| check_lengths(comm, whole.len(), part.len()))?;
    group_start().readable()?;
    let sent = whole.map_or(Ok(()), |whole| {
        parts(comm, whole.len()).try_for_each(|(rank, range)| comm.send(&whole.slice(range), rank).readable())
    });
    let received = comm.recv(part, root as i32).readable();
    let ended = group_end().readable();
    sent.and(received).and(ended).map(drop)
}

pub fn gather(
    comm: &Comm,
    part: &CudaView<f32>,
    whole: Option<&mut CudaViewMut<f32>>,
    root: usize,
) -> anyhow::Result<()> {
    let whole = of_root(comm, root, whole)?;
    whole.as_ref().map_or(Ok(()), |whole| check_lengths(comm, whole.len(), part.len()))?;
    group_start().readable()?;
    let sent = comm.send(part, root as i32).readable();
    let received = whole.map_or(Ok(()), |whole| {
        parts(comm, whole.len())
            .try_for_each(|(rank, range)| comm.recv(&mut whole.slice_mut(range), rank).readable().map(drop))
    });
    let ended = group_end().readable();
    sent.and(received).and(ended).map(drop)
}

pub fn all_to_all(
    comm: &Comm,
    outgoing: &CudaView<f32>,
    incoming: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    let (len, world_size) = (outgoing.len(), comm.world_size());
    ensure!(len == incoming.len(), "{len} elements go out, but {} come in", incoming.len());
    ensure!(len.is_multiple_of(world_size), "{len} elements can't be cut into {world_size} equal parts");
    group_start().readable()?;
    let called = parts(comm, len).try_for_each(|(rank, range)| {
        comm.send(&outgoing.slice(range.clone()), rank).readable()?;
        comm.recv(&mut incoming.slice_mut(range), rank).readable().map(drop)
    });
    let ended = group_end().readable();
    called.and(ended)?;
    Ok(comm.stream().synchronize()?)
}
