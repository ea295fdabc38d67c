//! All-gather: every rank has a *shard*, which is a part of a larger buffer, and every rank gets the whole buffer.
//!
//! All shards have the same length, and are in rank order. Nothing is computed, so every data type works.

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::Comm;
use lab::{Readable, part_and_whole};

/// Writes the shards from all ranks into every rank's `whole`. Every rank must call it, with a shard of the same length.
///
/// # Errors
/// Fails if `whole` is not as long as all shards together, or if an NCCL call fails.
pub fn all_gather(comm: &Comm, shard: &CudaView<f32>, whole: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: all_gather
    // Gather the shards from all ranks in `whole`:
    // 1. on every rank, the shard of rank `r` starts at element `r * shard.len()`, the rank's own shard included;
    // 2. `shard` does not change;
    // 3. if `whole` is not as long as all shards together, send nothing, and return an error that contains both lengths;
    // 4. make one all-gather, and return as soon as the work is enqueued.
    let needed = shard.len() * comm.world_size();
    ensure!(whole.len() == needed, "all shards have {needed} elements, but the buffer has {}", whole.len());
    comm.all_gather(shard, whole).readable()?;
    Ok(())
    // ANCHOR_END: all_gather
}

/// Completes `whole` on every rank. Before the call, it contains this rank's own shard at its final position. Every
/// rank must call it, with a buffer of the same length.
///
/// # Errors
/// Fails if `whole` can't be divided into equal shards, or if an NCCL call fails.
pub fn all_gather_in_place(comm: &Comm, whole: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: all_gather_in_place
    // Gather the shards from all ranks in the buffer that contains this rank's own shard:
    // 1. on every rank, each shard ends up at its position, as above;
    // 2. no second buffer is used;
    // 3. if the length of `whole` is not a multiple of the world size, send nothing, and return an error that contains both numbers;
    // 4. make one all-gather, and return as soon as the work is enqueued.
    let (rank, world_size, len) = (comm.rank(), comm.world_size(), whole.len());
    ensure!(len.is_multiple_of(world_size), "{len} elements can't be divided into {world_size} equal shards");
    let shard_len = len / world_size;
    let own = rank * shard_len..(rank + 1) * shard_len;
    // SAFETY: only this all-gather uses the two views, and NCCL's documentation calls their positions in place.
    let (shard, mut whole) = unsafe { part_and_whole(whole, own)? };
    comm.all_gather(&shard, &mut whole).readable()?;
    Ok(())
    // ANCHOR_END: all_gather_in_place
}
