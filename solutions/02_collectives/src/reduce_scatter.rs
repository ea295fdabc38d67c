//! Reduce-scatter: all ranks' buffers are combined, and each rank gets its part of the result.
//!
//! It is one half of an all-reduce; an all-gather of the parts is the other. Between the two, each part lies on one rank
//! alone: what has to be done with the result, each rank can do for its part, and nobody does the work of another.

use anyhow::ensure;
use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

/// Averages `send` over all ranks, and writes this rank's part of the average into `part`: that of rank r starts at r
/// times the part's length. `send` stays as it is. Every rank must call it, with the same lengths. Returns at once.
///
/// # Errors
/// `send` isn't as long as all parts together (the error says both lengths; nothing was sent), or NCCL refuses.
pub fn average_part(comm: &Comm, send: &CudaView<f32>, part: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: average_part
    // Compare `send` with the length of all parts together, then average into this rank's `part`.
    // cudarc takes the count from the part, and never looks at `send`.
    let needed = part.len() * comm.world_size();
    ensure!(send.len() == needed, "all parts have {needed} elements, but the send buffer has {}", send.len());
    comm.reduce_scatter(send, part, &ReduceOp::Avg).readable()?;
    Ok(())
    // ANCHOR_END: average_part
}

/// Replaces every rank's `buffer` by the average of all of them, in two steps: a reduce-scatter, and an all-gather. Every
/// rank must call it, with a buffer of the same length, which need not divide by the world size. Returns at once.
///
/// # Errors
/// What NCCL or the driver answers.
pub fn average_in_two_steps(comm: &Comm, buffer: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: average_in_two_steps
    // Average each rank's part, then gather the parts, without an `all_reduce` of the whole.
    // Parts have one length on all ranks. Where the buffer can't be cut into such parts, a copy that is a little longer can.
    let (stream, len, world_size) = (comm.stream(), buffer.len(), comm.world_size());
    let part_len = len.div_ceil(world_size);
    let mut padded = stream.alloc_zeros::<f32>(part_len * world_size)?;
    let mut part = stream.alloc_zeros::<f32>(part_len)?;
    stream.memcpy_dtod(buffer, &mut padded.slice_mut(..len))?;
    average_part(comm, &padded.as_view(), &mut part.as_view_mut())?;
    comm.all_gather(&part, &mut padded).readable()?;
    stream.memcpy_dtod(&padded.slice(..len), buffer)?;
    Ok(())
    // ANCHOR_END: average_in_two_steps
}
