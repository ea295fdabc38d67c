//! Records what a GPU's streams did, and when. It uses only CUDA events, so it works on every tier.

mod chart;
mod drawing;
mod overlap;
mod recorded;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};
use serde::{Deserialize, Serialize};

pub use chart::{Chart, Row};
pub use drawing::{Drawing, RankRun, idle, on_one_clock};
pub use overlap::Overlap;
pub(crate) use recorded::rows as recorded;

/// The kind of a piece of work. Work of the same kind shares a line of a [`Chart`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// Kernels.
    Compute,
    /// NCCL calls.
    Communication,
    /// Copies between the GPU and the host.
    Copy,
}

/// When a piece of work ran, in milliseconds from an arbitrary origin, according to its GPU's clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// The kind of work.
    pub kind: Kind,
    /// Its name, such as `forward 3`.
    pub name: String,
    /// When its stream reached it.
    pub start: f64,
    /// When it was done.
    pub end: f64,
}

impl Span {
    /// Returns how many milliseconds the two spans overlap. A negative result is the gap between them.
    pub fn overlap(&self, other: &Self) -> f64 {
        self.end.min(other.end) - self.start.max(other.start)
    }
}

/// Pieces of one GPU's work, each enqueued between two events.
pub struct Timeline {
    origin: CudaEvent,
    marks: Vec<Mark>,
}

/// A piece of work, and the events around it.
struct Mark {
    kind: Kind,
    name: String,
    start: CudaEvent,
    end: CudaEvent,
}

impl Timeline {
    /// Creates an empty timeline, whose times start at the current end of `stream`.
    ///
    /// # Errors
    /// Fails if a driver call fails.
    pub fn start(stream: &Arc<CudaStream>) -> anyhow::Result<Self> {
        Ok(Self { origin: timed(stream)?, marks: Vec::new() })
    }

    /// Calls `work`, which enqueues work on `stream`, and records an event on that stream before and after that work.
    /// Does not wait.
    ///
    /// # Errors
    /// Returns any error from `work` or the driver.
    pub fn record<T>(
        &mut self,
        stream: &Arc<CudaStream>,
        kind: Kind,
        name: impl Into<String>,
        work: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let start = timed(stream)?;
        let done = work()?;
        self.marks.push(Mark { kind, name: name.into(), start, end: timed(stream)? });
        Ok(done)
    }

    /// Returns when each piece of work ran, in the order of the calls to [`record`](Self::record). Waits until all work
    /// is done.
    ///
    /// # Errors
    /// Fails if a driver call fails.
    pub fn spans(&self) -> anyhow::Result<Vec<Span>> {
        let spans: Vec<Span> = self
            .marks
            .iter()
            .map(|mark| {
                let Mark { kind, name, start, end } = mark;
                anyhow::Ok(Span {
                    kind: *kind,
                    name: name.clone(),
                    start: self.time(start)?,
                    end: self.time(end)?,
                })
            })
            .collect::<Result<_, _>>()?;
        if !spans.is_empty() {
            let mut last = LAST.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            last.insert(self.origin.context().ordinal(), spans.clone());
        }
        Ok(spans)
    }

    /// Returns when an event's stream reached it. Waits until then. The event must record its time, as events from
    /// [`timed`] do.
    ///
    /// # Errors
    /// Fails if a driver call fails.
    pub fn time(&self, event: &CudaEvent) -> anyhow::Result<f64> {
        Ok(f64::from(self.origin.elapsed_ms(event)?))
    }
}

/// The spans that this process queried last, by GPU.
static LAST: Mutex<BTreeMap<usize, Vec<Span>>> = Mutex::new(BTreeMap::new());

/// Returns the spans that this process queried last for GPU 0. Other GPUs have other time origins, so they can't share
/// an axis.
pub(crate) fn last_spans() -> Option<Vec<Span>> {
    LAST.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get(&0).cloned()
}

/// Records an event with timing after all work on the stream.
///
/// # Errors
/// Fails if a driver call fails.
pub fn timed(stream: &CudaStream) -> anyhow::Result<CudaEvent> {
    Ok(stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?)
}
