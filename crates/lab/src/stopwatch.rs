//! How long work took, by the GPU's own clock.

use std::sync::Arc;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};

/// A mark in a stream, from which time is taken.
pub struct Stopwatch {
    stream: Arc<CudaStream>,
    start: CudaEvent,
}

impl Stopwatch {
    /// Marks where the stream is now: after all that was enqueued on it.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn start(stream: &Arc<CudaStream>) -> anyhow::Result<Self> {
        let start = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        Ok(Self { stream: stream.clone(), start })
    }

    /// Waits until all is done that was enqueued since the mark, and says how many microseconds that took.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn microseconds(self) -> anyhow::Result<f64> {
        let end = self.stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        Ok(f64::from(self.start.elapsed_ms(&end)?) * 1e3)
    }
}
