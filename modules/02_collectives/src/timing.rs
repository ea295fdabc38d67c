//! Timing: events read the GPU's clock. The host's clock shows only when a call returns.
//!
//! Work for a GPU is enqueued on a stream, so the duration of a call does not depend on the duration of its work.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};

/// Measures one round of `work` by the GPU's clock, and returns milliseconds: the mean over `rounds` rounds, after
/// `warm_ups` unmeasured rounds. `work` enqueues one round on `stream`. `rounds` is at least 1.
///
/// # Errors
/// Returns any error from `work` or the driver.
pub fn gpu_milliseconds(
    stream: &Arc<CudaStream>,
    warm_ups: usize,
    rounds: usize,
    mut work: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    // ANCHOR: gpu_milliseconds
    // Measure a round by the GPU's clock:
    // 1. `work` is called `warm_ups` times, and then `rounds` times;
    // 2. the result is the mean of the last `rounds` rounds, measured together;
    // 3. the warm-ups are not measured.
    todo!("Measure a round by the GPU's clock")
    // ANCHOR_END: gpu_milliseconds
}

/// Measures by the host's clock how long the call to `work` takes, and how long it takes until the enqueued work is
/// done. `clock` returns the time since a fixed moment, as `|| started.elapsed()` does.
///
/// # Errors
/// Returns any error from `work` or the driver.
pub fn host_times(
    stream: &Arc<CudaStream>,
    clock: impl Fn() -> Duration,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<(Duration, Duration)> {
    // ANCHOR: host_times
    // Measure a call and its work by the host's clock:
    // 1. the first time is from just before the call until it has returned;
    // 2. the second time is from the same moment until its work is done;
    // 3. neither time includes work that was already in the stream.
    todo!("Measure a call and its work by the host's clock")
    // ANCHOR_END: host_times
}

/// Enqueues `work` on `stream`, and returns an event that marks its end.
///
/// # Errors
/// Returns any error from `work` or the driver.
pub fn finish_line(
    stream: &Arc<CudaStream>,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<CudaEvent> {
    // ANCHOR: finish_line
    // Mark the end of the work:
    // 1. the event is complete when the work is done, and not before;
    // 2. the function does not wait for the work.
    todo!("Mark the end of the work")
    // ANCHOR_END: finish_line
}
