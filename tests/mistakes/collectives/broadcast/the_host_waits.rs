// mistake: the host waits until the values are there
// fails: broadcast::it_returns_at_once
// says: does it wait on the host?

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

pub fn broadcast(comm: &Comm, buffer: &mut CudaViewMut<f32>, root: usize) -> anyhow::Result<()> {
    let world_size = comm.world_size();
    ensure!(root < world_size, "rank {root} can't be the root in a world of {world_size}");
    comm.broadcast_in_place(buffer, i32::try_from(root)?).readable()?;
    Ok(comm.stream().synchronize()?)
}

pub fn replicas_equal(comm: &Comm, buffer: &CudaView<f32>) -> anyhow::Result<bool> {
    let stream = comm.stream();
    let mut reference = stream.alloc_zeros::<f32>(buffer.len())?;
    comm.broadcast(Some(buffer), &mut reference, 0).readable()?;
    let bits = |values: Vec<f32>| -> Vec<u32> { values.into_iter().map(f32::to_bits).collect() };
    let own = bits(stream.clone_dtoh(buffer)?);
    let reference = bits(stream.clone_dtoh(&reference)?);
    stream.synchronize()?;

    let mut differs = stream.clone_htod(&[if own == reference { 0.0_f32 } else { 1.0 }])?;
    comm.all_reduce_in_place(&mut differs, &ReduceOp::Max).readable()?;
    let differs = stream.clone_dtoh(&differs)?;
    stream.synchronize()?;
    Ok(differs == [0.0])
}
