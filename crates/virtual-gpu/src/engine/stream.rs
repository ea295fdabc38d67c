//! Streams: what is enqueued, and what it waits for.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use super::capture::Captured;
use super::context::ContextHandle;
use super::graph::NodeWork;
use super::host::HostFunction;
use super::host_memory::{HostRead, HostWrite};
use super::launch::KernelLaunch;
use super::wait::Wait;
use super::{Engine, Failure, State};
use crate::config::Checks;
use crate::order::View;
use crate::time::trace::Label;
use crate::time::{Class, Cost, Moment, Ticket, When};
use virtual_gpu_core::handle::{CallKey, OpRef, StreamHandle};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_core::sync::{Mutex, MutexGuard};
use virtual_gpu_core::thread::ThreadKey;

/// An operation that something may wait for, and what will have happened once it is done.
#[derive(Clone, Debug)]
pub struct Awaited {
    /// The operation.
    pub op: OpRef,
    /// What will have happened, once it is done.
    pub done: Arc<OnceLock<View>>,
    /// When it begins and ends, once that is known.
    pub when: When,
}

/// A `CUstream`: operations that are done one after the other.
pub struct Stream {
    /// The context that it was made in.
    pub context: ContextHandle,
    /// The GPU.
    pub device: usize,
    /// Whether it waits for the legacy default stream, and that one for it (not `CU_STREAM_NON_BLOCKING`).
    pub(super) blocking: bool,
    pub(super) legacy: bool,
    /// Its name in reports.
    pub(crate) name: Arc<str>,
    pub(super) queue: VecDeque<Op>,
    pub(super) issued: u64,
    pub(super) done: u64,
    /// The operation that was enqueued last.
    pub(super) last: Awaited,
    /// What had happened when the last one was done.
    pub(super) view: View,
    /// The last operation that touched memory which may still be there.
    pub(super) last_touch: u64,
    /// The first operation is being run, or is a collective whose other ranks have not come.
    pub(super) busy: bool,
    pub(super) destroyed: bool,
    /// A graph's own: what is enqueued is part of the graph's launch, no call of its own.
    of_graph: bool,
    /// Its part in a capture: what is enqueued goes into a graph.
    pub(super) capture: Option<Captured>,
}

/// Who makes a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StreamKind {
    /// Its context: the legacy default stream.
    Legacy,
    /// A thread's first use of its own default stream.
    OfThread,
    /// The program.
    Made,
    /// A graph that is launched: it does the work that was captured in the stream of this name.
    OfGraph(Arc<str>),
}

pub(super) struct Op {
    pub(super) after: Vec<Awaited>,
    pub(super) work: Work,
    pub(super) call_site: CallSite,
    pub(super) thread: ThreadKey,
    /// Its place among all operations.
    pub(super) enqueued: u64,
    /// What its thread knew when it enqueued it; once it runs, also what its predecessors knew.
    pub(super) view: View,
    pub(super) done: Arc<OnceLock<View>>,
    pub(super) ticket: Ticket,
}

/// What an operation does when its turn has come.
#[derive(Clone)]
pub(super) enum Work {
    /// Its place in the stream is all that matters.
    Nothing,
    /// Records an event.
    Record,
    /// Waits for an event.
    Wait,
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
    UploadLater {
        to: u64,
        len: u64,
        read: HostRead,
    },
    /// Device bytes to the host, which waits for them or not.
    DownloadLater {
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
        /// What is there four bytes at a time.
        pattern: [u8; 4],
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

impl Work {
    /// What a trace calls it; none where it shows nothing.
    fn label(&self) -> Option<Label> {
        let copy = |name: &str, bytes: u64| Some(Label::new("copy", name).with("bytes", bytes));
        match self {
            Self::Nothing | Self::Free { .. } => None,
            Self::Record => Some(Label::new("event", "record")),
            Self::Wait => Some(Label::new("event", "wait")),
            Self::Upload { bytes, .. } => copy("copy to the device", bytes.len() as u64),
            Self::UploadLater { len, .. } => copy("copy to the device", *len),
            Self::Download { len, .. } | Self::DownloadLater { len, .. } => copy("copy to the host", *len),
            Self::Copy { len, .. } => copy("copy", *len),
            Self::Set { len, .. } => copy("memset", *len),
            Self::Kernel(launch) => Some(Label::new("kernel", launch.name())),
            Self::Host(_) => Some(Label::new("host function", "host function")),
            Self::Collective(_) => Some(Label::new("collective", "a collective")),
        }
    }

    /// What it is to the clock.
    fn class(&self) -> Class {
        match self {
            Self::Nothing | Self::Free { .. } => Class::Nothing,
            Self::Record => Class::Record,
            Self::Wait => Class::Wait,
            Self::Host(_) => Class::Host,
            Self::Collective(_) => Class::Communication,
            Self::Upload { .. }
            | Self::Download { .. }
            | Self::UploadLater { .. }
            | Self::DownloadLater { .. }
            | Self::Copy { .. }
            | Self::Set { .. }
            | Self::Kernel(_) => Class::Engine,
        }
    }
}

impl Stream {
    /// Whether the stream has come to `op`, which is its first operation now.
    pub fn is_at(&self, op: OpRef) -> bool {
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
        state.leave_capture(stream);
        state.retire_stream(stream);
        Ok(())
    }

    /// `cuStreamSynchronize`: returns once everything enqueued so far is done.
    pub fn synchronize_stream(&self, stream: StreamHandle) -> CudaResult<()> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        state.check_not_captured(stream, "cuStreamSynchronize")?;
        let (context, last) = state.last_of(stream)?;
        let done = self.wait_in(context, vec![last], "cuStreamSynchronize", state);
        self.release_unused();
        done
    }

    /// `cuCtxSynchronize`.
    pub fn synchronize_context(&self) -> CudaResult<()> {
        let mut state = self.state();
        let context = state.current_context()?;
        state.check_none_captured(context, "cuCtxSynchronize")?;
        let all = state.last_of_all(context);
        let done = self.wait_in(context, all, "cuCtxSynchronize", state);
        self.release_unused();
        done
    }

    /// `cuStreamQuery`: whether everything enqueued so far is done.
    pub fn query_stream(&self, stream: StreamHandle) -> CudaResult<bool> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        state.check_not_captured(stream, "cuStreamQuery")?;
        let (context, last) = state.last_of(stream)?;
        self.query(context, Some(last), state)
    }

    /// Enqueues `work` and returns; it runs when its turn comes.
    pub(super) fn submit(&self, stream: StreamHandle, work: Work, call_site: CallSite) -> CudaResult<()> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        self.submit_in(state, stream, work, call_site)
    }

    /// As [`Self::submit`], to a stream that is resolved. A stream that is captured keeps the work for the graph.
    pub(super) fn submit_in(
        &self,
        mut state: MutexGuard<'_, State>,
        stream: StreamHandle,
        work: Work,
        call_site: CallSite,
    ) -> CudaResult<()> {
        if state.is_capturing(stream) {
            return state.add_node(stream, NodeWork::Work(work), call_site);
        }
        state.enqueue(stream, work, Vec::new(), call_site)?;
        drop(self.run_ready(state));
        Ok(())
    }

    /// Enqueues `work` and returns when it is done.
    pub(super) fn submit_and_wait(
        &self,
        stream: StreamHandle,
        work: Work,
        call_site: CallSite,
        caller: &'static str,
    ) -> CudaResult<()> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let op = state.enqueue(stream, work, Vec::new(), call_site)?;
        let context = state.last_of(stream)?.0;
        self.wait_in(context, vec![op], caller, state)
    }

    /// Waits for operations of one context and tells its failure.
    pub(super) fn wait_in(
        &self,
        context: ContextHandle,
        awaited: Vec<Awaited>,
        caller: &'static str,
        state: MutexGuard<'_, State>,
    ) -> CudaResult<()> {
        let mut is_meant = |stream| awaited.iter().any(|awaited| awaited.op.stream == stream);
        if self.config().checks != Checks::Off
            && let Some(report) = state.communication.wait_inside_a_group(caller, &mut is_meant)
        {
            let failure = Failure::announce(CudaStatus::InvalidValue, &report);
            if self.config().checks == Checks::Error {
                return Err(failure.to_error());
            }
        }
        let ops = awaited.iter().map(|awaited| awaited.op).collect();
        let state = self.block_on(Wait::Ops(ops), caller, state);
        let mut state = self.wait_for_times(&awaited, state);
        state.saw(awaited, caller);
        let told = state.tell(context);
        drop(state);
        self.flush_printed(context);
        told
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
            of_graph: matches!(kind, StreamKind::OfGraph(_)),
            name: self.name_stream(device, kind),
            queue: VecDeque::new(),
            issued: 0,
            done: 0,
            last: Awaited {
                op: OpRef { stream: handle, number: 0 },
                done: Arc::default(),
                when: Moment::start(device),
            },
            view: View::default(),
            last_touch: 0,
            busy: false,
            destroyed: false,
            capture: None,
        };
        self.streams.insert(handle, stream);
        handle
    }

    /// Takes a stream away once what is enqueued is done.
    pub(super) fn retire_stream(&mut self, stream: StreamHandle) {
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        entry.destroyed = true;
        if entry.queue.is_empty() {
            let last_touch = entry.last_touch;
            self.remove_stream(stream, last_touch);
        }
    }

    /// Takes a stream away that has nothing left to do; `last_touch` is its last operation that anything can race with.
    pub(super) fn remove_stream(&mut self, handle: StreamHandle, last_touch: u64) {
        self.leave_capture(handle);
        let Some(stream) = self.streams.remove(&handle) else { return };
        for op in stream.queue {
            self.time.finish(op.ticket, Cost::Nothing);
        }
        if self.forget_in_clocks(handle, last_touch.max(self.last_free(handle))) {
            self.forgotten_streams.push(handle);
        } else if let (false, Some(context)) = (stream.of_graph, self.contexts.get_mut(&stream.context)) {
            context.retired.push((stream.blocking, stream.last));
        }
        // What waited for it goes on.
        let freed = self.waiting.remove(&handle).unwrap_or_default();
        self.runnable.extend(freed);
    }

    /// Forgets a stream in every clock; `false` where something can still race with it.
    pub fn forget_in_clocks(&mut self, handle: StreamHandle, last_touch: u64) -> bool {
        let gone = self.order.forget_stream(handle, last_touch);
        if let Some(gone) = gone {
            self.streams.values_mut().for_each(|stream| stream.view.forget(gone));
        }
        gone.is_some()
    }

    /// The stream that a C handle stands for.
    pub(crate) fn resolve_stream(&mut self, stream: StreamHandle) -> CudaResult<StreamHandle> {
        let is_default = matches!(stream.0, 0..=2);
        let context = if is_default { Some(self.current_context()?) } else { None };
        self.resolve_stream_in(stream, context)
    }

    /// As [`Self::resolve_stream`], of a call that works on `device` whichever GPU is current: a default stream is that GPU's.
    pub fn resolve_stream_on(&mut self, stream: StreamHandle, device: usize) -> CudaResult<StreamHandle> {
        let current = self.thread().contexts.last().copied();
        let context = match current.filter(|&context| self.device_of_context(context) == Ok(device)) {
            Some(context) => Some(context),
            None => self.primary_context(device),
        };
        self.resolve_stream_in(stream, context)
    }

    fn resolve_stream_in(
        &mut self,
        stream: StreamHandle,
        context: Option<ContextHandle>,
    ) -> CudaResult<StreamHandle> {
        match (stream.0, context) {
            (0 | 1, Some(context)) => Ok(self.context(context)?.default_stream),
            (2, Some(context)) => self.stream_of_thread(context),
            _ => match self.streams.get(&stream) {
                Some(entry) if !entry.destroyed => Ok(stream),
                _ => Err(not_a_stream(stream)),
            },
        }
    }

    /// The default stream of the calling thread in a context (`CU_STREAM_PER_THREAD`), made at its first use: one that waits
    /// for the legacy default stream, and that one for it.
    fn stream_of_thread(&mut self, context: ContextHandle) -> CudaResult<StreamHandle> {
        let place = (self.current_thread(), context);
        if let Some(&stream) = self.streams_of_threads.get(&place) {
            return Ok(stream);
        }
        let device = self.device_of_context(context)?;
        let stream = self.new_stream(context, device, true, StreamKind::OfThread);
        self.streams_of_threads.insert(place, stream);
        Ok(stream)
    }

    /// The stream's context and its last operation.
    pub fn last_of(&self, stream: StreamHandle) -> CudaResult<(ContextHandle, Awaited)> {
        let entry = self.streams.get(&stream).ok_or_else(|| not_a_stream(stream))?;
        Ok((entry.context, entry.last.clone()))
    }

    /// The last operation of every stream of `context`.
    pub(super) fn last_of_all(&self, context: ContextHandle) -> Vec<Awaited> {
        self.streams
            .values()
            .filter(|stream| stream.context == context)
            .map(|stream| stream.last.clone())
            .chain(self.retired(context).map(|(_, last)| last.clone()))
            .collect()
    }

    /// Of the destroyed streams of a context that nobody has waited for: whether they were blocking ones, and their ends.
    fn retired(&self, context: ContextHandle) -> impl Iterator<Item = &(bool, Awaited)> {
        self.contexts.get(&context).into_iter().flat_map(|context| &context.retired)
    }

    /// Forgets destroyed streams whose end a thread has seen.
    fn forget_retired(&mut self) {
        let order = &self.order;
        let is_seen = |(_, last): &mut (bool, Awaited)| order.is_seen(last.op.stream, last.op.number);
        let contexts = self.contexts.values_mut();
        let seen: Vec<_> = contexts.flat_map(|context| context.retired.extract_if(.., is_seen)).collect();
        for (_, last) in seen {
            self.forget_in_clocks(last.op.stream, 0);
            self.forgotten_streams.push(last.op.stream);
        }
    }

    /// The calling thread has waited for operations: what had happened then, it knows.
    pub(super) fn saw(&mut self, awaited: Vec<Awaited>, caller: &str) {
        let thread = self.current_thread();
        self.time.wait(thread, awaited.iter().map(|awaited| &awaited.when), caller);
        self.knows(awaited);
    }

    /// The calling thread knows that operations are done.
    pub(super) fn knows(&mut self, done: impl IntoIterator<Item = Awaited>) {
        let thread = self.current_thread();
        for view in done.into_iter().filter_map(|awaited| awaited.done.get().cloned()) {
            self.order.saw(thread, &view);
        }
        self.forget_retired();
        self.open_seen();
    }

    /// Whether an operation is done. What was in a stream that is gone will never come and holds up nobody.
    pub(crate) fn is_done(&self, op: OpRef) -> bool {
        self.streams.get(&op.stream).is_none_or(|stream| stream.done >= op.number)
    }

    /// Appends one rank's part of a call to a stream.
    ///
    /// # Errors
    /// That of a stream, or of its context, that can't be used.
    pub fn enqueue_call(
        &mut self,
        stream: StreamHandle,
        call: CallKey,
        after: Vec<Awaited>,
        call_site: CallSite,
    ) -> CudaResult<Awaited> {
        self.enqueue(stream, Work::Collective(call), after, call_site)
    }

    /// Appends an operation that does nothing but wait for `after`.
    ///
    /// # Errors
    /// That of a stream, or of its context, that can't be used.
    pub fn enqueue_wait(
        &mut self,
        stream: StreamHandle,
        after: Vec<Awaited>,
        call_site: CallSite,
    ) -> CudaResult<Awaited> {
        self.enqueue(stream, Work::Nothing, after, call_site)
    }

    /// Appends an operation to a stream.
    ///
    /// # Errors
    /// `StreamCaptureUnsupported` where the stream is captured: [`State::add_node`] is for what a graph can hold.
    pub(super) fn enqueue(
        &mut self,
        stream: StreamHandle,
        work: Work,
        mut after: Vec<Awaited>,
        call_site: CallSite,
    ) -> CudaResult<Awaited> {
        let (context, _) = self.last_of(stream)?;
        self.check_usable(context)?;
        self.check_not_captured(stream, &format!("{work}"))?;
        self.check_not_implied(stream, context)?;
        after.extend(self.implied_order(stream, context));
        if !self.streams.get(&stream).is_some_and(|entry| entry.of_graph) {
            let thread = self.current_thread();
            let device = self.device_of_context(context)?;
            self.time.call(thread, device, || format!("enqueue {work}"));
        }
        self.append(stream, work, after, call_site)
    }

    /// A new place among all operations.
    pub(super) fn next_place(&mut self) -> u64 {
        self.enqueued += 1;
        self.enqueued
    }

    /// The place of `op`, which is the first operation of its stream, among all operations.
    pub fn enqueued_as(&self, op: OpRef) -> Option<u64> {
        let stream = self.streams.get(&op.stream).filter(|stream| stream.is_at(op))?;
        stream.queue.front().map(|first| first.enqueued)
    }

    /// As [`Self::enqueue`], of an operation that is no call of its own.
    pub(super) fn append(
        &mut self,
        stream: StreamHandle,
        work: Work,
        after: Vec<Awaited>,
        call_site: CallSite,
    ) -> CudaResult<Awaited> {
        let thread = self.current_thread();
        let view = self.order.view_of(thread);
        let enqueued = self.next_place();
        let entry = self.streams.get_mut(&stream).ok_or_else(|| not_a_stream(stream))?;
        let before = after.iter().chain([&entry.last]).map(|awaited| awaited.when.clone()).collect();
        let ticket = self.time.enqueue(thread, (entry.device, stream), work.class(), before);
        self.time.describe(&ticket, (stream, &entry.name), || work.label());
        entry.issued += 1;
        let op = OpRef { stream, number: entry.issued };
        entry.last = Awaited { op, done: Arc::default(), when: ticket.when.clone() };
        entry.queue.push_back(Op {
            after,
            work,
            call_site,
            thread,
            enqueued,
            view,
            done: entry.last.done.clone(),
            ticket,
        });
        self.runnable.push_back(stream);
        Ok(entry.last.clone())
    }

    /// The legacy default stream waits for all blocking streams of its context, and they for it.
    fn implied_order(&self, stream: StreamHandle, context: ContextHandle) -> Vec<Awaited> {
        let Some(own) = self.streams.get(&stream).filter(|own| own.blocking) else { return Vec::new() };
        let ordered = self.streams.iter().filter(|&(&other, entry)| {
            other != stream && entry.context == context && entry.blocking && (own.legacy || entry.legacy)
        });
        let ordered = ordered.map(|(_, entry)| &entry.last);
        let retired =
            self.retired(context).filter(|(blocking, _)| own.legacy && *blocking).map(|(_, last)| last);
        ordered.chain(retired).cloned().collect()
    }
}

pub(super) fn not_a_stream(stream: StreamHandle) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidHandle, format!("{:#x} is not a stream, or no longer one", stream.0))
}

impl std::fmt::Display for Work {
    /// The operation as a report names it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nothing | Self::Record | Self::Wait => f.write_str("an event"),
            Self::Upload { .. } | Self::UploadLater { .. } => f.write_str("a copy from the host"),
            Self::Download { .. } | Self::DownloadLater { .. } => f.write_str("a copy to the host"),
            Self::Copy { .. } => f.write_str("a copy"),
            Self::Set { .. } => f.write_str("a memset"),
            Self::Free { .. } => f.write_str("a free"),
            Self::Kernel(launch) => write!(f, "kernel `{}`", launch.name()),
            Self::Host(_) => f.write_str("a host function"),
            Self::Collective(_) => f.write_str("a collective"),
        }
    }
}
