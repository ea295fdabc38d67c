//! All-gather: every rank has a shard, a part of something larger, and every rank gets the whole.
//!
//! The shards have one length, and lie in the order of the ranks: that of rank r starts at r times this length. Nothing is
//! computed, so it works for what has no sum as well.

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::Comm;
use lab::{Readable, part_and_whole};

/// Writes the shards of all ranks into `whole`, in the order of ranks, on every rank. `shard` stays as it is. Every rank
/// must call it, with a shard of the same length. Returns at once.
///
/// # Errors
/// `whole` isn't as long as all shards together (the error says both lengths; nothing was sent), or NCCL refuses.
pub fn all_gather(comm: &Comm, shard: &CudaView<f32>, whole: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: all_gather
    // Compare the length of `whole` with that of all shards together, then gather them in it.
    // cudarc takes the count from the shard, and never looks at `whole`.
    let needed = shard.len() * comm.world_size();
    ensure!(whole.len() == needed, "all shards have {needed} elements, but the buffer has {}", whole.len());
    comm.all_gather(shard, whole).readable()?;
    Ok(())
    // ANCHOR_END: all_gather
}

/// Completes `whole` on every rank: at first each has its own shard in its place, afterwards all shards are there. Every
/// rank must call it, with a buffer of the same length. Returns at once.
///
/// # Errors
/// `whole` can't be cut into equal shards (the error says its length and the world size; nothing was sent), or NCCL
/// refuses.
pub fn all_gather_in_place(comm: &Comm, whole: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: all_gather_in_place
    // Find this rank's own shard in `whole`, and gather all shards in the same buffer.
    // One view to send and another to receive, of one buffer: `whole.slice(…)` won't do. `lab::part_and_whole` makes such a
    // pair, or an error. It is `unsafe`; what you promise is in its documentation (crates/lab/src/in_place.rs).
    let (rank, world_size, len) = (comm.rank(), comm.world_size(), whole.len());
    ensure!(len.is_multiple_of(world_size), "{len} elements can't be cut into {world_size} equal shards");
    let shard_len = len / world_size;
    let own = rank * shard_len..(rank + 1) * shard_len;
    // SAFETY: both go to this one all-gather, for which the rank's own shard in its place means in place.
    let (shard, mut whole) = unsafe { part_and_whole(whole, own)? };
    comm.all_gather(&shard, &mut whole).readable()?;
    Ok(())
    // ANCHOR_END: all_gather_in_place
}
