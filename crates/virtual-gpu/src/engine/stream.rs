//! Streams and events: what is enqueued, what it waits for, and who runs it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use super::context::ContextHandle;
use super::host::HostFunction;
use super::host_memory::{HostRead, HostWrite};
use super::launch::KernelLaunch;
use super::wait::{Blocked, Wait};
use super::{Engine, Failure, State};
use crate::config::Checks;
use crate::memory::{Allocation, AllocationId};
use crate::nccl::CallKey;
use crate::order::{Accessor, Place, Touch, View};
use crate::site::Site;
use crate::status::{CudaResult, CudaStatus, Error};
use crate::thread::ThreadKey;
use crate::time::{Cost, Span, Ticket, Time, When};

/// A `CUstream`. 0 and 1 stand for the current context's legacy default stream, 2 for the thread's own default
/// stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamHandle(pub u64);

/// A `CUevent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventHandle(pub u64);

/// The `number`th operation of a stream, from 1. A stream's operations are done in order, so a number says it all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpRef {
    pub(crate) stream: StreamHandle,
    pub(crate) number: u64,
}

/// An operation that something may wait for, and what will have happened once it is done.
#[derive(Clone, Debug)]
pub(crate) struct Awaited {
    pub(crate) op: OpRef,
    pub(super) done: Arc<OnceLock<View>>,
    pub(super) when: When,
}

pub(crate) struct Stream {
    pub(crate) context: ContextHandle,
    pub(crate) device: usize,
    /// Whether it waits for the legacy default stream, and that one for it (not `CU_STREAM_NON_BLOCKING`).
    blocking: bool,
    legacy: bool,
    /// Its name in reports.
    pub(crate) name: Arc<str>,
    queue: VecDeque<Op>,
    issued: u64,
    done: u64,
    /// The operation that was enqueued last.
    last: Awaited,
    /// What had happened when the last one was done.
    view: View,
    /// The last operation that touched memory which may still be there.
    last_touch: u64,
    /// The first operation is being run, or is a collective whose other ranks have not come.
    busy: bool,
    destroyed: bool,
}

/// Who makes a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamKind {
    /// Its context: the legacy default stream.
    Legacy,
    /// A thread's first use of its own default stream.
    OfThread,
    /// The program.
    Made,
}

pub(super) struct Event {
    pub(super) context: ContextHandle,
    /// Whether it keeps the time (not `CU_EVENT_DISABLE_TIMING`).
    timing: bool,
    /// The last record: an event is a snapshot of its stream.
    recorded: Option<Awaited>,
}

struct Op {
    after: Vec<Awaited>,
    work: Work,
    site: Site,
    thread: ThreadKey,
    /// What its thread knew when it enqueued it; once it runs, also what its predecessors knew.
    view: View,
    done: Arc<OnceLock<View>>,
    ticket: Ticket,
}

/// What an operation does when its turn has come.
pub(crate) enum Work {
    /// Records an event, or waits: its place in the stream is all that matters.
    Nothing,
    /// Host bytes, taken at the call, to the device.
    Upload {
        to: u64,
        bytes: Vec<u8>,
    },
    /// Device bytes to the slot that the caller waits for.
    Download {
        from: u64,
        len: u64,
        into: Arc<Mutex<Vec<u8>>>,
    },
    /// Host bytes, read when their turn comes, to the device.
    UploadPinned {
        to: u64,
        len: u64,
        read: HostRead,
    },
    /// Device bytes to the host, which waits for them or not.
    DownloadPinned {
        from: u64,
        len: u64,
        write: HostWrite,
    },
    Copy {
        from: u64,
        to: u64,
        len: u64,
    },
    Set {
        at: u64,
        len: u64,
        value: u8,
    },
    Free {
        at: u64,
    },
    Kernel(Box<KernelLaunch>),
    /// A call of the program's code; none once it is with the thread that runs it.
    Host(Option<HostFunction>),
    /// One rank's part of a collective.
    Collective(CallKey),
}

/// Work that has been taken out of its stream and can run without the lock.
enum Job {
    Op { stream: StreamHandle, device: usize, work: Work, site: Site, start_ns: u64 },
    Collective(CallKey),
}

impl Stream {
    /// Whether the stream has come to `op`, which is its first operation now.
    pub(crate) fn is_at(&self, op: OpRef) -> bool {
        self.busy && self.done + 1 == op.number
    }
}

impl Engine {
    /// `cuStreamCreate`, in the current context.
    pub fn create_stream(&self, non_blocking: bool) -> CudaResult<StreamHandle> {
        let mut state = self.state();
        let context = state.current_context()?;
        state.check_usable(context)?;
        let device = state.device_of_context(context)?;
        Ok(state.new_stream(context, device, !non_blocking, StreamKind::Made))
    }

    /// `cuStreamDestroy`: returns at once; what is enqueued is still done.
    pub fn destroy_stream(&self, stream: StreamHandle) -> CudaResult<()> {
        if stream.0 <= 2 {
            let message = "a default stream belongs to its context and can't be destroyed";
            return Err(Error::new(CudaStatus::InvalidHandle, message));
        }
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let Some(entry) = state.streams.get_mut(&stream) else { return Err(not_a_stream(stream)) };
        entry.destroyed = true;
        if entry.queue.is_empty() {
            let last_touch = entry.last_touch;
            state.remove_stream(stream, last_touch);
        }
        Ok(())
    }

    /// `cuStreamSynchronize`: returns once everything enqueued so far is done.
    pub fn synchronize_stream(&self, stream: StreamHandle) -> CudaResult<()> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let (context, last) = state.last_of(stream)?;
        let done = self.wait_in(context, vec![last], "cuStreamSynchronize", state);
        self.release_unused();
        done
    }

    /// `cuCtxSynchronize`.
    pub fn synchronize_context(&self) -> CudaResult<()> {
        let mut state = self.state();
        let context = state.current_context()?;
        let all = state.last_of_all(context);
        let done = self.wait_in(context, all, "cuCtxSynchronize", state);
        self.release_unused();
        done
    }

    /// `cuStreamQuery`: whether everything enqueued so far is done.
    pub fn query_stream(&self, stream: StreamHandle) -> CudaResult<bool> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let (context, last) = state.last_of(stream)?;
        self.query(context, Some(last), state)
    }

    /// `cuStreamWaitEvent`: what comes later in `stream` waits for the event's last record.
    pub fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> CudaResult<()> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let after = state.event(event)?.recorded.clone().into_iter().collect();
        state.enqueue(stream, Work::Nothing, after, Site::unknown())?;
        drop(self.run_ready(state));
        Ok(())
    }

    /// `cuEventCreate`, in the current context.
    pub fn create_event(&self, timing: bool) -> CudaResult<EventHandle> {
        let mut state = self.state();
        let context = state.current_context()?;
        state.check_usable(context)?;
        let event = EventHandle(state.new_handle());
        state.events.insert(event, Event { context, timing, recorded: None });
        Ok(event)
    }

    /// `cuEventDestroy`: returns at once; waits that name the event keep their snapshot.
    pub fn destroy_event(&self, event: EventHandle) -> CudaResult<()> {
        let removed = self.state().events.remove(&event);
        removed.map(|_| ()).ok_or_else(|| not_an_event(event))
    }

    /// `cuEventRecord`.
    pub fn record_event(&self, event: EventHandle, stream: StreamHandle) -> CudaResult<()> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let of_event = state.event(event)?.context;
        let of_stream = state.last_of(stream)?.0;
        if of_event != of_stream {
            let (event, stream) = (state.describe(of_event), state.describe(of_stream));
            let message = format!("an event of {event} can't be recorded in a stream of {stream}");
            return Err(Error::new(CudaStatus::InvalidHandle, message));
        }
        let op = state.enqueue(stream, Work::Nothing, Vec::new(), Site::unknown())?;
        if let Some(event) = state.events.get_mut(&event) {
            event.recorded = Some(op);
        }
        drop(self.run_ready(state));
        Ok(())
    }

    /// `cuEventSynchronize`: returns once the last record is done.
    pub fn synchronize_event(&self, event: EventHandle) -> CudaResult<()> {
        let state = self.state();
        let Event { context, recorded, .. } = state.event(event)?;
        let (context, recorded) = (*context, recorded.clone());
        let done = self.wait_in(context, recorded.into_iter().collect(), "cuEventSynchronize", state);
        self.release_unused();
        done
    }

    /// `cuEventQuery`: whether the last record is done. An event that was never recorded is.
    pub fn query_event(&self, event: EventHandle) -> CudaResult<bool> {
        let state = self.state();
        let Event { context, recorded, .. } = state.event(event)?;
        let (context, recorded) = (*context, recorded.clone());
        self.query(context, recorded, state)
    }

    fn query(
        &self,
        context: ContextHandle,
        awaited: Option<Awaited>,
        state: MutexGuard<'_, State>,
    ) -> CudaResult<bool> {
        let mut state = self.run_ready(state);
        let thread = state.current_thread();
        if let Some(Awaited { op, when, .. }) = &awaited
            && (!state.is_done(*op) || !state.time.has_ended(thread, when))
        {
            return Ok(false);
        }
        state.saw(awaited);
        state.tell(context).map(|()| true)
    }

    /// `cuEventElapsedTime`: milliseconds between two records, by the virtual clock.
    ///
    /// # Errors
    /// `InvalidHandle` where one was never recorded or keeps no time, `NotReady` where one is not done.
    pub fn elapsed(&self, start: EventHandle, end: EventHandle) -> CudaResult<f32> {
        let mut state = self.run_ready(self.state());
        state.time.settle();
        let mut ends = [0; 2];
        for (at, event) in ends.iter_mut().zip([start, end]) {
            let refuse =
                |why: &str| Error::new(CudaStatus::InvalidHandle, format!("cuEventElapsedTime: {why}"));
            let entry = state.event(event)?;
            if !entry.timing {
                return Err(refuse("an event was made with CU_EVENT_DISABLE_TIMING (cudarc's default)"));
            }
            let recorded = entry.recorded.as_ref().ok_or_else(|| refuse("an event was never recorded"))?;
            *at = recorded.when.get().ok_or_else(|| Error::from(CudaStatus::NotReady))?.end;
        }
        Ok(((ends[1] as f64 - ends[0] as f64) / 1e6) as f32)
    }

    /// Enqueues `work` and returns; it runs when its turn comes.
    pub(super) fn submit(&self, stream: StreamHandle, work: Work, site: Site) -> CudaResult<()> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        state.enqueue(stream, work, Vec::new(), site)?;
        drop(self.run_ready(state));
        Ok(())
    }

    /// Enqueues `work` and returns when it is done.
    pub(super) fn submit_and_wait(
        &self,
        stream: StreamHandle,
        work: Work,
        site: Site,
        caller: &'static str,
    ) -> CudaResult<()> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let op = state.enqueue(stream, work, Vec::new(), site)?;
        let context = state.last_of(stream)?.0;
        self.wait_in(context, vec![op], caller, state)
    }

    /// Waits for operations of one context and tells its failure.
    pub(super) fn wait_in(
        &self,
        context: ContextHandle,
        awaited: Vec<Awaited>,
        caller: &'static str,
        mut state: MutexGuard<'_, State>,
    ) -> CudaResult<()> {
        let is_meant = |stream| awaited.iter().any(|awaited| awaited.op.stream == stream);
        if self.config().checks != Checks::Off
            && let Some(report) = state.wait_inside_a_group(caller, is_meant)
        {
            let failure = Failure::announce(CudaStatus::InvalidValue, &report);
            if self.config().checks == Checks::Error {
                return Err(failure.to_error());
            }
        }
        let ops = awaited.iter().map(|awaited| awaited.op).collect();
        let mut state = self.block_on(Wait::Ops(ops), caller, state);
        state.saw(awaited);
        state.tell(context)
    }

    /// Runs whatever is ready, on this thread, until nothing is.
    pub(crate) fn run_ready<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let before = state.finished;
        while let Some(job) = state.take_ready() {
            // Other threads may find more that is ready.
            if state.blocked > 0 && !state.runnable.is_empty() {
                self.changed.notify_one();
            }
            drop(state);
            state = match job {
                Job::Op { stream, device, work, site, start_ns } => {
                    let what = work.to_string();
                    let frees = matches!(work, Work::Free { .. });
                    let outcome = self.execute(device, work, &site, start_ns);
                    let mut state = self.state();
                    let cost = match outcome {
                        Ok(Done { touched, cost }) => {
                            self.note_touched(&mut state, stream, what, touched, frees);
                            cost
                        }
                        Err(failure) => {
                            state.fail_stream(stream, &failure);
                            Cost::Nothing
                        }
                    };
                    state.finish_after(stream, &View::default(), cost);
                    state
                }
                Job::Collective(call) => {
                    let outcome = self.execute_collective(call);
                    let mut state = self.state();
                    self.finish_collective(&mut state, call, outcome);
                    state
                }
            };
        }
        if state.finished != before && state.blocked > 0 {
            self.changed.notify_all();
        }
        if !state.host_functions.is_empty() {
            self.host.notify_one();
        }
        state
    }
}

impl State {
    pub(super) fn new_stream(
        &mut self,
        context: ContextHandle,
        device: usize,
        blocking: bool,
        kind: StreamKind,
    ) -> StreamHandle {
        let handle = StreamHandle(self.new_handle());
        let stream = Stream {
            context,
            device,
            blocking,
            legacy: kind == StreamKind::Legacy,
            name: self.name_stream(device, kind),
            queue: VecDeque::new(),
            issued: 0,
            done: 0,
            last: Awaited {
                op: OpRef { stream: handle, number: 0 },
                done: Arc::default(),
                when: Arc::new(OnceLock::from(Span::default())),
            },
            view: View::default(),
            last_touch: 0,
            busy: false,
            destroyed: false,
        };
        self.streams.insert(handle, stream);
        handle
    }

    /// Takes a stream away that has nothing left to do; `last_touch` is its last operation that anything can race with.
    pub(super) fn remove_stream(&mut self, handle: StreamHandle, last_touch: u64) {
        self.streams.remove(&handle);
        if self.order.forget_stream(handle, last_touch) {
            self.streams.values_mut().for_each(|stream| stream.view.forget(handle));
        }
        // What waited for it goes on.
        let freed = self.waiting.remove(&handle).unwrap_or_default();
        self.runnable.extend(freed);
    }

    /// The stream that a C handle stands for.
    pub(crate) fn resolve_stream(&mut self, stream: StreamHandle) -> CudaResult<StreamHandle> {
        match stream.0 {
            0 | 1 => {
                let context = self.current_context()?;
                Ok(self.context(context)?.default_stream)
            }
            2 => self.stream_of_thread(),
            _ => match self.streams.get(&stream) {
                Some(entry) if !entry.destroyed => Ok(stream),
                _ => Err(not_a_stream(stream)),
            },
        }
    }

    /// The default stream of the calling thread in its current context (`CU_STREAM_PER_THREAD`), made at its first use:
    /// one that waits for the legacy default stream, and that one for it.
    fn stream_of_thread(&mut self) -> CudaResult<StreamHandle> {
        let context = self.current_context()?;
        let place = (self.current_thread(), context);
        if let Some(&stream) = self.streams_of_threads.get(&place) {
            return Ok(stream);
        }
        let device = self.device_of_context(context)?;
        let stream = self.new_stream(context, device, true, StreamKind::OfThread);
        self.streams_of_threads.insert(place, stream);
        Ok(stream)
    }

    fn event(&self, event: EventHandle) -> CudaResult<&Event> {
        self.events.get(&event).ok_or_else(|| not_an_event(event))
    }

    /// The stream's context and its last operation.
    pub(crate) fn last_of(&self, stream: StreamHandle) -> CudaResult<(ContextHandle, Awaited)> {
        let entry = self.streams.get(&stream).ok_or_else(|| not_a_stream(stream))?;
        Ok((entry.context, entry.last.clone()))
    }

    /// The last operation of every stream of `context`.
    pub(super) fn last_of_all(&self, context: ContextHandle) -> Vec<Awaited> {
        self.streams
            .values()
            .filter(|stream| stream.context == context)
            .map(|stream| stream.last.clone())
            .collect()
    }

    /// The calling thread has waited for operations: what had happened then, it knows.
    fn saw(&mut self, awaited: impl IntoIterator<Item = Awaited>) {
        let thread = self.current_thread();
        for Awaited { done, when, .. } in awaited {
            if let Some(view) = done.get() {
                self.order.saw(thread, view);
            }
            self.time.wait(thread, &when);
        }
    }

    /// Whether an operation is done. What was in a stream that is gone will never come and holds up nobody.
    pub(crate) fn is_done(&self, op: OpRef) -> bool {
        self.streams.get(&op.stream).is_none_or(|stream| stream.done >= op.number)
    }

    /// Appends an operation to a stream.
    pub(crate) fn enqueue(
        &mut self,
        stream: StreamHandle,
        work: Work,
        mut after: Vec<Awaited>,
        site: Site,
    ) -> CudaResult<Awaited> {
        let (context, _) = self.last_of(stream)?;
        self.check_usable(context)?;
        after.extend(self.implied_order(stream, context));
        let thread = self.current_thread();
        let view = self.order.view_of(thread);
        let entry = self.streams.get_mut(&stream).ok_or_else(|| not_a_stream(stream))?;
        let before = after.iter().chain([&entry.last]).map(|awaited| awaited.when.clone()).collect();
        let ticket = self.time.enqueue(thread, entry.device, before);
        entry.issued += 1;
        let op = OpRef { stream, number: entry.issued };
        entry.last = Awaited { op, done: Arc::default(), when: ticket.when.clone() };
        entry.queue.push_back(Op { after, work, site, thread, view, done: entry.last.done.clone(), ticket });
        self.runnable.push_back(stream);
        Ok(entry.last.clone())
    }

    /// The legacy default stream waits for all blocking streams of its context, and they for it.
    fn implied_order(&self, stream: StreamHandle, context: ContextHandle) -> Vec<Awaited> {
        let Some(own) = self.streams.get(&stream).filter(|own| own.blocking) else { return Vec::new() };
        let ordered = self.streams.iter().filter(|&(&other, entry)| {
            other != stream && entry.context == context && entry.blocking && (own.legacy || entry.legacy)
        });
        ordered.map(|(_, entry)| entry.last.clone()).collect()
    }

    /// Takes the next work that can run; operations that only mark a place are done here.
    fn take_ready(&mut self) -> Option<Job> {
        while let Some(handle) = self.runnable.pop_front() {
            let Some(stream) = self.streams.get(&handle) else { continue };
            let Some(op) = stream.queue.front().filter(|_| !stream.busy) else { continue };
            if let Some(unmet) = op.after.iter().find(|after| !self.is_done(after.op)) {
                self.waiting.entry(unmet.op.stream).or_default().push(handle);
                continue;
            }
            let device = stream.device;
            let failed = self.has_failed(stream.context);
            let Some(stream) = self.streams.get_mut(&handle) else { continue };
            let Some(op) = stream.queue.front_mut() else { continue };
            stream.busy = true;
            op.view.join(&stream.view);
            for after in std::mem::take(&mut op.after) {
                if let Some(view) = after.done.get() {
                    op.view.join(view);
                }
            }
            match std::mem::replace(&mut op.work, Work::Nothing) {
                Work::Collective(call) => {
                    op.work = Work::Collective(call);
                    if self.arrive(call) {
                        return Some(Job::Collective(call));
                    }
                }
                Work::Free { at } => {
                    let (site, start_ns) = (op.site.clone(), Time::start_of(&op.ticket));
                    return Some(Job::Op { stream: handle, device, work: Work::Free { at }, site, start_ns });
                }
                Work::Nothing => self.finish(handle),
                // A GPU that has failed does nothing more.
                _ if failed => self.finish(handle),
                Work::Host(function) => {
                    op.work = Work::Host(None);
                    let place = OpRef { stream: handle, number: stream.done + 1 };
                    self.host_functions.extend(function.map(|function| (place, function)));
                }
                work => {
                    let (site, start_ns) = (op.site.clone(), Time::start_of(&op.ticket));
                    return Some(Job::Op { stream: handle, device, work, site, start_ns });
                }
            }
        }
        None
    }

    /// Takes the first operation of a stream away, as done.
    pub(crate) fn finish(&mut self, handle: StreamHandle) {
        self.finish_after(handle, &View::default(), Cost::Nothing);
    }

    /// As [`Self::finish`], of an operation that also comes after all that `others` knows, and that has cost something.
    pub(crate) fn finish_after(&mut self, handle: StreamHandle, others: &View, cost: Cost) {
        // A stream whose context was destroyed in the meantime is gone.
        let Some(stream) = self.streams.get_mut(&handle) else { return };
        stream.busy = false;
        stream.done += 1;
        self.finished += 1;
        if let Some(mut op) = stream.queue.pop_front() {
            op.view.join(others);
            op.view.advance(handle, stream.done);
            stream.view.clone_from(&op.view);
            // Set once: an operation is done once.
            let _ = op.done.set(op.view);
            self.time.finish(op.ticket, cost);
        }
        if stream.destroyed && stream.queue.is_empty() {
            let last_touch = stream.last_touch;
            self.remove_stream(handle, last_touch);
        }
        self.runnable.push_back(handle);
        let freed = self.waiting.remove(&handle).unwrap_or_default();
        self.runnable.extend(freed);
    }

    /// Who enqueued `op`, which is the first operation of its stream, and what had happened when its turn came.
    pub(super) fn first_of(&self, op: OpRef) -> Option<(ThreadKey, View)> {
        let stream = self.streams.get(&op.stream).filter(|stream| stream.is_at(op))?;
        stream.queue.front().map(|first| (first.thread, first.view.clone()))
    }

    /// Where `op`, which is the first operation of its stream, was enqueued.
    pub(super) fn site_of(&self, op: OpRef) -> Option<Site> {
        let stream = self.streams.get(&op.stream).filter(|stream| stream.is_at(op))?;
        stream.queue.front().map(|first| first.site.clone())
    }

    /// What will have happened when the first operation of its stream, `op`, is done.
    pub(crate) fn view_at_end_of(&self, op: OpRef) -> Option<View> {
        let stream = self.streams.get(&op.stream).filter(|stream| stream.is_at(op))?;
        let mut view = stream.queue.front()?.view.clone();
        view.advance(op.stream, op.number);
        Some(view)
    }

    /// What holds up an operation that is not done: the operations that the first one of its stream waits for,
    /// or the collective that it is. `None` where it is running or about to run.
    pub(super) fn obstacle(&self, op: OpRef) -> Option<Obstacle> {
        let stream = self.streams.get(&op.stream)?;
        let first = stream.queue.front()?;
        match first.work {
            Work::Collective(call) if stream.busy => Some(Obstacle::Collective(call)),
            Work::Host(None) => Some(Obstacle::Host(OpRef { stream: op.stream, number: stream.done + 1 })),
            _ if stream.busy => None,
            _ => first.after.iter().find(|after| !self.is_done(after.op)).map(|after| Obstacle::Op(after.op)),
        }
    }

    /// The threads that are blocked, with what they wait for.
    pub(super) fn blocked(&self, thread: ThreadKey) -> Option<&Blocked> {
        self.threads.get(&thread)?.blocked.as_ref()
    }
}

/// Why the first operation of a stream does not run.
pub(super) enum Obstacle {
    Op(OpRef),
    Collective(CallKey),
    /// A host function that has not returned.
    Host(OpRef),
}

fn not_a_stream(stream: StreamHandle) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidHandle, format!("{:#x} is not a stream, or no longer one", stream.0))
}

fn not_an_event(event: EventHandle) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidHandle, format!("{:#x} is not an event, or no longer one", event.0))
}

/// What running an operation comes to.
pub(super) type Outcome = Result<Done, Failure>;

/// What an operation touched and cost.
pub(super) struct Done {
    pub(super) touched: Vec<Touched>,
    pub(super) cost: Cost,
}

/// What an operation touched of one allocation.
pub(crate) struct Touched {
    pub(crate) device: usize,
    pub(crate) allocation: AllocationId,
    pub(crate) size: u64,
    pub(crate) site: Site,
    pub(crate) touches: Vec<Touch>,
}

impl Touched {
    /// One range of an allocation.
    pub(crate) fn range(device: usize, allocation: &Allocation, offset: u64, len: u64, writes: bool) -> Self {
        let touch = Touch { range: offset..offset + len, writes, atomic: false };
        let (size, site) = (allocation.size(), allocation.site().clone());
        Self { device, allocation: allocation.id(), size, site, touches: vec![touch] }
    }
}

impl std::fmt::Display for Work {
    /// The operation as a report names it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nothing => f.write_str("an event"),
            Self::Upload { .. } | Self::UploadPinned { .. } => f.write_str("a copy from the host"),
            Self::Download { .. } | Self::DownloadPinned { .. } => f.write_str("a copy to the host"),
            Self::Copy { .. } => f.write_str("a copy"),
            Self::Set { .. } => f.write_str("a memset"),
            Self::Free { .. } => f.write_str("its free"),
            Self::Kernel(launch) => write!(f, "kernel `{}`", launch.name()),
            Self::Host(_) => f.write_str("a host function"),
            Self::Collective(_) => f.write_str("a collective"),
        }
    }
}

impl Engine {
    /// Tells [`Order`](crate::order::Order) what the first operation of `stream` has touched. What nothing orders
    /// is a finding, and fails both GPUs' contexts unless findings are only to be printed.
    pub(crate) fn note_touched(
        &self,
        state: &mut State,
        stream: StreamHandle,
        what: String,
        touched: Vec<Touched>,
        frees: bool,
    ) {
        if self.config().checks == Checks::Off || touched.is_empty() {
            return;
        }
        let Some(entry) = state.streams.get_mut(&stream) else { return };
        if !frees {
            entry.last_touch = entry.done + 1;
        }
        let Some(op) = entry.queue.front() else { return };
        let by = Accessor {
            stream,
            number: entry.done + 1,
            thread: op.thread,
            what: what.into(),
            stream_name: entry.name.clone(),
            site: op.site.clone(),
        };
        let view = op.view.clone();
        for Touched { device, allocation, size, site, touches } in touched {
            let place = Place { device, allocation, size, site: &site };
            let race = state.order.touch(&place, &by, &view, &touches);
            if frees {
                state.order.forget_allocation(device, allocation);
            }
            let Some(race) = race else { continue };
            let failure = match race.is_new {
                true => Failure::announce(CudaStatus::LaunchFailed, &race.report),
                false => Failure::quietly(CudaStatus::LaunchFailed, &race.report),
            };
            if self.config().checks == Checks::Error {
                state.fail_stream(stream, &failure);
                state.fail_stream(race.earlier, &failure);
            }
        }
    }
}
