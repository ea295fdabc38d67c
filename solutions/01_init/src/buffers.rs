//! Buffers: memory of a GPU, and how values come into it and out of it.
//!
//! A *slice* (`CudaSlice`) owns memory of one GPU; a *view* (`CudaView`, `CudaViewMut`) lends a part of it, as `&[T]` does on
//! the host. Neither can be read by the host: values are copied, by a stream. Each slice knows the stream that it was
//! made on, and a view knows that of its slice.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, ensure};
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceSlice};

/// Spreads values over GPUs: element `i` is a new buffer that was made on `streams[i]`, and holds `values[parts[i]]` and
/// nothing else. No part is empty.
///
/// # Errors
/// There are not as many parts as streams, or a part reaches beyond the values (the error says both numbers); or what
/// the driver answers.
pub fn spread(
    streams: &[Arc<CudaStream>],
    values: &[f32],
    parts: &[Range<usize>],
) -> anyhow::Result<Vec<CudaSlice<f32>>> {
    let (streams_len, parts_len) = (streams.len(), parts.len());
    ensure!(streams_len == parts_len, "{streams_len} streams, but {parts_len} parts: each needs one");
    // ANCHOR: spread
    // Copy each stream its part of the values, into a new buffer.
    // A part that reaches beyond the values is an error, not a panic: it says where the part ends, and how many there are.
    let copy = |(stream, part): (&Arc<CudaStream>, &Range<usize>)| {
        let own = values.get(part.clone());
        let own = own.with_context(|| format!("{part:?} is no part of {} values", values.len()))?;
        Ok(stream.clone_htod(own)?)
    };
    streams.iter().zip(parts).map(copy).collect()
    // ANCHOR_END: spread
}

/// Reads a part of a buffer. Only the part is copied to the host.
///
/// # Errors
/// The part reaches beyond the buffer (the error says both numbers), or what the driver answers.
pub fn read(buffer: &CudaView<f32>, part: Range<usize>) -> anyhow::Result<Vec<f32>> {
    // ANCHOR: read
    // Copy the part to the host, by the buffer's own stream, and wait until it is there.
    // What does not lie in the buffer is an error, not a panic.
    let own = buffer.try_slice(part.clone());
    let own = own.with_context(|| format!("{part:?} is no part of {} elements", buffer.len()))?;
    let values = buffer.stream().clone_dtoh(&own)?;
    buffer.stream().synchronize()?;
    Ok(values)
    // ANCHOR_END: read
}

/// Copies a part of one buffer into another one, from its element `at` on. The two may be on different GPUs. Returns at
/// once; the copy is made by the stream of `to`. Until then, `from` must stay as it is: cudarc sees to that on one GPU, but
/// not between two.
///
/// # Errors
/// The part reaches beyond the one buffer, or its copy beyond the other (the error says both numbers; nothing was
/// copied), or what the driver answers.
pub fn copy(
    from: &CudaView<f32>,
    part: Range<usize>,
    to: &mut CudaViewMut<f32>,
    at: usize,
) -> anyhow::Result<()> {
    // ANCHOR: copy
    // Copy the part from GPU memory to GPU memory.
    // Cut both views to the part's length first: cudarc copies all of the source. Don't wait for the copy.
    let own = from.try_slice(part.clone());
    let own = own.with_context(|| format!("{part:?} is no part of {} elements", from.len()))?;
    let place = at..at + part.len();
    let (stream, len) = (to.stream().clone(), to.len());
    let room = to.try_slice_mut(place.clone());
    let mut room = room.with_context(|| format!("{place:?} is no part of {len} elements"))?;
    Ok(stream.memcpy_dtod(&own, &mut room)?)
    // ANCHOR_END: copy
}
