// mistake: the shard that is sent doesn't lie where it will lie in the result
// fails: all_gather::the_shards_meet_in_one_buffer
// says: in place means the rank's own part of the receive buffer

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::Comm;
use lab::{Readable, part_and_whole};

pub fn all_gather(comm: &Comm, shard: &CudaView<f32>, whole: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let needed = shard.len() * comm.world_size();
    ensure!(whole.len() == needed, "all shards have {needed} elements, the buffer has {}", whole.len());
    comm.all_gather(shard, whole).readable()?;
    Ok(())
}

pub fn all_gather_in_place(comm: &Comm, whole: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let (world_size, len) = (comm.world_size(), whole.len());
    ensure!(len.is_multiple_of(world_size), "{len} elements for {world_size} ranks");
    let shard_len = len / world_size;
    let own = 0..shard_len;
    // SAFETY: none: this isn't where NCCL expects the shard.
    let (shard, mut whole) = unsafe { part_and_whole(whole, own)? };
    comm.all_gather(&shard, &mut whole).readable()?;
    Ok(())
}
