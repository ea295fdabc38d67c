//! Broadcast: copies one rank's buffer to all ranks. That rank is the *root*.
//!
//! Replicas of a model that start out equal stay equal unless something goes wrong. `replicas_equal` checks this.

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

/// Replaces every rank's `buffer` with the one from rank `root`. Every rank must call it, with the same root and the same length.
///
/// # Errors
/// Fails if `root` is not below the world size, or if an NCCL call fails.
pub fn broadcast(comm: &Comm, buffer: &mut CudaViewMut<f32>, root: usize) -> anyhow::Result<()> {
    // ANCHOR: broadcast
    // Copy the root's `buffer` to every rank:
    // 1. afterwards, all ranks have the root's values, bit for bit;
    // 2. any rank can be the root;
    // 3. if `root` is not below the world size, send nothing, and return an error that contains both numbers;
    // 4. make one broadcast without a second buffer, and return as soon as the work is enqueued.
    let world_size = comm.world_size();
    ensure!(root < world_size, "rank {root} can't be the root in a world of {world_size}");
    comm.broadcast_in_place(buffer, i32::try_from(root)?).readable()?;
    Ok(())
    // ANCHOR_END: broadcast
}

/// Returns whether the buffers of all ranks are equal, bit for bit. Every rank must call it, with buffers of the same length.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn replicas_equal(comm: &Comm, buffer: &CudaView<f32>) -> anyhow::Result<bool> {
    // ANCHOR: replicas_equal
    // Find out whether all replicas are equal:
    // 1. the result is true only if every bit of every rank's buffer is the same;
    // 2. every rank returns the same result;
    // 3. no buffer changes;
    // 4. the number of calls does not grow with the length of the buffer.
    let stream = comm.stream();
    let mut reference = stream.alloc_zeros::<f32>(buffer.len())?;
    comm.broadcast(Some(buffer), &mut reference, 0).readable()?;
    let bits = |values: Vec<f32>| -> Vec<u32> { values.into_iter().map(f32::to_bits).collect() };
    let own = bits(stream.clone_dtoh(buffer)?);
    let reference = bits(stream.clone_dtoh(&reference)?);
    stream.synchronize()?;

    let mut differs = stream.clone_htod(&[if own == reference { 0.0_f32 } else { 1.0 }])?;
    comm.all_reduce_in_place(&mut differs, &ReduceOp::Max).readable()?;
    let differs = stream.clone_dtoh(&differs)?;
    stream.synchronize()?;
    Ok(differs == [0.0])
    // ANCHOR_END: replicas_equal
}
