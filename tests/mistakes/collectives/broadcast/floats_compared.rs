// mistake: `==` calls equal NaNs different
// fails: broadcast::equal_replicas_are_found_equal
// says: calls replicas with NaNs and both zeros different, but every bit is equal
// says: `==` on floats, for which a NaN isn't equal to itself

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
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
    let equal = own == reference;
    let mut differs = stream.clone_htod(&[if equal { 0.0_f32 } else { 1.0 }])?;
    comm.all_reduce_in_place(&mut differs, &ReduceOp::Max).readable()?;
    Ok(stream.clone_dtoh(&differs)? == [0.0])
}
