//! A handle to an average in flight, and four ways to wait for it.
//!
//! A collective is still running when its call returns, and its buffer must not be used until it is done. So the handle
//! keeps the buffer, and returns it only to a caller that waits. The wait is on a stream, not on the host.

use std::sync::Arc;

use collectives::all_reduce::average_in_place;
use cudarc::driver::{CudaEvent, CudaStream, CudaViewMut};
use cudarc::nccl::Comm;

/// An average in flight.
pub struct Pending<'a> {
    buffer: CudaViewMut<'a, f32>,
    done: CudaEvent,
}

impl<'a> Pending<'a> {
    /// Starts averaging `buffer` over all ranks, in place. Returns immediately. Both streams are on one GPU, and
    /// cudarc's event tracking is off.
    ///
    /// # Errors
    /// Returns any error from NCCL or the driver.
    pub fn average(
        comm: &Comm,
        compute: &Arc<CudaStream>,
        mut buffer: CudaViewMut<'a, f32>,
    ) -> anyhow::Result<Self> {
        // ANCHOR: average
        // Start the average, and keep what a later wait needs:
        // 1. the average starts after all work that is already on `compute`;
        // 2. it is one all-reduce of the whole buffer, on the communicator's own stream;
        // 3. `done` completes when the average is done;
        // 4. neither the host nor `compute` waits.
        let stream = comm.stream();
        stream.wait(&compute.record_event(None)?)?;
        average_in_place(comm, &mut buffer)?;
        Ok(Self { buffer, done: stream.record_event(None)? })
        // ANCHOR_END: average
    }

    /// Returns the buffer. Work that is enqueued on `compute` from now on sees the average in it. Returns immediately.
    ///
    /// # Errors
    /// Returns any error from the driver.
    pub fn wait(self, compute: &Arc<CudaStream>) -> anyhow::Result<CudaViewMut<'a, f32>> {
        // ANCHOR: wait
        // Return the buffer for use on `compute`:
        // 1. later work on `compute` starts only after the average is done;
        // 2. the host does not wait.
        compute.wait(&self.done)?;
        Ok(self.buffer)
        // ANCHOR_END: wait
    }

    /// Returns whether the average is done. Returns immediately.
    ///
    /// # Errors
    /// Fails if something on the GPU has failed, so that the average will never complete.
    pub fn is_complete(&self) -> anyhow::Result<bool> {
        // ANCHOR: is_complete
        // Ask whether the average is done:
        // 1. `false` means "not yet", never "it has failed";
        // 2. a failure is returned as an error.
        Ok(self.done.try_is_complete()?)
        // ANCHOR_END: is_complete
    }
}

/// Waits immediately: the first of four ways to wait, for comparison. `independent` enqueues work on `compute` that
/// does not need the average, and `dependent` enqueues work that does. Nothing runs in parallel with the average.
///
/// # Errors
/// Returns any error from `independent`, `dependent`, NCCL, or the driver.
pub fn at_once(
    comm: &Comm,
    compute: &Arc<CudaStream>,
    buffer: CudaViewMut<f32>,
    independent: impl FnOnce() -> anyhow::Result<()>,
    dependent: impl FnOnce(&CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let average = Pending::average(comm, compute, buffer)?.wait(compute)?;
    independent()?;
    dependent(&average)
}

/// Waits just before the average is used: the second way. Returns immediately.
///
/// # Errors
/// Fails like [`at_once`].
pub fn before_use(
    comm: &Comm,
    compute: &Arc<CudaStream>,
    buffer: CudaViewMut<f32>,
    independent: impl FnOnce() -> anyhow::Result<()>,
    dependent: impl FnOnce(&CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // ANCHOR: before_use
    // Average the buffer, and call both closures once:
    // 1. the average does not wait for the work from `independent`;
    // 2. the work from `independent` can run in parallel with the average;
    // 3. the work from `dependent` sees the average in the buffer.
    let pending = Pending::average(comm, compute, buffer)?;
    independent()?;
    dependent(&pending.wait(compute)?)
    // ANCHOR_END: before_use
}

/// Averages several buffers, and waits for them at the end: the third way. `dependent(i, average)` uses the average of
/// buffer `i`. There may be no buffers. Returns immediately.
///
/// # Errors
/// Fails like [`at_once`].
pub fn all_at_the_end(
    comm: &Comm,
    compute: &Arc<CudaStream>,
    buffers: Vec<CudaViewMut<f32>>,
    independent: impl FnOnce() -> anyhow::Result<()>,
    mut dependent: impl FnMut(usize, &CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // ANCHOR: all_at_the_end
    // Average all buffers, call `independent` once, and call `dependent` for each buffer in order:
    // 1. no average waits for another buffer's `dependent`, or for the work from `independent`;
    // 2. the work from `independent` can run in parallel with all averages;
    // 3. the work from `dependent(i, …)` sees the average in buffer `i`.
    let mut all = Vec::new();
    for buffer in buffers {
        all.push(Pending::average(comm, compute, buffer)?);
    }
    independent()?;
    for (index, pending) in all.into_iter().enumerate() {
        dependent(index, &pending.wait(compute)?)?;
    }
    Ok(())
    // ANCHOR_END: all_at_the_end
}

/// Works on the host until the average is done: the fourth way. Each call to `independent` does one piece of that work.
///
/// # Errors
/// Fails like [`at_once`], and also if the average fails.
pub fn polling(
    comm: &Comm,
    compute: &Arc<CudaStream>,
    buffer: CudaViewMut<f32>,
    mut independent: impl FnMut() -> anyhow::Result<()>,
    dependent: impl FnOnce(&CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // ANCHOR: polling
    // Average the buffer while the host works:
    // 1. `independent` is called repeatedly until the average is done; if it already is, a call is optional;
    // 2. only then is `dependent` called;
    // 3. a failed average ends the loop with its error.
    let pending = Pending::average(comm, compute, buffer)?;
    while !pending.is_complete()? {
        independent()?;
    }
    dependent(&pending.wait(compute)?)
    // ANCHOR_END: polling
}
