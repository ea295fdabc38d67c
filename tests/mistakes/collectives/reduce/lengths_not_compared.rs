// mistake: nobody compares the lengths; cudarc counts the send buffer
// fails: reduce_to_root::a_root_that_can_t_receive_is_an_error
// says: a reduce of 37 elements into a buffer of 36 returned Ok

use anyhow::ensure;
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
    ensure!(root < world_size, "root {root} of {world_size} ranks");
    if comm.rank() == root {
        ensure!(recv.is_some(), "the root has no receive buffer");
    }
    comm.reduce(send, recv, op, i32::try_from(root)?).readable()?;
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
