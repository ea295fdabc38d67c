//! All-gather: every rank has a *shard*, a part of something larger, and every rank gets the whole.
//!
//! All shards have the same length, and are in rank order. Nothing is computed, so any data type works.

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::Comm;
use lab::{Readable, part_and_whole};

/// Writes the shards of all ranks into every rank's `whole`. Every rank must call it, with a shard of the same length.
///
/// # Errors
/// Fails if `whole` is not as long as all shards together, or if NCCL fails.
pub fn all_gather(comm: &Comm, shard: &CudaView<f32>, whole: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: all_gather
    // Gather the shards of all ranks in `whole`:
    // 1. on every rank, the shard of rank `r` starts at element `r * shard.len()`, the rank's own shard included;
    // 2. `shard` stays as it is;
    // 3. if `whole` is not as long as all shards together, the result is an error that has both lengths, and nothing is sent;
    // 4. it is one all-gather, and the call returns as soon as the work is enqueued.
    let needed = shard.len() * comm.world_size();
    ensure!(whole.len() == needed, "all shards have {needed} elements, but the buffer has {}", whole.len());
    comm.all_gather(shard, whole).readable()?;
    Ok(())
    // ANCHOR_END: all_gather
}

/// Completes `whole` on every rank. Before the call, it holds this rank's own shard at its final position. Every rank must call it,
/// with a buffer of the same length.
///
/// # Errors
/// Fails if `whole` can't be divided into equal shards, or if NCCL fails.
pub fn all_gather_in_place(comm: &Comm, whole: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: all_gather_in_place
    // Gather the shards of all ranks in the buffer that holds this rank's own one:
    // 1. on every rank, each shard ends up in its place, as above;
    // 2. there is no second buffer;
    // 3. if the length of `whole` is not a multiple of the world size, the result is an error that has both, and nothing is sent;
    // 4. it is one all-gather, and the call returns as soon as the work is enqueued.
    let (rank, world_size, len) = (comm.rank(), comm.world_size(), whole.len());
    ensure!(len.is_multiple_of(world_size), "{len} elements can't be cut into {world_size} equal shards");
    let shard_len = len / world_size;
    let own = rank * shard_len..(rank + 1) * shard_len;
    // SAFETY: both views go to this all-gather only, and NCCL documents their positions as in place.
    let (shard, mut whole) = unsafe { part_and_whole(whole, own)? };
    comm.all_gather(&shard, &mut whole).readable()?;
    Ok(())
    // ANCHOR_END: all_gather_in_place
}
