// mistake: the sum goes to a copy that nobody gets
// fails: all_reduce::the_sum_arrives_on_every_rank
// says: the receive buffer is wrong
// says: did the sum go to another buffer

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

pub fn sum(comm: &Comm, send: &CudaView<f32>, recv: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    ensure!(send.len() == recv.len(), "{} elements to send, {} to receive", send.len(), recv.len());
    let mut result = comm.stream().clone_dtod(send)?;
    comm.all_reduce_in_place(&mut result, &ReduceOp::Sum).readable()?;
    Ok(())
}

pub fn average_in_place(comm: &Comm, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    comm.all_reduce_in_place(buffer, &ReduceOp::Avg).readable()?;
    Ok(())
}
