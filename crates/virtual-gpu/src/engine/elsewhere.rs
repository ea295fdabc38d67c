//! Waits for other processes: events that another process has recorded, and kernels that wait for a write by another
//! process.
//!
//! While there is such a wait, a thread of the engine polls, because perhaps no other thread of this process is blocked
//! on it.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::run::Obstacle;
use super::wait::given_up;
use super::{Engine, Failure, State};
use crate::report::Report;
use virtual_gpu_core::handle::OpRef;
use virtual_gpu_core::sorted::SortedSet;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_core::sync::{spawn_for_good, thread};

/// How often the thread looks whether a record is done.
const LOOK: Duration = Duration::from_micros(300);

/// How often it looks whether the process has ended.
const LOOK_FOR_PROCESS: Duration = Duration::from_millis(20);

/// An event that processes share. Each record of it has a number, from 1.
pub trait SharedEvent: Debug + Send + Sync {
    /// Begins a record by this process, and returns its number. Returns `None` if too many records are not done.
    fn begin(&self) -> Option<u64>;

    /// Ends a record that this process has begun.
    fn end(&self, number: u64);

    /// Returns the number of the last record that any process has begun; 0 if there is none.
    fn last(&self) -> u64;

    /// Returns whether a record is done.
    fn is_done(&self, number: u64) -> bool;

    /// Returns the process that has begun a record, if it is known, and whether it has ended.
    fn process(&self, number: u64) -> Option<(u32, bool)>;

    /// Returns the event's file in a handle, if this process has made the event.
    fn key(&self) -> Option<virtual_gpu_core::memory::FileKey>;
}

/// A record by this process, which is done when it is dropped: when its stream has reached it, or is gone.
#[derive(Debug)]
pub(super) struct OwnRecord {
    event: Arc<dyn SharedEvent>,
    pub(super) number: u64,
}

impl OwnRecord {
    /// Begins a record.
    ///
    /// # Errors
    /// Returns `NotSupported` if too many records are not done.
    pub(super) fn begin(event: &Arc<dyn SharedEvent>) -> CudaResult<Arc<Self>> {
        let number = event.begin().ok_or_else(|| {
            let message = "virtual GPU: too many records of an interprocess event are pending";
            Error::new(CudaStatus::NotSupported, message)
        })?;
        Ok(Arc::new(Self { event: event.clone(), number }))
    }
}

impl Drop for OwnRecord {
    fn drop(&mut self) {
        self.event.end(self.number);
    }
}

/// A record by another process.
#[derive(Clone, Debug)]
pub(super) struct RecordElsewhere {
    pub(super) event: Arc<dyn SharedEvent>,
    pub(super) number: u64,
}

impl RecordElsewhere {
    fn is_done(&self) -> bool {
        self.event.is_done(self.number)
    }

    /// Returns the name of the process that has begun the record.
    fn process(&self) -> String {
        self.event
            .process(self.number)
            .map_or("another process".to_owned(), |(id, _)| format!("process {id}"))
    }
}

/// What this process waits for in other processes.
#[derive(Default)]
pub(super) struct Elsewhere {
    /// The operations that have reached the front of their streams, and the records that they wait for.
    waits: Vec<(OpRef, RecordElsewhere)>,
    has_thread: bool,
    looked: Option<Instant>,
}

impl Engine {
    /// Starts the thread that looks for what other processes do, unless it has been started.
    pub(super) fn watch_elsewhere(&self) -> CudaResult<()> {
        let mut state = self.state();
        let Some(&engine) = self.whole.get().filter(|_| !state.elsewhere.has_thread) else { return Ok(()) };
        spawn_for_good("virtual GPU: other processes", || engine.look_elsewhere()).map_err(|error| {
            let message = format!("can't start a thread that waits for other processes: {error}");
            Error::new(CudaStatus::OperatingSystem, message)
        })?;
        state.elsewhere.has_thread = true;
        Ok(())
    }

    fn look_elsewhere(&self) {
        let mut state = self.state();
        loop {
            if !state.has_waits_elsewhere() {
                state = self.elsewhere.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                continue;
            }
            state.together.look_again();
            let before = state.finished;
            state = self.run_ready(state);
            if state.finished != before {
                self.changed.notify_all();
            }
            let can_go_on = state.together.can_go_on();
            drop(state);
            if !can_go_on {
                thread::sleep(LOOK);
            }
            state = self.state();
        }
    }
}

impl State {
    /// Adds an operation that waits for a record, and is now the first on its stream.
    pub(super) fn await_elsewhere(&mut self, op: OpRef, record: RecordElsewhere) {
        self.elsewhere.waits.push((op, record));
    }

    /// Returns whether the thread that looks for what other processes do has anything to look for.
    pub(super) fn has_waits_elsewhere(&self) -> bool {
        !self.elsewhere.waits.is_empty()
            || self.waits_for_shared_memory()
            || self.shares_with_processes && !self.value_waits.is_empty()
    }

    /// Completes the operations whose record is done. Those whose record can't be done anymore fail.
    pub(super) fn check_elsewhere(&mut self) {
        if self.elsewhere.waits.is_empty() {
            return;
        }
        let looks = self.elsewhere.looked.is_none_or(|looked| looked.elapsed() >= LOOK_FOR_PROCESS);
        if looks {
            self.elsewhere.looked = Some(Instant::now());
        }
        for (op, record) in std::mem::take(&mut self.elsewhere.waits) {
            if !self.streams.get(&op.stream).is_some_and(|stream| stream.is_at(op)) {
                continue;
            }
            // The process may have ended right after the record was done.
            let ended = looks
                .then(|| record.event.process(record.number))
                .flatten()
                .filter(|(_, has_ended)| *has_ended && !record.is_done());
            match ended {
                _ if record.is_done() => self.finish(op.stream),
                None => self.elsewhere.waits.push((op, record)),
                Some((process, _)) => {
                    let report = self.elsewhere_report(
                        op,
                        format!("an event of process {process}, but the process has ended"),
                    );
                    let report = report.fact("the process ended before its stream had reached the event");
                    let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
                    self.fail_stream(op.stream, &failure);
                    self.finish(op.stream);
                }
            }
        }
    }

    fn elsewhere_report(&self, op: OpRef, what: String) -> Report {
        let call_site = self.call_site_of(op).unwrap_or_else(CallSite::unknown);
        Report::new(format!("a wait for {what}")).at("called", &call_site)
    }

    /// Returns the wait for another process that an operation ultimately waits for.
    pub(super) fn elsewhere_ahead(&self, op: OpRef) -> Option<OpRef> {
        match self.last_obstacle(op)? {
            Obstacle::Elsewhere(wait) => Some(wait),
            _ => None,
        }
    }

    /// Ends the waits for other processes that have lasted too long. Returns `false` if none of `ops` waits for one.
    pub(super) fn give_up_elsewhere(&mut self, ops: &[OpRef]) -> bool {
        let late: SortedSet<OpRef> = ops.iter().filter_map(|&op| self.elsewhere_ahead(op)).collect();
        for &op in &late {
            let record =
                self.elsewhere.waits.iter().find(|(known, _)| *known == op).map(|(_, record)| record);
            let process = record.map_or("another process".to_owned(), RecordElsewhere::process);
            let report = self
                .elsewhere_report(op, format!("an event of {process} that is not done"))
                .fact(given_up(self.timeout))
                .help("in that process, find out why the stream that records the event has not reached the record");
            let failure = Failure::announce(CudaStatus::LaunchTimeout, &report);
            self.fail_stream(op.stream, &failure);
            self.finish(op.stream);
        }
        !late.is_empty()
    }
}
