// mistake: the host waits until the values are there
// fails: all_gather::no_call_waits_on_the_host
// says: does it wait on the host?

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::Comm;
use lab::{Readable, part_and_whole};

pub fn all_gather(comm: &Comm, shard: &CudaView<f32>, whole: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let needed = shard.len() * comm.world_size();
    ensure!(whole.len() == needed, "all shards have {needed} elements, but the buffer has {}", whole.len());
    comm.all_gather(shard, whole).readable()?;
    Ok(comm.stream().synchronize()?)
}

pub fn all_gather_in_place(comm: &Comm, whole: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let (rank, world_size, len) = (comm.rank(), comm.world_size(), whole.len());
    ensure!(len.is_multiple_of(world_size), "{len} elements can't be cut into {world_size} equal shards");
    let shard_len = len / world_size;
    let own = rank * shard_len..(rank + 1) * shard_len;
    // SAFETY: both go to this one all-gather, for which the rank's own shard in its place means in place.
    let (shard, mut whole) = unsafe { part_and_whole(whole, own)? };
    comm.all_gather(&shard, &mut whole).readable()?;
    Ok(())
}
