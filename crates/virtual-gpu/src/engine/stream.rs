//! Streams: their operations, and what the operations wait for.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use super::capture::Captured;
use super::context::ContextHandle;
use super::free::last_free;
use super::wait::Wait;
use super::work::Work;
use super::{Engine, Failure, State};
use crate::config::Checks;
use crate::order::OF_A_ROLE;
use crate::order::View;
use crate::time::{Cost, Moment, Ticket, When};
use virtual_gpu_core::handle::{OpRef, OperationNumber, StreamHandle};
use virtual_gpu_core::sorted::SortedMap;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_core::sync::MutexGuard;
use virtual_gpu_core::thread::ThreadKey;

/// An operation that can be waited for, along with what will have happened once it is done.
#[derive(Clone, Debug)]
pub struct Awaited {
    /// The operation.
    pub op: OpRef,
    /// What will have happened once it is done.
    pub done: Arc<OnceLock<View>>,
    /// When the operation starts and ends, once that is known.
    pub when: When,
}

/// A destroyed stream that no thread has waited for.
pub(super) struct Retired {
    /// Whether the stream and the legacy default stream waited for each other.
    pub(super) blocking: bool,
    pub(super) last: Awaited,
    /// The number of its last operation that takes time or that an access can race with.
    last_work: u64,
}

/// A `CUstream`: operations that run one after another.
pub struct Stream {
    /// The context that the stream was created in.
    pub context: ContextHandle,
    /// The GPU.
    pub device: usize,
    /// Whether the stream and the legacy default stream wait for each other (not `CU_STREAM_NON_BLOCKING`).
    pub(super) blocking: bool,
    pub(super) legacy: bool,
    priority: i32,
    /// Its other attributes, by number, which change nothing.
    attributes: SortedMap<u32, [u32; 16]>,
    /// Its name in reports.
    pub(crate) name: Arc<str>,
    pub(super) queue: VecDeque<Op>,
    pub(super) issued: u64,
    pub(super) done: u64,
    /// The operation that was enqueued last.
    pub(super) last: Awaited,
    /// What had happened when the most recent completed operation was done.
    pub(super) view: View,
    /// The last operation that accessed memory that may still exist.
    pub(super) last_touch: u64,
    /// The last operation that takes time.
    pub(super) last_timed: u64,
    /// Whether the first operation is running or is a collective that other ranks have not reached.
    pub(super) busy: bool,
    pub(super) destroyed: bool,
    /// Whether the stream belongs to a graph: its operations are part of the graph's launch, not separate calls.
    pub(super) of_graph: bool,
    /// Whether the stream belongs to an event: it waits for records by other processes, or for all streams of a context.
    pub(super) of_event: bool,
    /// Its part in a capture: enqueued operations go into a graph.
    pub(super) capture: Option<Captured>,
}

/// What a program can ask about a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamFigures {
    /// A number that no other stream has.
    pub number: u64,
    /// The GPU.
    pub device: usize,
    /// Whether the stream and the legacy default stream wait for each other.
    pub is_blocking: bool,
    /// The priority that it was created with.
    pub priority: i32,
}

/// The purpose of a new stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StreamKind {
    /// A context, as its legacy default stream.
    Legacy,
    /// A thread that uses its own default stream for the first time.
    OfThread,
    /// The program.
    Made,
    /// A graph launch: the stream runs the work that was captured on the stream with this name.
    OfGraph(Arc<str>),
    /// An event that other processes record, or that records a whole context.
    OfEvent,
}

pub(super) struct Op {
    pub(super) after: Vec<Awaited>,
    pub(super) work: Work,
    pub(super) call_site: CallSite,
    pub(super) thread: ThreadKey,
    /// Its sequence number.
    pub(super) enqueued: OperationNumber,
    /// What the thread knew when it enqueued the operation; once the operation runs, also what its predecessors knew.
    pub(super) view: View,
    pub(super) done: Arc<OnceLock<View>>,
    pub(super) ticket: Ticket,
}

impl Op {
    /// Returns whether it is a host function that has not returned.
    pub(super) fn is_host_function(&self) -> bool {
        matches!(self.work, Work::Host(_))
    }
}

impl Stream {
    /// Returns whether the stream has reached `op`, which is then its first operation.
    pub fn is_at(&self, op: OpRef) -> bool {
        self.busy && self.done + 1 == op.number
    }
}

thread_local! {
    /// Whether stream 0 is the thread's own default stream in the call that this thread is making.
    static USES_OWN_DEFAULT: Cell<bool> = const { Cell::new(false) };
}

/// Makes a call in which stream 0 is the calling thread's own default stream (`CU_STREAM_PER_THREAD`) instead of the
/// legacy one. Functions with the suffix `_ptds` or `_ptsz` are such calls.
pub fn with_own_default_stream<T>(call: impl FnOnce() -> T) -> T {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            USES_OWN_DEFAULT.set(self.0);
        }
    }
    let _reset = Reset(USES_OWN_DEFAULT.replace(true));
    call()
}

/// Returns whether a handle from a call means the legacy default stream.
pub(super) fn is_legacy(stream: StreamHandle) -> bool {
    stream.0 == 1 || stream.0 == 0 && !USES_OWN_DEFAULT.get()
}

impl Engine {
    /// Returns whether a handle from a call means the legacy default stream.
    pub fn is_legacy_stream(&self, stream: StreamHandle) -> bool {
        is_legacy(stream)
    }

    /// `cuStreamCreate`: creates a stream in the current context.
    pub fn create_stream(&self, non_blocking: bool) -> CudaResult<StreamHandle> {
        self.create_stream_with_priority(non_blocking, 0)
    }

    /// `cuStreamCreateWithPriority`: like [`Self::create_stream`]; the priority is only kept.
    pub fn create_stream_with_priority(&self, non_blocking: bool, priority: i32) -> CudaResult<StreamHandle> {
        let mut state = self.state();
        let context = state.current_context()?;
        state.check_usable(context)?;
        let device = state.device_of_context(context)?;
        let stream = state.new_stream(context, device, !non_blocking, StreamKind::Made);
        if let Some(entry) = state.streams.get_mut(&stream) {
            entry.priority = priority;
        }
        Ok(stream)
    }

    /// Returns what a program can ask about a stream.
    ///
    /// # Errors
    /// Returns `InvalidHandle` if there is no such stream.
    pub fn stream_figures(&self, stream: StreamHandle) -> CudaResult<StreamFigures> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let entry = state.streams.get(&stream).ok_or_else(|| not_a_stream(stream))?;
        let &Stream { device, blocking, legacy, priority, .. } = entry;
        Ok(StreamFigures { number: stream.0, device, is_blocking: blocking || legacy, priority })
    }

    /// Returns an attribute of a stream, which is 0 if it was never set.
    pub fn stream_attribute(&self, stream: StreamHandle, number: u32) -> CudaResult<[u32; 16]> {
        self.with_stream(stream, |entry| entry.attributes.get(&number).copied().unwrap_or_default())
    }

    /// Sets an attribute of a stream. It is only kept.
    pub fn set_stream_attribute(
        &self,
        stream: StreamHandle,
        number: u32,
        value: [u32; 16],
    ) -> CudaResult<()> {
        self.with_stream(stream, |entry| entry.attributes.insert(number, value))
    }

    /// Sets a stream's priority. It is only kept.
    pub fn set_stream_priority(&self, stream: StreamHandle, priority: i32) -> CudaResult<()> {
        self.with_stream(stream, |entry| entry.priority = priority)
    }

    /// Copies all attributes of a stream to another one.
    pub fn copy_stream_attributes(&self, to: StreamHandle, from: StreamHandle) -> CudaResult<()> {
        let (priority, attributes) =
            self.with_stream(from, |entry| (entry.priority, entry.attributes.clone()))?;
        self.with_stream(to, |entry| (entry.priority, entry.attributes) = (priority, attributes))
    }

    fn with_stream<T>(&self, stream: StreamHandle, call: impl FnOnce(&mut Stream) -> T) -> CudaResult<T> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        state.streams.get_mut(&stream).map(call).ok_or_else(|| not_a_stream(stream))
    }

    /// Names a stream after its role, such as `compute`, so that reports call it the compute stream.
    ///
    /// # Errors
    /// Returns `InvalidHandle` if there is no such stream.
    pub fn name_stream(&self, stream: StreamHandle, role: &str) -> CudaResult<()> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        if let Some(stream) = state.streams.get_mut(&stream) {
            stream.name = format!("the {role}{OF_A_ROLE}").into();
        }
        Ok(())
    }

    /// `cuStreamGetCtx`: returns the context that the stream was created in, or the current one for a default stream.
    pub fn context_of_stream(&self, stream: StreamHandle) -> CudaResult<ContextHandle> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        Ok(state.last_of(stream)?.0)
    }

    /// `cuStreamDestroy`: returns immediately; enqueued work still runs.
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
        state.check_not_captured(stream, &"cuStreamSynchronize")?;
        let (context, last) = state.last_of(stream)?;
        let done = self.wait_in(context, vec![last], "cuStreamSynchronize", state);
        self.release_unused();
        done
    }

    /// Waits for the context's work if the engine is strict: CUDA allows the host call `caller` to do so. The work's errors
    /// are left to other calls.
    pub fn may_synchronize(&self, caller: &'static str) {
        if self.config().strict_nccl.is_none() {
            return;
        }
        let mut state = self.state();
        let Ok(context) = state.current_context() else { return };
        let all = state.last_of_all(context);
        let _ = self.wait_in(context, all, caller, state);
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

    /// `cuStreamQuery`: returns whether everything enqueued so far is done.
    pub fn query_stream(&self, stream: StreamHandle) -> CudaResult<bool> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        state.check_not_captured(stream, &"cuStreamQuery")?;
        let (context, last) = state.last_of(stream)?;
        self.query(context, Some(last), state)
    }

    /// Waits for operations in one context and returns the context's failure.
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
            let failure = Failure::of_problem(CudaStatus::InvalidValue, &report, self.config().checks);
            if let Some(failure) = failure {
                return Err(failure.to_error());
            }
        }
        let ops = awaited.iter().map(|awaited| awaited.op).collect();
        let state = self.block_on(Wait::Ops(ops), caller, state);
        let mut state = self.wait_for_times(&awaited, state);
        state.saw(awaited, caller);
        let reported = state.report_failure(context);
        drop(state);
        self.flush_printed(context);
        reported
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
            priority: 0,
            attributes: SortedMap::default(),
            of_graph: matches!(kind, StreamKind::OfGraph(_)),
            of_event: kind == StreamKind::OfEvent,
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
            last_timed: 0,
            busy: false,
            destroyed: false,
            capture: None,
        };
        self.streams.insert(handle, stream);
        self.streams_of_contexts.entry(context).or_default().push(handle);
        handle
    }

    /// Removes a stream once its enqueued work is done.
    pub(super) fn retire_stream(&mut self, stream: StreamHandle) {
        let Some(entry) = self.streams.get_mut(&stream) else { return };
        entry.destroyed = true;
        if entry.queue.is_empty() {
            let last_touch = entry.last_touch;
            self.remove_stream(stream, last_touch);
        }
    }

    /// Removes a stream that has nothing left to do; `last_touch` is its last operation that an access can race with.
    pub(super) fn remove_stream(&mut self, handle: StreamHandle, last_touch: u64) {
        self.leave_capture(handle);
        let Some(stream) = self.streams.remove(&handle) else { return };
        if let Some(of_context) = self.streams_of_contexts.get_mut(&stream.context) {
            of_context.retain(|&other| other != handle);
        }
        for op in stream.queue {
            self.time.finish(op.ticket, Cost::Nothing);
        }
        let Stream { context, blocking, last, last_timed, .. } = stream;
        let is_of_program = !stream.of_graph && !stream.of_event;
        if let (true, Some(context)) = (is_of_program, self.contexts.get_mut(&context)) {
            context.retired.push(Retired { blocking, last, last_work: last_touch.max(last_timed) });
            self.forget_retired();
        } else if self.forget_in_clocks(handle, last_touch.max(last_free(&self.freed, handle))) {
            self.forgotten_streams.push(handle);
        }
        // Work that was waiting for the stream can continue.
        let freed = self.waiting.remove(&handle).unwrap_or_default();
        self.runnable.extend(freed);
    }

    /// Forgets a stream. Returns `false` if an access can still race with it.
    pub fn forget_in_clocks(&mut self, handle: StreamHandle, last_touch: u64) -> bool {
        let is_forgotten = self.order.forget_stream(handle, last_touch);
        if let Some(mut gone) = self.order.clear_clocks() {
            self.streams.values_mut().for_each(|stream| stream.view.forget(&mut gone));
        }
        is_forgotten
    }

    /// Returns whether a stream is gone and all its operations come before anything that is enqueued now.
    pub fn is_forgotten(&self, handle: StreamHandle) -> bool {
        self.order.is_forgotten(handle)
    }

    /// Returns the stream that a C handle refers to.
    pub(crate) fn resolve_stream(&mut self, stream: StreamHandle) -> CudaResult<StreamHandle> {
        let is_default = matches!(stream.0, 0..=2);
        let context = if is_default { Some(self.current_context()?) } else { None };
        self.resolve_stream_in(stream, context)
    }

    /// Like `resolve_stream`, but for a call that works on `device` regardless of the current GPU: a default
    /// stream means `device`'s default stream.
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
            (0 | 1, Some(context)) if is_legacy(stream) => Ok(self.context(context)?.default_stream),
            (0 | 2, Some(context)) => self.stream_of_thread(context),
            _ => match self.streams.get(&stream) {
                Some(entry) if !entry.destroyed => Ok(stream),
                _ => Err(not_a_stream(stream)),
            },
        }
    }

    /// Returns the calling thread's default stream in a context (`CU_STREAM_PER_THREAD`), which is created on first
    /// use. It and the legacy default stream wait for each other.
    fn stream_of_thread(&mut self, context: ContextHandle) -> CudaResult<StreamHandle> {
        let key = (self.current_thread(), context);
        if let Some(&stream) = self.streams_of_threads.get(&key) {
            return Ok(stream);
        }
        let device = self.device_of_context(context)?;
        let stream = self.new_stream(context, device, true, StreamKind::OfThread);
        self.streams_of_threads.insert(key, stream);
        Ok(stream)
    }

    /// Returns the stream's context and its last operation.
    pub fn last_of(&self, stream: StreamHandle) -> CudaResult<(ContextHandle, Awaited)> {
        let entry = self.streams.get(&stream).ok_or_else(|| not_a_stream(stream))?;
        Ok((entry.context, entry.last.clone()))
    }

    /// Returns all streams of a context, in the order of their handles.
    pub(super) fn all_streams_of(
        &self,
        context: ContextHandle,
    ) -> impl Iterator<Item = (StreamHandle, &Stream)> {
        let handles = self.streams_of_contexts.get(&context).into_iter().flatten();
        handles.filter_map(|handle| Some((*handle, self.streams.get(handle)?)))
    }

    /// Returns the last operation on every stream in `context`.
    pub(super) fn last_of_all(&self, context: ContextHandle) -> Vec<Awaited> {
        let streams = self.all_streams_of(context).filter(|(_, stream)| !stream.of_event);
        let mut last: Vec<Awaited> = streams.map(|(_, stream)| stream.last.clone()).collect();
        last.extend(self.retired(context).iter().map(|retired| retired.last.clone()));
        last
    }

    /// Returns the streams of a context that the program can use, in the order of their handles.
    pub(super) fn streams_of(&self, context: ContextHandle) -> Vec<StreamHandle> {
        let usable = |entry: &Stream| !entry.destroyed && !entry.of_graph && !entry.of_event;
        self.all_streams_of(context).filter(|(_, entry)| usable(entry)).map(|(stream, _)| stream).collect()
    }

    /// Returns a context's destroyed streams that no thread has waited for.
    pub(super) fn retired(&self, context: ContextHandle) -> &[Retired] {
        self.contexts.get(&context).map_or(&[], |context| &context.retired)
    }

    /// Forgets destroyed streams that a thread has seen complete. Their last operations may be frees or waits that nobody
    /// waits for, so only what such a wait would tell matters.
    fn forget_retired(&mut self) {
        let mut seen = Vec::new();
        for context in self.contexts.values_mut() {
            let is_over = |Retired { last, last_work, .. }: &mut Retired| {
                let stream = last.op.stream;
                let last_free = last_free(&self.freed, stream);
                // A stream without operations has nothing to tell.
                let tells_nothing = || match last.done.get() {
                    Some(done) => self.order.has_seen_others(stream, done),
                    None => last.op.number == 0,
                };
                self.order.is_seen(stream, last_free.max(*last_work)) && tells_nothing()
            };
            seen.extend(context.retired.extract_if(.., is_over));
        }
        for Retired { last, .. } in seen {
            self.forget_in_clocks(last.op.stream, 0);
            self.forgotten_streams.push(last.op.stream);
        }
    }

    /// Records that the calling thread has waited for operations and therefore knows what had happened when they were
    /// done.
    pub(super) fn saw(&mut self, awaited: Vec<Awaited>, caller: &str) {
        let thread = self.current_thread();
        self.time.wait(thread, awaited.iter().map(|awaited| &awaited.when), caller);
        self.knows(awaited);
    }

    /// Records that the calling thread knows that operations are done.
    pub(super) fn knows(&mut self, done: impl IntoIterator<Item = Awaited>) {
        let thread = self.current_thread();
        for view in done.into_iter().filter_map(|awaited| awaited.done.get().cloned()) {
            self.order.saw(thread, &view);
        }
        self.forget_retired();
        self.open_seen();
    }

    /// Returns whether an operation is done. An operation on a stream that is gone never runs, so nothing waits for it.
    pub(crate) fn is_done(&self, op: OpRef) -> bool {
        self.streams.get(&op.stream).is_none_or(|stream| stream.done >= op.number)
    }
}

pub(super) fn not_a_stream(stream: StreamHandle) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidHandle, format!("{:#x} is not a stream, or is no longer one", stream.0))
}
