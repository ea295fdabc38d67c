//! Copies between the host and GPUs.
//!
//! A `CudaSlice` owns memory of one GPU; a `CudaView` or `CudaViewMut` borrows a part of it. The host can read neither: a
//! stream copies the values.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, ensure};
use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DeviceSlice};

/// Spreads host values over GPUs. Returns one buffer per stream, which holds that stream's part. No part is empty.
///
/// # Errors
/// Fails if the numbers of parts and streams differ, if a part reaches beyond the values, or if the driver fails.
pub fn spread(
    streams: &[Arc<CudaStream>],
    values: &[f32],
    parts: &[Range<usize>],
) -> anyhow::Result<Vec<CudaSlice<f32>>> {
    let (streams_len, parts_len) = (streams.len(), parts.len());
    ensure!(streams_len == parts_len, "{streams_len} streams, but {parts_len} parts: each needs one");
    // ANCHOR: spread
    // Copy each stream its part of the values:
    // 1. buffer `i` is created on `streams[i]`, and is as long as `parts[i]`;
    // 2. it has the values at `parts[i]`;
    // 3. a part that reaches beyond the values is an error that has both numbers (its end, and how many values there are), not
    //    a panic.
    todo!("Copy each stream its part of the values")
    // ANCHOR_END: spread
}

/// Reads a part of a buffer.
///
/// # Errors
/// Fails if the part reaches beyond the buffer, or if the driver fails.
pub fn read(buffer: &CudaView<f32>, part: Range<usize>) -> anyhow::Result<Vec<f32>> {
    // ANCHOR: read
    // Copy the part to the host:
    // 1. only the part is copied, on the buffer's own stream;
    // 2. all values have arrived when the call returns: the host waits after the copy;
    // 3. a part that reaches beyond the buffer is an error that has both numbers (its end, and the buffer's length), not a panic.
    todo!("Copy the part to the host")
    // ANCHOR_END: read
}

/// Copies a part of one buffer into another buffer, starting at element `at`. The buffers may be on different GPUs.
///
/// `from` must not change until the copy is done. On one GPU, cudarc ensures this; between two GPUs, the caller must.
///
/// # Errors
/// Fails if the part reaches beyond `from`, if its copy would reach beyond `to`, or if the driver fails.
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
    // 3. the call returns as soon as the copy is enqueued;
    // 4. where the part or its copy is out of range, the result is an error that has both numbers (the end of the range, and the
    //    buffer's length), not a panic, and nothing is copied.
    todo!("Copy the part from GPU memory to GPU memory")
    // ANCHOR_END: copy
}
