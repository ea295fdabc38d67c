//! Timing: the GPU's clock, by events, and the host's, which sees only when a call returns.
//!
//! Work for a GPU is enqueued on a stream, and the call returns. How long the call took says nothing of the work.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};

/// The milliseconds that a round of `work` takes on the GPU: the mean of `rounds` rounds, by the GPU's own clock. Before
/// them come `warm_ups` rounds that aren't measured. `work` puts one round into `stream`. `rounds` is at least 1.
///
/// # Errors
/// That of `work`, or what the driver answers.
pub fn gpu_milliseconds(
    stream: &Arc<CudaStream>,
    warm_ups: usize,
    rounds: usize,
    mut work: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    // ANCHOR: gpu_milliseconds
    // Measure all rounds together, between two events in the stream.
    // An event keeps the time only if it is made for it: cudarc's `record_event(None)` is not.
    for _ in 0..warm_ups {
        work()?;
    }
    let start = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
    for _ in 0..rounds {
        work()?;
    }
    let end = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
    Ok(f64::from(start.elapsed_ms(&end)?) / rounds as f64)
    // ANCHOR_END: gpu_milliseconds
}

/// By the host's clock: how long the call of `work` took, and how long it took until its work was done. What lies in the
/// stream already takes no part. `clock` says the time since some moment, such as `|| started.elapsed()`.
///
/// # Errors
/// That of `work`, or what the driver answers.
pub fn host_times(
    stream: &Arc<CudaStream>,
    clock: impl Fn() -> Duration,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<(Duration, Duration)> {
    // ANCHOR: host_times
    // Read the clock three times: before the call, behind it, and when the work is done.
    // When is nothing else in the stream, and when is the work done? The host has to wait for both.
    stream.synchronize()?;
    let start = clock();
    work()?;
    let called = clock();
    stream.synchronize()?;
    Ok((called - start, clock() - start))
    // ANCHOR_END: host_times
}

/// Puts `work` into `stream`, and returns at once, with an event that is complete when the work is done, and not before.
///
/// # Errors
/// That of `work`, or what the driver answers.
pub fn finish_line(
    stream: &Arc<CudaStream>,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<CudaEvent> {
    // ANCHOR: finish_line
    // Call `work`, and mark its end in the stream.
    // An event that was made and never recorded marks nothing: whoever asks it is told "complete".
    work()?;
    Ok(stream.record_event(None)?)
    // ANCHOR_END: finish_line
}
