// mistake: the ranks don't tell each other what they found
// fails: broadcast::every_difference_is_found_by_all_ranks
// says: only some ranks know

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::Comm;
use lab::Readable;

pub fn broadcast(comm: &Comm, buffer: &mut CudaViewMut<f32>, root: usize) -> anyhow::Result<()> {
    ensure!(root < comm.world_size(), "root {root} of {} ranks", comm.world_size());
    comm.broadcast_in_place(buffer, i32::try_from(root)?).readable()?;
    Ok(())
}

pub fn replicas_equal(comm: &Comm, buffer: &CudaView<f32>) -> anyhow::Result<bool> {
    let stream = comm.stream();
    let mut reference = stream.alloc_zeros::<f32>(buffer.len())?;
    comm.broadcast(Some(buffer), &mut reference, 0).readable()?;
    let own = stream.clone_dtoh(buffer)?;
    let reference = stream.clone_dtoh(&reference)?;
    stream.synchronize()?;
    let equal = own.iter().map(|x| x.to_bits()).eq(reference.iter().map(|x| x.to_bits()));
    Ok(equal)
}
