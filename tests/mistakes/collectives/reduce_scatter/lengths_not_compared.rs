// mistake: nobody compares the lengths; cudarc counts the part
// fails: reduce_scatter::lengths_that_don_t_fit_are_an_error
// says: averaging 12 elements in 1 parts of 13, where 13 would be read, returned Ok

use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

pub fn average_part(comm: &Comm, send: &CudaView<f32>, part: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    comm.reduce_scatter(send, part, &ReduceOp::Avg).readable()?;
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
