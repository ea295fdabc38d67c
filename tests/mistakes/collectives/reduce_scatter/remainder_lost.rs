// mistake: what doesn't divide is left out
// fails: reduce_scatter::two_steps_average_the_whole
// says: 37 elements are 2 parts of 18, and 1 more: what becomes of those at the end?

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

pub fn average_part(comm: &Comm, send: &CudaView<f32>, part: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let needed = part.len() * comm.world_size();
    ensure!(send.len() == needed, "all parts have {needed} elements, the send buffer has {}", send.len());
    comm.reduce_scatter(send, part, &ReduceOp::Avg).readable()?;
    Ok(())
}

pub fn average_in_two_steps(comm: &Comm, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let (stream, len, world_size) = (comm.stream(), buffer.len(), comm.world_size());
    let part_len = len / world_size;
    let mut padded = stream.alloc_zeros::<f32>(part_len * world_size)?;
    let mut part = stream.alloc_zeros::<f32>(part_len)?;
    stream.memcpy_dtod(&buffer.slice(..part_len * world_size), &mut padded)?;
    average_part(comm, &padded.as_view(), &mut part.as_view_mut())?;
    comm.all_gather(&part, &mut padded).readable()?;
    stream.memcpy_dtod(&padded, buffer)?;
    Ok(())
}
