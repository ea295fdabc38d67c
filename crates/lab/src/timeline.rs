//! What the streams of a GPU did, and when: from CUDA events alone, so on any tier.

mod chart;
mod overlap;
mod traced;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};
use serde::{Deserialize, Serialize};

pub use chart::{Chart, Row};
pub use overlap::Overlap;
pub(crate) use traced::chart as chart_of_trace;

/// What a piece of work does. Work of one kind shares a line of a [`Chart`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// Kernels.
    Compute,
    /// Calls of NCCL.
    Communication,
    /// Copies between the GPU and the host.
    Copy,
}

/// When a piece of work ran. Times are in milliseconds since some moment, by the clock of its GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// What it did.
    pub kind: Kind,
    /// Its name, such as `forward 3`.
    pub name: String,
    /// When its stream had come to it.
    pub start: f64,
    /// When it was done.
    pub end: f64,
}

impl Span {
    /// Milliseconds that both last; negative where they are apart, by how much.
    pub fn overlap(&self, other: &Self) -> f64 {
        self.end.min(other.end) - self.start.max(other.start)
    }
}

/// The work of one GPU that was put between events.
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
    /// An empty one, whose times count from where `stream` is now.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn start(stream: &Arc<CudaStream>) -> anyhow::Result<Self> {
        Ok(Self { origin: timed(stream)?, marks: Vec::new() })
    }

    /// Does `work`, which puts work into `stream`, between two events in that stream. Waits for nothing.
    ///
    /// # Errors
    /// That of `work`, or what the driver answers.
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

    /// When each piece of work ran, in the order of the calls of [`record`](Self::record). Waits until all is done.
    ///
    /// # Errors
    /// What the driver answers.
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

    /// When the stream of an event had come to it. The event keeps the time, as those of [`timed`] do. Waits until then.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn time(&self, event: &CudaEvent) -> anyhow::Result<f64> {
        Ok(f64::from(self.origin.elapsed_ms(event)?))
    }
}

/// The last spans that this process asked for, by GPU.
static LAST: Mutex<BTreeMap<usize, Vec<Span>>> = Mutex::new(BTreeMap::new());

/// The last spans of GPU 0 that this process asked for. Each GPU counts its times from a moment of its own, so that several don't
/// share an axis.
pub(crate) fn last_spans() -> Option<Vec<Span>> {
    LAST.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get(&0).cloned()
}

/// An event behind all that is in the stream, which keeps the time.
///
/// # Errors
/// What the driver answers.
pub fn timed(stream: &CudaStream) -> anyhow::Result<CudaEvent> {
    Ok(stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))?)
}
