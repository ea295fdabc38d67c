//! Reduce: all ranks' buffers are combined element by element, and only one rank, the root, gets the result.
//!
//! Among many ranks it moves half of what an all-reduce moves, and the others need no buffer to receive into. Take it
//! where one rank alone needs the numbers: to print a loss, to write a log.

use anyhow::{Context, ensure};
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

/// Combines all ranks' `send` by `op` into the `recv` of rank `root`. On the other ranks `recv` may be `None`; if there
/// is one, it stays as it is. `send` stays as it is everywhere. Every rank must call it, with the same operator, root and
/// length. Returns at once.
///
/// # Errors
/// `root` is no rank (the error says the root and the world size); the root has no `recv`, or one of another length than
/// `send` (the error says both lengths); or NCCL refuses.
pub fn reduce(
    comm: &Comm,
    send: &CudaView<f32>,
    recv: Option<&mut CudaViewMut<f32>>,
    op: &ReduceOp,
    root: usize,
) -> anyhow::Result<()> {
    // ANCHOR: reduce
    // Look at the root and at its receive buffer, then combine `send` over all ranks into it.
    // `Comm::reduce` takes `recv` as an `Option` too. It counts the elements of `send`, and panics for a root without one.
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
    Ok(())
    // ANCHOR_END: reduce
}

/// The smallest and the largest of all values on all ranks: `Some` on rank `root`, `None` on the others. Waits for the
/// result on the root. Every rank must call it with the same root, and with as many values, at least one.
///
/// # Errors
/// As [`reduce`], or what the driver answers.
pub fn range_on_root(comm: &Comm, values: &CudaView<f32>, root: usize) -> anyhow::Result<Option<(f32, f32)>> {
    // ANCHOR: range_on_root
    // Reduce twice, by `Min` and by `Max`, and read the results on the root.
    // A reduction goes element by element: it leaves as many values as each rank has.
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
    // ANCHOR_END: range_on_root
}
