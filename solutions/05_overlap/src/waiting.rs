//! A handle to a collective in flight, and when to wait for it.
//!
//! A collective on a stream of its own is under way when the call returns. What it works on is nobody's until it is done. So
//! the handle keeps the buffer, and whoever wants it back has to wait. The waiting is done by a stream, not by the host.

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
    /// Begins to average the buffer over all ranks, in place, on the communicator's stream, once the `compute` stream has
    /// done all that is enqueued there. Returns at once. Both streams are on one GPU, and cudarc's event tracking is off.
    ///
    /// # Errors
    /// What NCCL and the driver answer.
    pub fn average(
        comm: &Comm,
        compute: &Arc<CudaStream>,
        mut buffer: CudaViewMut<'a, f32>,
    ) -> anyhow::Result<Self> {
        // ANCHOR: average
        // Average the buffer behind what the compute stream does, and mark where it is done.
        // The average belongs into the communicator's stream: `comm.stream()` is that stream. You wrote `average_in_place` in module 02.
        let stream = comm.stream();
        stream.wait(&compute.record_event(None)?)?;
        average_in_place(comm, &mut buffer)?;
        Ok(Self { buffer, done: stream.record_event(None)? })
        // ANCHOR_END: average
    }

    /// Gives the buffer back. What is enqueued in the `compute` stream from now on finds the average in it. Returns at once.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn wait(self, compute: &Arc<CudaStream>) -> anyhow::Result<CudaViewMut<'a, f32>> {
        // ANCHOR: wait
        // Let the compute stream wait for the average, and hand out the buffer. The host waits for nothing.
        compute.wait(&self.done)?;
        Ok(self.buffer)
        // ANCHOR_END: wait
    }

    /// Whether the average is there already. Returns at once.
    ///
    /// # Errors
    /// Something on the GPU has failed: it will never be there.
    pub fn is_complete(&self) -> anyhow::Result<bool> {
        // ANCHOR: is_complete
        // Query the event, and tell "not yet" from "never".
        // cudarc has two queries. Read what each of them says of an error.
        Ok(self.done.try_is_complete()?)
        // ANCHOR_END: is_complete
    }
}

/// The first way, for comparison: waits at once. `independent` enqueues work in the compute stream that doesn't need the
/// average, `dependent` work that does. Nothing of it runs in parallel with the collective.
///
/// # Errors
/// Those of `independent` and `dependent`, and what NCCL and the driver answer.
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

/// The second way: waits before the average is used. `independent` is free to run in parallel with the collective. Returns at once.
///
/// # Errors
/// As [`at_once`].
pub fn before_use(
    comm: &Comm,
    compute: &Arc<CudaStream>,
    buffer: CudaViewMut<f32>,
    independent: impl FnOnce() -> anyhow::Result<()>,
    dependent: impl FnOnce(&CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // ANCHOR: before_use
    // Begin the average, enqueue what doesn't need it, and only then wait.
    let pending = Pending::average(comm, compute, buffer)?;
    independent()?;
    dependent(&pending.wait(compute)?)
    // ANCHOR_END: before_use
}

/// The third way: begins the averages of all buffers, and waits for all of them at the end. `dependent(i, average)` uses that
/// of buffer `i`. Returns at once.
///
/// # Errors
/// As [`at_once`].
pub fn all_at_the_end(
    comm: &Comm,
    compute: &Arc<CudaStream>,
    buffers: Vec<CudaViewMut<f32>>,
    independent: impl FnOnce() -> anyhow::Result<()>,
    mut dependent: impl FnMut(usize, &CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // ANCHOR: all_at_the_end
    // Begin all averages, enqueue what doesn't need them, then wait for each and use it.
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

/// The fourth way: calls `independent` again and again, a piece of work each time, until the average is there; then uses it.
/// For a host that has something to do meanwhile.
///
/// # Errors
/// As [`at_once`]; and where the collective fails, that.
pub fn polling(
    comm: &Comm,
    compute: &Arc<CudaStream>,
    buffer: CudaViewMut<f32>,
    mut independent: impl FnMut() -> anyhow::Result<()>,
    dependent: impl FnOnce(&CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // ANCHOR: polling
    // Begin the average, do a piece of work each time it isn't complete, and use it when it is.
    let pending = Pending::average(comm, compute, buffer)?;
    while !pending.is_complete()? {
        independent()?;
    }
    dependent(&pending.wait(compute)?)
    // ANCHOR_END: polling
}
