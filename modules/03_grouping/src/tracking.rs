//! Tracking: the waits that cudarc puts in by itself.
//!
//! A slice carries two events: of its last read and of its last write. A stream that reads a slice first waits for the write; one
//! that writes waits for both. So what a slice is used for on two streams comes in order, without a word from you. What the
//! slice can't tell apart comes in order too: its two halves, say. And what two events can't hold is forgotten.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};

/// Works on both halves of `values`, each on a stream of its own, with tracking on, so that the two can run at the same time;
/// returns all values when both are done. The first half is `values.len() / 2` long. Both streams belong to one context.
/// `work(stream, half)` puts the work on a half into a stream. There are at least two values.
///
/// # Errors
/// That of `work`, and what the driver answers.
pub fn in_two_slices(
    first: &Arc<CudaStream>,
    second: &Arc<CudaStream>,
    values: &[f32],
    mut work: impl FnMut(&Arc<CudaStream>, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f32>> {
    // ANCHOR: in_two_slices
    // Give each stream a slice, start the work on both, and only then read the results.
    // `clone_htod(values)` makes a slice, `clone_dtoh(slice)` reads one: which of them keeps the host until the stream is done?
    todo!("Give each stream a slice, start the work on both, and only then read the results")
    // ANCHOR_END: in_two_slices
}

/// The same with one slice: two views of it share its events, so tracking has to go. Switches it off, for good,
/// for this and all other slices of the context.
///
/// # Errors
/// That of `work`, and what the driver answers.
pub fn in_one_slice(
    first: &Arc<CudaStream>,
    second: &Arc<CudaStream>,
    values: &[f32],
    mut work: impl FnMut(&Arc<CudaStream>, &mut CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f32>> {
    // ANCHOR: in_one_slice
    // Switch tracking off, then order by hand what has to be: the second stream behind the upload, the download behind both.
    // `context.disable_event_tracking()` is unsafe: it wants a SAFETY comment. From then on nobody waits for anything but what you
    // say: `second.join(first)?` lets the second stream wait for all that is in the first one.
    todo!("Switch tracking off, then order by hand what has to be")
    // ANCHOR_END: in_one_slice
}

/// Lets each of the `readers` read the slice, and then `writer` write it, with tracking on. `read(i, slice)` puts work into
/// `readers[i]`, `write(slice)` into `writer`. The readers don't wait for each other. Returns at once.
///
/// # Errors
/// Those of `read` and `write`, and what the driver answers.
pub fn write_after_reads(
    slice: &mut CudaSlice<f32>,
    readers: &[Arc<CudaStream>],
    writer: &Arc<CudaStream>,
    mut read: impl FnMut(usize, &CudaSlice<f32>) -> anyhow::Result<()>,
    write: impl FnOnce(&mut CudaSlice<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // ANCHOR: write_after_reads
    // Read on every reader, then write, behind all of them.
    // The slice has one event for reads. Each read records it anew: which of them does the writer wait for?
    todo!("Read on every reader, then write, behind all of them")
    // ANCHOR_END: write_after_reads
}
