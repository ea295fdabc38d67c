//! Events: snapshots of streams, used to wait and to measure time.

use std::sync::Arc;

use super::capture::Captured;
use super::context::ContextHandle;
use super::elsewhere::{OwnRecord, RecordElsewhere, SharedEvent};
use super::graph::NodeWork;
use super::stream::{Awaited, StreamKind};
use super::work::Work;
use super::{Engine, State};
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::memory::FileKey;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_core::sync::MutexGuard;

/// A `CUevent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventHandle(pub u64);

pub(super) struct Event {
    pub(super) context: ContextHandle,
    /// Whether the event measures time (not `CU_EVENT_DISABLE_TIMING`).
    timing: bool,
    /// What other processes know about it (`CU_EVENT_INTERPROCESS`).
    shared: Option<SharedWithProcesses>,
    recorded: Option<Recorded>,
}

/// An event's records by all processes.
struct SharedWithProcesses {
    event: Arc<dyn SharedEvent>,
    /// The number of the record that `recorded` stands for.
    known: u64,
    /// The stream that waits for records by other processes.
    stream: Option<StreamHandle>,
}

impl Event {
    /// Returns whether other processes may use the event.
    pub(super) fn is_interprocess(&self) -> bool {
        self.shared.is_some()
    }
}

/// An event's last record: a snapshot of its stream.
#[derive(Clone)]
pub(super) enum Recorded {
    /// The operation whose completion makes the event done.
    Done(Awaited),
    /// A point in a graph.
    Captured(Captured),
}

impl Engine {
    /// `cuStreamWaitEvent`: later operations on `stream` wait for the event's last record.
    pub fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> CudaResult<()> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        state.hear_of_record(event)?;
        let recorded = state.event(event)?.recorded.clone();
        if state.captured_wait(stream, event, recorded.as_ref())? {
            return Ok(());
        }
        let after = match recorded {
            Some(Recorded::Done(op)) => vec![op],
            _ => Vec::new(),
        };
        state.enqueue(stream, Work::Wait, after, CallSite::unknown())?;
        drop(self.run_ready(state));
        Ok(())
    }

    /// `cuStreamWaitEvent` with `CU_EVENT_WAIT_EXTERNAL`: adds a node that waits for the event to the graph that is
    /// being captured.
    ///
    /// # Errors
    /// Returns `IllegalState` if the stream is not being captured.
    pub fn wait_external_event(&self, stream: StreamHandle, event: EventHandle) -> CudaResult<()> {
        self.add_external(stream, event, "cuStreamWaitEvent: CU_EVENT_WAIT_EXTERNAL", NodeWork::Wait(event))
    }

    /// `cuEventRecordWithFlags` with `CU_EVENT_RECORD_EXTERNAL`: adds a node that records the event to the graph that
    /// is being captured.
    ///
    /// # Errors
    /// Returns `IllegalState` if the stream is not being captured.
    pub fn record_external_event(&self, event: EventHandle, stream: StreamHandle) -> CudaResult<()> {
        let what = "cuEventRecordWithFlags: CU_EVENT_RECORD_EXTERNAL";
        self.add_external(stream, event, what, NodeWork::Record(event))
    }

    fn add_external(
        &self,
        stream: StreamHandle,
        event: EventHandle,
        what: &str,
        work: NodeWork,
    ) -> CudaResult<()> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        state.event(event)?;
        if !state.is_capturing(stream) {
            let message = format!("{what} is only for captures");
            return Err(Error::new(CudaStatus::IllegalState, message));
        }
        state.add_node(stream, work, CallSite::here())
    }

    /// `cuCtxRecordEvent`: records everything that is enqueued in a context.
    ///
    /// # Errors
    /// Returns `InvalidHandle` if the event is from another context, `StreamCaptureUnsupported` if a stream of the context is
    /// being captured, and `NotSupported` for an event that processes share.
    pub fn record_context(&self, context: ContextHandle, event: EventHandle) -> CudaResult<()> {
        let mut state = self.state();
        let device = state.device_of_context(context)?;
        state.check_usable(context)?;
        state.check_none_captured(context, "cuCtxRecordEvent")?;
        let of_event = state.event(event)?.context;
        if of_event != context {
            let (event, context) = (state.describe(of_event), state.describe(context));
            let message = format!("an event from {event} can't be recorded in {context}");
            return Err(Error::new(CudaStatus::InvalidHandle, message));
        }
        if state.event(event)?.is_interprocess() {
            let message = "virtual GPU: recording a context in an interprocess event is not supported";
            return Err(Error::new(CudaStatus::NotSupported, message));
        }
        let all = state.last_of_all(context);
        // No stream of the program waits for the record unless it is told to.
        let stream = state.new_stream(context, device, false, StreamKind::OfEvent);
        let done = state.append(stream, Work::Record, all, CallSite::unknown())?;
        state.retire_stream(stream);
        state.set_recorded(event, done);
        drop(self.run_ready(state));
        Ok(())
    }

    /// `cuCtxWaitEvent`: makes all later work in a context wait for the event's last record.
    ///
    /// # Errors
    /// Returns `StreamCaptureUnsupported` if a stream of the context is being captured.
    pub fn wait_in_context(&self, context: ContextHandle, event: EventHandle) -> CudaResult<()> {
        let mut state = self.state();
        state.context(context)?;
        state.check_none_captured(context, "cuCtxWaitEvent")?;
        state.hear_of_record(event)?;
        let after: Vec<Awaited> = state.done_record(event, "cuCtxWaitEvent")?.1.into_iter().collect();
        state.check_usable(context)?;
        // The waits are not work on the default stream, which would be ordered with all other streams.
        for stream in state.streams_of(context) {
            state.append(stream, Work::Wait, after.clone(), CallSite::unknown())?;
        }
        drop(self.run_ready(state));
        Ok(())
    }

    /// `cuEventCreate`: creates an event in the current context.
    pub fn create_event(&self, timing: bool) -> CudaResult<EventHandle> {
        self.new_event(timing, None)
    }

    /// `cuEventCreate` with `CU_EVENT_INTERPROCESS`, which needs `CU_EVENT_DISABLE_TIMING`, and `cuIpcOpenEventHandle`.
    pub fn create_shared_event(&self, shared: Arc<dyn SharedEvent>) -> CudaResult<EventHandle> {
        self.watch_elsewhere()?;
        self.new_event(false, Some(SharedWithProcesses { event: shared, known: 0, stream: None }))
    }

    /// Returns the file of an event that this process has created with `CU_EVENT_INTERPROCESS`.
    pub fn file_of_event(&self, event: EventHandle) -> CudaResult<Option<FileKey>> {
        Ok(self.state().event(event)?.shared.as_ref().and_then(|shared| shared.event.key()))
    }

    fn new_event(&self, timing: bool, shared: Option<SharedWithProcesses>) -> CudaResult<EventHandle> {
        let mut state = self.state();
        let context = state.current_context()?;
        state.check_usable(context)?;
        let event = EventHandle(state.new_handle());
        state.events.insert(event, Event { context, timing, shared, recorded: None });
        Ok(event)
    }

    /// `cuEventDestroy`: returns immediately; existing waits for the event keep their snapshot.
    pub fn destroy_event(&self, event: EventHandle) -> CudaResult<()> {
        let mut state = self.state();
        let removed = state.events.remove(&event).ok_or_else(|| not_an_event(event))?;
        if let Some(stream) = removed.shared.and_then(|shared| shared.stream) {
            state.retire_stream(stream);
        }
        Ok(())
    }

    /// `cuEventRecord`.
    pub fn record_event(&self, event: EventHandle, stream: StreamHandle) -> CudaResult<()> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let of_event = state.event(event)?.context;
        let of_stream = state.last_of(stream)?.0;
        if of_event != of_stream {
            let (event, stream) = (state.describe(of_event), state.describe(of_stream));
            let message = format!("an event from {event} can't be recorded on a stream from {stream}");
            return Err(Error::new(CudaStatus::InvalidHandle, message));
        }
        let recorded = match state.captured_record(stream)? {
            Some(captured) => captured,
            None => {
                let shared = state.events.get_mut(&event).and_then(|event| event.shared.as_mut());
                let work = match shared {
                    Some(shared) => {
                        let own = OwnRecord::begin(&shared.event)?;
                        shared.known = own.number;
                        Work::RecordFor(own)
                    }
                    None => Work::Record,
                };
                Recorded::Done(state.enqueue(stream, work, Vec::new(), CallSite::unknown())?)
            }
        };
        if let Some(event) = state.events.get_mut(&event) {
            event.recorded = Some(recorded);
        }
        drop(self.run_ready(state));
        Ok(())
    }

    /// `cuEventSynchronize`: returns once the last record is done.
    pub fn synchronize_event(&self, event: EventHandle) -> CudaResult<()> {
        let mut state = self.state();
        state.hear_of_record(event)?;
        let (context, recorded) = state.done_record(event, "cuEventSynchronize")?;
        let done = self.wait_in(context, recorded.into_iter().collect(), "cuEventSynchronize", state);
        self.release_unused();
        done
    }

    /// `cuEventQuery`: returns whether the last record is done. An event that was never recorded is considered done.
    pub fn query_event(&self, event: EventHandle) -> CudaResult<bool> {
        // A captured event is the program's mistake even where a capture forbids the call.
        self.state().done_record(event, "cuEventQuery")?;
        self.check_capture_allows("cuEventQuery")?;
        let mut state = self.state();
        state.hear_of_record(event)?;
        let (context, recorded) = state.done_record(event, "cuEventQuery")?;
        self.query(context, recorded, state)
    }

    pub(super) fn query(
        &self,
        context: ContextHandle,
        awaited: Option<Awaited>,
        state: MutexGuard<'_, State>,
    ) -> CudaResult<bool> {
        let mut state = self.run_ready(state);
        let thread = state.current_thread();
        if let Some(awaited) = &awaited {
            // Returning "not done" here takes no virtual time, so the clock does not depend on how often a thread
            // polls.
            while !state.is_done(awaited.op) {
                if state.give_up_polling(awaited.op) {
                    state = self.run_ready(state);
                    self.wake_all();
                    continue;
                }
                state.communication.was_polled(thread, awaited.op);
                return Ok(false);
            }
            state = self.wait_for_times(std::slice::from_ref(awaited), state);
            if !state.time.has_ended(thread, &awaited.when) {
                state.early_queries += 1;
                state.communication.was_polled(thread, awaited.op);
                return Ok(false);
            }
        }
        state.knows(awaited);
        state.report_failure(context).map(|()| true)
    }

    /// `cuEventElapsedTime`: returns the number of milliseconds between two records, by the virtual clock.
    ///
    /// # Errors
    /// Returns `InvalidHandle` if an event was never recorded or does not measure time, or if the events belong to
    /// different GPUs; returns `NotReady` if either event is not done.
    pub fn elapsed(&self, start: EventHandle, end: EventHandle) -> CudaResult<f32> {
        let mut state = self.run_ready(self.state());
        let refuse = |why: &str| Error::new(CudaStatus::InvalidHandle, format!("cuEventElapsedTime: {why}"));
        let gpu = |event| state.device_of_context(state.event(event)?.context);
        if gpu(start)? != gpu(end)? {
            return Err(refuse("the events belong to different GPUs"));
        }
        let mut ends = [0; 2];
        for (at, event) in ends.iter_mut().zip([start, end]) {
            let entry = state.event(event)?;
            if !entry.timing {
                return Err(refuse("an event was created with CU_EVENT_DISABLE_TIMING (cudarc's default)"));
            }
            let recorded = match &entry.recorded {
                Some(Recorded::Done(recorded)) => recorded.clone(),
                Some(Recorded::Captured(_)) => {
                    return Err(refuse("an event was last recorded on a captured stream"));
                }
                None => return Err(refuse("an event was never recorded")),
            };
            if !state.is_done(recorded.op) {
                return Err(CudaStatus::NotReady.into());
            }
            state = self.wait_for_times(std::slice::from_ref(&recorded), state);
            *at = recorded.when.get().ok_or_else(|| Error::from(CudaStatus::NotReady))?.end;
        }
        Ok(((ends[1] as f64 - ends[0] as f64) / 1e6) as f32)
    }
}

impl State {
    /// Makes an operation an event's last record.
    pub(super) fn set_recorded(&mut self, event: EventHandle, done: Awaited) {
        if let Some(event) = self.events.get_mut(&event) {
            event.recorded = Some(Recorded::Done(done));
        }
    }

    /// If another process has made an event's last record, enqueues an operation that waits for that record, and uses
    /// the operation as the event's last record.
    fn hear_of_record(&mut self, event: EventHandle) -> CudaResult<()> {
        let entry = self.event(event)?;
        let context = entry.context;
        let Some(SharedWithProcesses { event: shared, known, stream }) = &entry.shared else { return Ok(()) };
        let (shared, number, stream) = (shared.clone(), shared.last(), *stream);
        if number == *known {
            return Ok(());
        }
        let stream = match stream {
            Some(stream) => stream,
            None => {
                let device = self.device_of_context(context)?;
                self.new_stream(context, device, false, StreamKind::OfEvent)
            }
        };
        let work = Work::WaitElsewhere(RecordElsewhere { event: shared, number });
        let stands_for_it = self.append(stream, work, Vec::new(), CallSite::here())?;
        if let Some(entry) = self.events.get_mut(&event) {
            entry.recorded = Some(Recorded::Done(stands_for_it));
            if let Some(shared) = &mut entry.shared {
                (shared.known, shared.stream) = (number, Some(stream));
            }
        }
        Ok(())
    }

    /// Returns an event's context and its last record, which must not be in a graph.
    pub(super) fn done_record(
        &mut self,
        event: EventHandle,
        call: &str,
    ) -> CudaResult<(ContextHandle, Option<Awaited>)> {
        let Event { context, recorded, .. } = self.event(event)?;
        let (context, recorded) = (*context, recorded.clone());
        match recorded {
            None => Ok((context, None)),
            Some(Recorded::Done(op)) => Ok((context, Some(op))),
            Some(recorded) => self.check_event_done(&recorded, call).map(|()| (context, None)),
        }
    }

    pub(super) fn event(&self, event: EventHandle) -> CudaResult<&Event> {
        self.events.get(&event).ok_or_else(|| not_an_event(event))
    }
}

fn not_an_event(event: EventHandle) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidHandle, format!("{:#x} is not an event, or is no longer one", event.0))
}
