//! Measures how long work takes, using the GPU's own clock.

use std::sync::Arc;

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};

/// A start mark in a stream.
pub struct Stopwatch {
    stream: Arc<CudaStream>,
    start: CudaEvent,
}

impl Stopwatch {
    /// Records a mark after all work that has been enqueued on the stream.
    ///
    /// # Errors
    /// Fails if a driver call fails.
    pub fn start(stream: &Arc<CudaStream>) -> anyhow::Result<Self> {
        let start = stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        Ok(Self { stream: stream.clone(), start })
    }

    /// Waits for all work that has been enqueued since the mark, and returns how many microseconds it took.
    ///
    /// # Errors
    /// Fails if a driver call fails.
    pub fn microseconds(self) -> anyhow::Result<f64> {
        let end = self.stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?;
        Ok(f64::from(self.start.elapsed_ms(&end)?) * 1e3)
    }
}
