// mistake: the root never reaches NCCL
// fails: broadcast::every_rank_can_be_the_root
// says: these are rank 0's values: does the root reach NCCL?

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

pub fn broadcast(comm: &Comm, buffer: &mut CudaViewMut<f32>, root: usize) -> anyhow::Result<()> {
    ensure!(root < comm.world_size(), "root {root} of {} ranks", comm.world_size());
    comm.broadcast_in_place(buffer, 0).readable()?;
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
    let mut differs = stream.clone_htod(&[if equal { 0.0_f32 } else { 1.0 }])?;
    comm.all_reduce_in_place(&mut differs, &ReduceOp::Max).readable()?;
    Ok(stream.clone_dtoh(&differs)? == [0.0])
}
