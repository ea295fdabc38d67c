// mistake: the whole is averaged by an all-reduce
// fails: reduce_scatter::the_two_steps_are_no_all_reduce
// says: it is to average the parts with a reduce-scatter

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

pub fn average_part(comm: &Comm, send: &CudaView<f32>, part: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let needed = part.len() * comm.world_size();
    ensure!(send.len() == needed, "all parts have {needed} elements, but the send buffer has {}", send.len());
    comm.reduce_scatter(send, part, &ReduceOp::Avg).readable()?;
    Ok(())
}

pub fn average_in_two_steps(comm: &Comm, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    let (stream, len, world_size) = (comm.stream(), buffer.len(), comm.world_size());
    let part_len = len.div_ceil(world_size);
    let mut padded = stream.alloc_zeros::<f32>(part_len * world_size)?;
    let mut part = stream.alloc_zeros::<f32>(part_len)?;
    stream.memcpy_dtod(buffer, &mut padded.slice_mut(..len))?;
    comm.all_reduce_in_place(&mut padded, &ReduceOp::Avg).readable()?;
    stream.memcpy_dtod(&padded.slice(..len), buffer)?;
    Ok(())
}
