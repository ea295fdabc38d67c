//! Scatter, gather and all-to-all, made of sends and receives.
//!
//! Each send needs its receive on the other rank, of the same length, and each receive its send. What a rank sends to itself
//! needs both as well. All of it goes into one group: there, no order of the calls matters.

use std::ops::Range;

use anyhow::{Context, ensure};
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, group_end, group_start};
use lab::Readable;

/// Each rank, as NCCL counts it, and its part of `whole` elements: equal parts, in the order of ranks.
fn parts(comm: &Comm, whole: usize) -> impl Iterator<Item = (i32, Range<usize>)> {
    let len = whole / comm.world_size();
    (0..comm.world_size()).map(move |rank| (rank as i32, rank * len..(rank + 1) * len))
}

/// What the root has of all parts together; `None` on the other ranks, whatever they have.
fn of_root<T>(comm: &Comm, root: usize, whole: Option<T>) -> anyhow::Result<Option<T>> {
    match comm.rank() == root {
        true => Ok(Some(whole.with_context(|| format!("rank {root} is the root, and has no whole"))?)),
        false => Ok(None),
    }
}

/// Refuses a whole that isn't as long as all parts together.
fn check_lengths(comm: &Comm, whole: usize, part: usize) -> anyhow::Result<()> {
    let world_size = comm.world_size();
    ensure!(
        whole == part * world_size,
        "the whole has {whole} elements, but {world_size} parts of {part} have {}",
        part * world_size
    );
    Ok(())
}

/// Writes each rank's part of the root's `whole` into its `part`, the root's own into the root's. On the other ranks `whole` is
/// not looked at. Every rank must call it. Returns at once.
///
/// # Errors
/// The root has no `whole`, or one that isn't as long as all parts together: only the root learns that. Or NCCL refuses. No
/// group is left open.
pub fn scatter(
    comm: &Comm,
    whole: Option<&CudaView<f32>>,
    part: &mut CudaViewMut<f32>,
    root: usize,
) -> anyhow::Result<()> {
    let whole = of_root(comm, root, whole)?;
    whole.map_or(Ok(()), |whole| check_lengths(comm, whole.len(), part.len()))?;
    // ANCHOR: scatter
    // Send every rank its part, if you are the root, and receive yours from the root.
    // `whole` is `Some` on the root alone. `parts(comm, whole.len())` gives each rank with its range, and the root is a rank
    // too. Start a group, keep the results of the calls, end the group, then look at them.
    todo!("Send every rank its part, if you are the root, and receive yours from the root")
    // ANCHOR_END: scatter
}

/// Writes the parts of all ranks into the root's `whole`, in the order of ranks. On the other ranks `whole` is not touched.
/// Every rank must call it. Returns at once.
///
/// # Errors
/// As [`scatter`].
pub fn gather(
    comm: &Comm,
    part: &CudaView<f32>,
    whole: Option<&mut CudaViewMut<f32>>,
    root: usize,
) -> anyhow::Result<()> {
    let whole = of_root(comm, root, whole)?;
    whole.as_ref().map_or(Ok(()), |whole| check_lengths(comm, whole.len(), part.len()))?;
    // ANCHOR: gather
    // Send your part to the root, and receive every rank's part, if you are the root.
    // It is `scatter` the other way round. `whole.slice_mut(range)` lends a part to be written.
    todo!("Send your part to the root, and receive every rank's part, if you are the root")
    // ANCHOR_END: gather
}

/// Every rank has a part for every rank: part `r` of `outgoing` goes to rank `r`, and part `r` of `incoming` comes from rank
/// `r`. Every rank must call it. Returns at once.
///
/// # Errors
/// `outgoing` and `incoming` differ in length, or don't divide by the number of ranks: nothing was sent. Or NCCL refuses. No
/// group is left open.
pub fn all_to_all(
    comm: &Comm,
    outgoing: &CudaView<f32>,
    incoming: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    let (len, world_size) = (outgoing.len(), comm.world_size());
    ensure!(len == incoming.len(), "{len} elements go out, but {} come in", incoming.len());
    ensure!(len.is_multiple_of(world_size), "{len} elements can't be cut into {world_size} equal parts");
    // ANCHOR: all_to_all
    // Exchange a part with every rank, yourself among them, in one group.
    // Which part of `outgoing` goes to a rank, and where in `incoming` does its part belong?
    todo!("Exchange a part with every rank, yourself among them, in one group")
    // ANCHOR_END: all_to_all
}
