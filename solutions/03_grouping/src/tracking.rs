//! Event tracking: the waits that cudarc inserts on its own.
//!
//! Each slice carries two events, one for its last read and one for its last write. All views of a slice share them.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};

/// Works on both halves of `values` at the same time, each on its own stream, with tracking on. Returns all values once
/// the work is done. There are at least two values; if their number is odd, the second half has one more than the
/// first. Both streams belong to the same context. `work(stream, half)` enqueues the work on one half.
///
/// # Errors
/// Returns any error from `work` or the driver.
pub fn in_two_slices(
    first: &Arc<CudaStream>,
    second: &Arc<CudaStream>,
    values: &[f32],
    mut work: impl FnMut(&Arc<CudaStream>, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f32>> {
    // ANCHOR: in_two_slices
    // Work on both halves at the same time:
    // 1. `first` works on the first half, and `second` on the second half, each once;
    // 2. neither half waits for the other, on the GPU or on the host;
    // 3. tracking stays on;
    // 4. every value is copied to the GPU and back exactly once;
    // 5. the result contains all values in their original order, with all work done.
    let (front, back) = values.split_at(values.len() / 2);
    let mut front = first.clone_htod(front)?;
    let mut back = second.clone_htod(back)?;
    work(first, &mut front.as_view_mut())?;
    work(second, &mut back.as_view_mut())?;
    let mut all = first.clone_dtoh(&front)?;
    all.extend(second.clone_dtoh(&back)?);
    Ok(all)
    // ANCHOR_END: in_two_slices
}

/// Works on both halves of a single slice in parallel. Switches tracking off for good, for this slice and for all later slices of the context.
///
/// # Errors
/// Returns any error from `work` or the driver.
pub fn in_one_slice(
    first: &Arc<CudaStream>,
    second: &Arc<CudaStream>,
    values: &[f32],
    mut work: impl FnMut(&Arc<CudaStream>, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f32>> {
    // ANCHOR: in_one_slice
    // Work on two views of one slice at the same time:
    // 1. all values are in one slice, and `work` gets a view of each half;
    // 2. tracking is off, so that neither half waits for the other;
    // 3. `second` starts only after the values are on the GPU;
    // 4. the result is read, and the slice is freed, only after both halves are done, even if `work` fails;
    // 5. every value is copied to the GPU and back exactly once.

    // SAFETY: the two joins below order everything that both streams use, including the free of the slice.
    unsafe { first.context().disable_event_tracking() };
    let mut whole = first.clone_htod(values)?;
    second.join(first)?;
    let (mut front, mut back) = whole.split_at_mut(values.len() / 2);
    work(first, &mut front)?;
    let worked = work(second, &mut back);
    first.join(second)?;
    worked?;
    Ok(first.clone_dtoh(&whole)?)
    // ANCHOR_END: in_one_slice
}

/// Lets each of the `readers` read the slice, and then the `writer` write it, with tracking on. `read(i, slice)`
/// enqueues work on `readers[i]`, and `write(slice)` on `writer`. There may be no readers. Returns once everything has
/// been enqueued.
///
/// # Errors
/// Returns any error from `read`, `write`, or the driver.
pub fn write_after_reads(
    slice: &mut CudaSlice<f32>,
    readers: &[Arc<CudaStream>],
    writer: &Arc<CudaStream>,
    mut read: impl FnMut(usize, &CudaSlice<f32>) -> anyhow::Result<()>,
    write: impl FnOnce(&mut CudaSlice<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // ANCHOR: write_after_reads
    // Make the writer wait for all readers:
    // 1. on the GPU, the write starts only after every read is done;
    // 2. no reader waits for another reader;
    // 3. the readers and the writer get `slice` itself, not a copy;
    // 4. the host does not wait for any stream, and tracking stays on.
    for (index, reader) in readers.iter().enumerate() {
        read(index, slice)?;
        writer.join(reader)?;
    }
    write(slice)
    // ANCHOR_END: write_after_reads
}
