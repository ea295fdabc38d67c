// mistake: each rank's values are averaged a second time
// fails: all_reduce::the_average_arrives_on_every_rank
// says: the buffer is wrong

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

pub fn sum(comm: &Comm, send: &CudaView<f32>, recv: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    ensure!(send.len() == recv.len(), "{} elements to send, {} to receive", send.len(), recv.len());
    comm.all_reduce(send, recv, &ReduceOp::Sum).readable()?;
    Ok(())
}

pub fn average_in_place(comm: &Comm, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    comm.all_reduce_in_place(buffer, &ReduceOp::Avg).readable()?;
    comm.all_reduce_in_place(buffer, &ReduceOp::Sum).readable()?;
    Ok(())
}
