// mistake: a shard starts at its rank's number, not at so many lengths
// fails: all_gather::every_rank_gets_all_shards_in_order
// says: rank r's shard starts at element r, and the next one overwrites it

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::Comm;
use lab::{Readable, part_and_whole};

pub fn all_gather(comm: &Comm, shard: &CudaView<f32>, whole: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let needed = shard.len() * comm.world_size();
    ensure!(whole.len() == needed, "all shards have {needed} elements, the buffer has {}", whole.len());
    for root in 0..comm.world_size() {
        let mut place = whole.slice_mut(root..root + shard.len());
        comm.broadcast(Some(shard), &mut place, root as i32).readable()?;
    }
    Ok(())
}

pub fn all_gather_in_place(comm: &Comm, whole: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let (rank, world_size, len) = (comm.rank(), comm.world_size(), whole.len());
    ensure!(len.is_multiple_of(world_size), "{len} elements for {world_size} ranks");
    let shard_len = len / world_size;
    let own = rank * shard_len..(rank + 1) * shard_len;
    // SAFETY: both go to this one all-gather, for which the rank's own shard in its place means in place.
    let (shard, mut whole) = unsafe { part_and_whole(whole, own)? };
    comm.all_gather(&shard, &mut whole).readable()?;
    Ok(())
}
