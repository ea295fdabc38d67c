//! Copies between the host and GPUs.
//!
//! A `CudaSlice` owns memory on one GPU; a `CudaView` or `CudaViewMut` borrows a part of it. The host can read neither:
//! a stream copies the values.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, ensure};
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceSlice};

/// Spreads host values over GPUs. Returns one buffer per stream, each with that stream's part. No part is empty.
///
/// # Errors
/// Fails if there are not as many parts as streams, if a part extends past the end of the values, or if a driver call fails.
pub fn spread(
    streams: &[Arc<CudaStream>],
    values: &[f32],
    parts: &[Range<usize>],
) -> anyhow::Result<Vec<CudaSlice<f32>>> {
    let (streams_len, parts_len) = (streams.len(), parts.len());
    ensure!(streams_len == parts_len, "{streams_len} streams need as many parts, but got {parts_len}");
    // ANCHOR: spread
    // Copy each stream's part of the values to its GPU:
    // 1. buffer `i` is created on `streams[i]`, and is as long as `parts[i]`;
    // 2. it contains the values at `parts[i]`;
    // 3. if a part extends past the end of the values, return an error that contains both numbers (the part's end and
    //    the number of values) instead of panicking.
    let copy = |(stream, part): (&Arc<CudaStream>, &Range<usize>)| {
        let own = values.get(part.clone());
        let own = own.with_context(|| format!("{part:?} is out of range for {} values", values.len()))?;
        Ok(stream.clone_htod(own)?)
    };
    streams.iter().zip(parts).map(copy).collect()
    // ANCHOR_END: spread
}

/// Reads a part of a buffer.
///
/// # Errors
/// Fails if the part extends past the end of the buffer, or if a driver call fails.
pub fn read(buffer: &CudaView<f32>, part: Range<usize>) -> anyhow::Result<Vec<f32>> {
    // ANCHOR: read
    // Copy the part to the host:
    // 1. only the part is copied, on the buffer's own stream;
    // 2. all values have arrived when the call returns: the host waits after the copy;
    // 3. if the part extends past the end of the buffer, return an error that contains both numbers (the part's end and
    //    the buffer's length) instead of panicking.
    let own = buffer.try_slice(part.clone());
    let own = own.with_context(|| format!("{part:?} is out of range for {} elements", buffer.len()))?;
    let values = buffer.stream().clone_dtoh(&own)?;
    buffer.stream().synchronize()?;
    Ok(values)
    // ANCHOR_END: read
}

/// Copies a part of one buffer into another buffer, starting at element `at`. The buffers may be on different GPUs.
///
/// `from` must not change until the copy is done. On one GPU, cudarc ensures this; between two GPUs, the caller must.
///
/// # Errors
/// Fails if the part extends past the end of `from`, if its copy would extend past the end of `to`, or if a driver call fails.
pub fn copy(
    from: &CudaView<f32>,
    part: Range<usize>,
    to: &mut CudaViewMut<f32>,
    at: usize,
) -> anyhow::Result<()> {
    // ANCHOR: copy
    // Copy the part from GPU memory to GPU memory:
    // 1. its first value goes to element `at` of `to`, and no other element of `to` changes;
    // 2. it is a single copy, on the stream of `to`;
    // 3. return as soon as the copy is enqueued;
    // 4. if the part or its copy is out of range, copy nothing, and return an error that contains both numbers (the
    //    range's end and the buffer's length) instead of panicking.
    let own = from.try_slice(part.clone());
    let own = own.with_context(|| format!("{part:?} is out of range for {} elements", from.len()))?;
    let place = at..at + part.len();
    let (stream, len) = (to.stream().clone(), to.len());
    let room = to.try_slice_mut(place.clone());
    let mut room = room.with_context(|| format!("{place:?} is out of range for {len} elements"))?;
    Ok(stream.memcpy_dtod(&own, &mut room)?)
    // ANCHOR_END: copy
}
