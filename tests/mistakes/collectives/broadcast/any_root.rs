// mistake: a root that is no rank is cut to one that is
// fails: broadcast::a_root_that_is_no_rank_is_an_error
// says: a broadcast from rank 1 of 1 returned Ok

use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

pub fn broadcast(comm: &Comm, buffer: &mut CudaViewMut<f32>, root: usize) -> anyhow::Result<()> {
    comm.broadcast_in_place(buffer, (root % comm.world_size()) as i32).readable()?;
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
