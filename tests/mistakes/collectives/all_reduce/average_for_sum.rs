// mistake: the sum is divided
// fails: all_reduce::the_sum_arrives_on_every_rank
// says: this is the average: the operator is another one

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

pub fn sum(comm: &Comm, send: &CudaView<f32>, recv: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    ensure!(send.len() == recv.len(), "{} elements to send, {} to receive", send.len(), recv.len());
    comm.all_reduce(send, recv, &ReduceOp::Avg).readable()?;
    Ok(())
}

pub fn average_in_place(comm: &Comm, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    comm.all_reduce_in_place(buffer, &ReduceOp::Avg).readable()?;
    Ok(())
}
