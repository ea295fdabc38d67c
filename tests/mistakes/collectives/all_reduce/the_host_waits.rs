// mistake: the host waits until the values are there
// fails: all_reduce::no_call_waits_on_the_host
// says: does it wait on the host?

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

pub fn sum(comm: &Comm, send: &CudaView<f32>, recv: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    ensure!(
        send.len() == recv.len(),
        "the send buffer has {} elements, but the receive buffer has {}",
        send.len(),
        recv.len()
    );
    comm.all_reduce(send, recv, &ReduceOp::Sum).readable()?;
    Ok(())
}

pub fn average_in_place(comm: &Comm, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    comm.all_reduce_in_place(buffer, &ReduceOp::Avg).readable()?;
    Ok(comm.stream().synchronize()?)
}
