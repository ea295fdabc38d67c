// mistake: the host's clock is read before the GPU is done
// fails: timing::the_call_is_not_the_work
// says: a call returns at once, and its work is done when the stream is

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};

pub fn gpu_milliseconds(
    stream: &Arc<CudaStream>,
    warm_ups: usize,
    rounds: usize,
    mut work: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    for _ in 0..warm_ups {
        work()?;
    }
    let start = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
    for _ in 0..rounds {
        work()?;
    }
    let end = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
    Ok(f64::from(start.elapsed_ms(&end)?) / rounds as f64)
}

pub fn host_times(
    stream: &Arc<CudaStream>,
    clock: impl Fn() -> Duration,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<(Duration, Duration)> {
    stream.synchronize()?;
    let start = clock();
    work()?;
    let called = clock();
    Ok((called - start, clock() - start))
}

pub fn finish_line(
    stream: &Arc<CudaStream>,
    work: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<CudaEvent> {
    work()?;
    Ok(stream.record_event(None)?)
}
