// mistake: the part is cut out at the rank's number, not at so many lengths
// fails: reduce_scatter::each_rank_gets_its_part
// says: it starts at element 1 of the average: a part starts at rank times its length

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

pub fn average_part(comm: &Comm, send: &CudaView<f32>, part: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let needed = part.len() * comm.world_size();
    ensure!(send.len() == needed, "all parts have {needed} elements, the send buffer has {}", send.len());
    let (stream, rank) = (comm.stream(), comm.rank());
    let mut whole = stream.clone_dtod(send)?;
    comm.all_reduce_in_place(&mut whole, &ReduceOp::Avg).readable()?;
    stream.memcpy_dtod(&whole.slice(rank..rank + part.len()), part)?;
    Ok(())
}

pub fn average_in_two_steps(comm: &Comm, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let (stream, len, world_size) = (comm.stream(), buffer.len(), comm.world_size());
    let part_len = len.div_ceil(world_size);
    let mut padded = stream.alloc_zeros::<f32>(part_len * world_size)?;
    let mut part = stream.alloc_zeros::<f32>(part_len)?;
    stream.memcpy_dtod(buffer, &mut padded.slice_mut(..len))?;
    average_part(comm, &padded.as_view(), &mut part.as_view_mut())?;
    comm.all_gather(&part, &mut padded).readable()?;
    stream.memcpy_dtod(&padded.slice(..len), buffer)?;
    Ok(())
}
