// mistake: the host waits until the values are there
// fails: reduce_scatter::no_call_waits_on_the_host
// says: does it wait on the host?

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

pub fn average_part(comm: &Comm, send: &CudaView<f32>, part: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let needed = part.len() * comm.world_size();
    ensure!(send.len() == needed, "all parts have {needed} elements, but the send buffer has {}", send.len());
    comm.reduce_scatter(send, part, &ReduceOp::Avg).readable()?;
    Ok(comm.stream().synchronize()?)
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
