//! Reduce: combines the buffers of all ranks element by element, and only one rank, the *root*, gets the result.
//!
//! Use it if only one rank needs the result, for example to print a loss or to write a log.

use anyhow::{Context, ensure};
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

/// Combines all ranks' `send` with `op` into the `recv` of rank `root`. On the other ranks, `recv` may be `None`. Every rank must call
/// it, with the same operator, root, and length.
///
/// # Errors
/// Fails if `root` is not below the world size, if the root's `recv` is missing or has a different length, or if an NCCL call fails.
pub fn reduce(
    comm: &Comm,
    send: &CudaView<f32>,
    recv: Option<&mut CudaViewMut<f32>>,
    op: &ReduceOp,
    root: usize,
) -> anyhow::Result<()> {
    // ANCHOR: reduce
    // Combine `send` over all ranks into the root's `recv`:
    // 1. the root gets the result in `recv`, and any rank can be the root;
    // 2. no `send` changes, and neither does a `recv` on any other rank, if there is one;
    // 3. if `root` is not below the world size, return an error that contains both numbers;
    // 4. on the root, if `recv` is missing, return an error instead of panicking;
    // 5. on the root, if `recv` and `send` differ in length, return an error that contains both lengths;
    // 6. make one reduce and no copy, and return as soon as the work is enqueued.
    let world_size = comm.world_size();
    ensure!(root < world_size, "rank {root} can't be the root in a world of {world_size}");
    if comm.rank() == root {
        let recv =
            recv.as_ref().with_context(|| format!("rank {root} is the root, but has no receive buffer"))?;
        ensure!(
            send.len() == recv.len(),
            "{} elements to send, but the root's receive buffer has {}",
            send.len(),
            recv.len()
        );
    }
    comm.reduce(send, recv, op, i32::try_from(root)?).readable()?;
    Ok(())
    // ANCHOR_END: reduce
}

/// Returns the smallest and the largest of all values on all ranks: `Some` on rank `root`, `None` on the others. Every
/// rank must call it, with the same root and the same number of values (at least one).
///
/// # Errors
/// Fails like [`reduce`], or if a driver call fails.
pub fn range_on_root(comm: &Comm, values: &CudaView<f32>, root: usize) -> anyhow::Result<Option<(f32, f32)>> {
    // ANCHOR: range_on_root
    // Find the smallest and the largest of all values:
    // 1. the root returns one smallest and one largest value, over all elements of all ranks;
    // 2. the other ranks return `None`;
    // 3. `values` does not change;
    // 4. there are at most two collectives.
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
