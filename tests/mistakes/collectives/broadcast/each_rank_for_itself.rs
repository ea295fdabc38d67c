// mistake: the ranks don't tell each other what they found
// fails: broadcast::every_difference_is_found_by_all_ranks
// says: only some ranks know

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::Comm;
use lab::Readable;

pub fn broadcast(comm: &Comm, buffer: &mut CudaViewMut<f32>, root: usize) -> anyhow::Result<()> {
    let world_size = comm.world_size();
    ensure!(root < world_size, "rank {root} can't be the root in a world of {world_size}");
    comm.broadcast_in_place(buffer, i32::try_from(root)?).readable()?;
    Ok(())
}

pub fn replicas_equal(comm: &Comm, buffer: &CudaView<f32>) -> anyhow::Result<bool> {
    let stream = comm.stream();
    let mut reference = stream.alloc_zeros::<f32>(buffer.len())?;
    comm.broadcast(Some(buffer), &mut reference, 0).readable()?;
    let bits = |values: Vec<f32>| -> Vec<u32> { values.into_iter().map(f32::to_bits).collect() };
    let own = bits(stream.clone_dtoh(buffer)?);
    let reference = bits(stream.clone_dtoh(&reference)?);
    stream.synchronize()?;
    Ok(own == reference)
}
