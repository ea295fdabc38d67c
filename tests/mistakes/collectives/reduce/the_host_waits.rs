// mistake: the host waits until the values are there
// fails: reduce_to_root::it_returns_at_once
// says: does it wait on the host?

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
    let world_size = comm.world_size();
    ensure!(root < world_size, "rank {root} can't be the root in a world of {world_size}");
    if comm.rank() == root {
        let recv =
            recv.as_ref().with_context(|| format!("rank {root} is the root, and has no receive buffer"))?;
        ensure!(
            send.len() == recv.len(),
            "{} elements to send, the root receives {}",
            send.len(),
            recv.len()
        );
    }
    comm.reduce(send, recv, op, i32::try_from(root)?).readable()?;
    Ok(comm.stream().synchronize()?)
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
    let (low, high) = (stream.clone_dtoh(&low)?, stream.clone_dtoh(&high)?);
    stream.synchronize()?;
    let smallest = low.into_iter().fold(f32::INFINITY, f32::min);
    let largest = high.into_iter().fold(f32::NEG_INFINITY, f32::max);
    Ok(Some((smallest, largest)))
}
