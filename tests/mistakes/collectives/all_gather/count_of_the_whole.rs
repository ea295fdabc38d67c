// mistake: each rank sends the whole, and not only its shard
// fails: all_gather::the_shards_meet_in_one_buffer
// says: something wrote 1 elements past the last one of the buffer of 2
// says: likely cause: a count or an offset of another buffer

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::Comm;
use lab::Readable;

pub fn all_gather(comm: &Comm, shard: &CudaView<f32>, whole: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let needed = shard.len() * comm.world_size();
    ensure!(whole.len() == needed, "all shards have {needed} elements, the buffer has {}", whole.len());
    comm.all_gather(shard, whole).readable()?;
    Ok(())
}

pub fn all_gather_in_place(comm: &Comm, whole: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let (world_size, len) = (comm.world_size(), whole.len());
    ensure!(len.is_multiple_of(world_size), "{len} elements for {world_size} ranks");
    let copy = comm.stream().clone_dtod(whole)?;
    comm.all_gather(&copy, whole).readable()?;
    Ok(())
}
