//! Scatter, gather, and all-to-all, built from sends and receives.
//!
//! Every send needs a receive of the same length on the other rank, in the same group.

use std::ops::Range;

use anyhow::{Context, ensure};
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, group_end, group_start};
use lab::Readable;

/// Returns each rank, in NCCL's type, with the range of its part. The parts divide `whole` elements equally, in rank order.
fn parts(comm: &Comm, whole: usize) -> impl Iterator<Item = (i32, Range<usize>)> {
    let len = whole / comm.world_size();
    (0..comm.world_size()).map(move |rank| (rank as i32, rank * len..(rank + 1) * len))
}

/// Returns `whole` on the root. Returns `None` on all other ranks, no matter what they pass.
fn of_root<T>(comm: &Comm, root: usize, whole: Option<T>) -> anyhow::Result<Option<T>> {
    match comm.rank() == root {
        true => Ok(Some(whole.with_context(|| format!("rank {root} is the root, but has no `whole`"))?)),
        false => Ok(None),
    }
}

/// Rejects a `whole` that is not as long as all parts together.
fn check_lengths(comm: &Comm, whole: usize, part: usize) -> anyhow::Result<()> {
    let world_size = comm.world_size();
    ensure!(
        whole == part * world_size,
        "`whole` has {whole} elements, but {world_size} parts of {part} elements have {} together",
        part * world_size
    );
    Ok(())
}

/// Writes each rank's part of the root's `whole` into that rank's `part`, including the root's own. Other ranks'
/// `whole` is ignored. Returns without waiting for the GPU. Every rank must call it.
///
/// # Errors
/// On the root, fails if there is no `whole`, or if it is not as long as all parts together. Also returns any error
/// from NCCL, which rejects a `root` that is not a rank. No group is left open.
pub fn scatter(
    comm: &Comm,
    whole: Option<&CudaView<f32>>,
    part: &mut CudaViewMut<f32>,
    root: usize,
) -> anyhow::Result<()> {
    let whole = of_root(comm, root, whole)?;
    whole.map_or(Ok(()), |whole| check_lengths(comm, whole.len(), part.len()))?;
    // ANCHOR: scatter
    // Send every rank its part of the root's buffer:
    // 1. each rank's `part` receives that rank's part of the root's `whole`, including on the root;
    // 2. `whole` is `Some` on the root and `None` on all other ranks, because of the lines above;
    // 3. each part is one message from the root to its rank; the root may copy its own part instead;
    // 4. no group is left open, even if one of the calls fails;
    // 5. the host does not wait for the GPU.
    group_start().readable()?;
    let sent = whole.map_or(Ok(()), |whole| {
        parts(comm, whole.len()).try_for_each(|(rank, range)| comm.send(&whole.slice(range), rank).readable())
    });
    let received = comm.recv(part, root as i32).readable();
    let ended = group_end().readable();
    sent.and(received).and(ended).map(drop)
    // ANCHOR_END: scatter
}

/// Writes the parts from all ranks into the root's `whole`, in rank order. Other ranks' `whole` is not touched. Returns
/// without waiting for the GPU. Every rank must call it.
///
/// # Errors
/// Fails like [`scatter`].
pub fn gather(
    comm: &Comm,
    part: &CudaView<f32>,
    whole: Option<&mut CudaViewMut<f32>>,
    root: usize,
) -> anyhow::Result<()> {
    let whole = of_root(comm, root, whole)?;
    whole.as_ref().map_or(Ok(()), |whole| check_lengths(comm, whole.len(), part.len()))?;
    // ANCHOR: gather
    // Collect the parts from all ranks on the root:
    // 1. the root's `whole` receives the parts from all ranks in rank order, including the root's own;
    // 2. as in `scatter`, `whole` is `Some` only on the root;
    // 3. each part is one message from its rank to the root; the root may copy its own part instead;
    // 4. no group is left open, and the host does not wait for the GPU.
    group_start().readable()?;
    let sent = comm.send(part, root as i32).readable();
    let received = whole.map_or(Ok(()), |whole| {
        parts(comm, whole.len())
            .try_for_each(|(rank, range)| comm.recv(&mut whole.slice_mut(range), rank).readable().map(drop))
    });
    let ended = group_end().readable();
    sent.and(received).and(ended).map(drop)
    // ANCHOR_END: gather
}

/// For every rank `r`, sends part `r` of `outgoing` to rank `r`, and fills part `r` of `incoming` with what rank `r`
/// sends. Returns without waiting for the GPU. Every rank must call it.
///
/// # Errors
/// Fails, without sending anything, if `outgoing` and `incoming` differ in length, or if their length is not divisible
/// by the number of ranks. Also returns any error from NCCL. No group is left open.
pub fn all_to_all(
    comm: &Comm,
    outgoing: &CudaView<f32>,
    incoming: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    let (len, world_size) = (outgoing.len(), comm.world_size());
    ensure!(len == incoming.len(), "`outgoing` has {len} elements, but `incoming` has {}", incoming.len());
    ensure!(len.is_multiple_of(world_size), "{len} elements can't be divided into {world_size} equal parts");
    // ANCHOR: all_to_all
    // Exchange a part with every rank:
    // 1. for every rank `r`, including this one, part `r` of `incoming` is the part that rank `r` has for this rank;
    // 2. `outgoing` does not change;
    // 3. each part is one message, and all messages are in one group; a rank may copy its own part instead;
    // 4. no group is left open, even if one of the calls fails;
    // 5. the host does not wait for the GPU.
    group_start().readable()?;
    let called = parts(comm, len).try_for_each(|(rank, range)| {
        comm.send(&outgoing.slice(range.clone()), rank).readable()?;
        comm.recv(&mut incoming.slice_mut(range), rank).readable().map(drop)
    });
    let ended = group_end().readable();
    called.and(ended).map(drop)
    // ANCHOR_END: all_to_all
}
