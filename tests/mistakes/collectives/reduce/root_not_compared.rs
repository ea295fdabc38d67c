// mistake: a root that is no rank goes to NCCL
// fails: reduce_to_root::a_root_that_is_no_rank_is_an_error
// says: the error of a reduce to rank 18446744073709551615 of 1 must say 18446744073709551615

use anyhow::{Context, ensure};
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

pub fn reduce(
    comm: &Comm,
    send: &CudaView<f32>,
    recv: Option<&mut CudaViewMut<f32>>,
    op: &ReduceOp,
    root: usize,
) -> anyhow::Result<()> {
    if comm.rank() == root {
        let recv = recv.as_ref().context("the root has no receive buffer")?;
        ensure!(send.len() == recv.len(), "{} elements into {}", send.len(), recv.len());
    }
    comm.reduce(send, recv, op, root as i32).readable()?;
    Ok(())
}

pub fn range_on_root(comm: &Comm, values: &CudaView<f32>, root: usize) -> anyhow::Result<Option<(f32, f32)>> {
    let stream = comm.stream();
    if comm.rank() != root {
        reduce(comm, values, None, &ReduceOp::Min, root)?;
        reduce(comm, values, None, &ReduceOp::Max, root)?;
        return Ok(None);
    }
    let mut low = stream.alloc_zeros::<f32>(values.len())?;
    let mut high = stream.alloc_zeros::<f32>(values.len())?;
    reduce(comm, values, Some(&mut low.as_view_mut()), &ReduceOp::Min, root)?;
    reduce(comm, values, Some(&mut high.as_view_mut()), &ReduceOp::Max, root)?;
    let smallest = stream.clone_dtoh(&low)?.into_iter().fold(f32::INFINITY, f32::min);
    let largest = stream.clone_dtoh(&high)?.into_iter().fold(f32::NEG_INFINITY, f32::max);
    Ok(Some((smallest, largest)))
}
