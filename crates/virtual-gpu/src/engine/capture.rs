//! Stream capture: operations that are enqueued on a stream become part of a graph instead of running.
//!
//! The rules come from the CUDA Programming Guide, "Creating a Graph Using Stream Capture". A call that breaks a rule
//! makes the entire capture invalid. The capture stays invalid until it is ended, and it produces no graph.

use std::fmt::Display;

use super::communication::SharedCalls;
use super::context::ContextHandle;
use super::event::{EventHandle, Recorded};
use super::graph::{Executable, Graph, GraphHandle, GraphNodeHandle, NodeWork};
use super::{Engine, State};
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::sorted::{SortedMap, SortedSet};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};
use virtual_gpu_core::thread::ThreadKey;

/// `CUstreamCaptureMode`: the threads on which a call that can't be captured, such as `cuMemAlloc`, breaks a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Every thread.
    Global,
    /// The thread that began the capture.
    ThreadLocal,
    /// No thread.
    Relaxed,
}

/// `CUstreamCaptureStatus`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureStatus {
    /// The stream is not being captured.
    None = 0,
    /// Enqueued operations go into a graph.
    Active = 1,
    /// A rule has been broken; the capture must be ended.
    Invalidated = 2,
}

/// A capture, as a program can ask about it.
#[derive(Clone, Debug)]
pub struct CaptureInfo {
    /// A number that no other capture in the process has.
    pub number: u64,
    /// The graph that gets the nodes.
    pub graph: GraphHandle,
    /// The nodes that the stream's next operation comes after.
    pub after: Vec<GraphNodeHandle>,
}

/// A capture's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CaptureId(u64);

struct Capture {
    mode: CaptureMode,
    thread: ThreadKey,
    /// The stream on which the capture began.
    origin: StreamHandle,
    /// The graph that gets the nodes.
    graph: GraphHandle,
    /// Whether the graph exists only because of the capture, which then destroys it if it fails.
    is_own: bool,
    /// The nodes that the end of the capture must come after.
    awaited: Vec<GraphNodeHandle>,
    /// The call that made the capture invalid.
    broken: Option<String>,
}

/// A stream's part in a capture.
#[derive(Clone, Debug)]
pub(super) struct Captured {
    id: CaptureId,
    /// The nodes of the graph that the next enqueued operation comes after.
    pub(super) after: Vec<GraphNodeHandle>,
}

/// All captures that have not ended.
#[derive(Default)]
pub(super) struct Captures {
    begun: u64,
    open: SortedMap<CaptureId, Capture>,
}

impl Captures {
    /// Marks a capture as broken by a call, which returns the error `status`.
    fn break_by(&mut self, id: CaptureId, status: CudaStatus, message: String) -> Error<CudaStatus> {
        if let Some(capture) = self.open.get_mut(&id) {
            capture.broken.get_or_insert_with(|| message.clone());
        }
        Error::new(status, message)
    }

    /// Returns the graph of a stream's capture.
    pub(super) fn graph_of(&self, captured: &Captured) -> Option<GraphHandle> {
        self.open.get(&captured.id).map(|capture| capture.graph)
    }

    /// Returns whether a graph is getting the nodes of a capture.
    pub(super) fn are_into(&self, graph: GraphHandle) -> bool {
        self.open.values().any(|capture| capture.graph == graph)
    }

    /// Returns the capture unless a rule has been broken.
    fn usable(&mut self, id: CaptureId) -> CudaResult<&mut Capture> {
        let gone = || Error::from(CudaStatus::StreamCaptureInvalidated);
        let capture = self.open.get_mut(&id).ok_or_else(gone)?;
        match &capture.broken {
            Some(why) => {
                let message = format!("the capture is invalid since {why}");
                Err(Error::new(CudaStatus::StreamCaptureInvalidated, message))
            }
            None => Ok(capture),
        }
    }
}

impl Engine {
    /// `cuStreamBeginCapture`: from now on, operations enqueued on `stream` go into a graph.
    ///
    /// # Errors
    /// Returns `StreamCaptureUnsupported` for the legacy default stream, and `IllegalState` if the stream is already
    /// being captured.
    pub fn begin_capture(&self, stream: StreamHandle, mode: CaptureMode) -> CudaResult<()> {
        self.begin_capture_to(stream, mode, None)
    }

    /// `cuStreamBeginCaptureToGraph`: like [`Self::begin_capture`], but the operations go into a graph that exists,
    /// after some of its nodes.
    ///
    /// # Errors
    /// Also returns `InvalidValue` for a node of another graph, and if the graph belongs to a node or to a capture.
    pub fn begin_capture_to(
        &self,
        stream: StreamHandle,
        mode: CaptureMode,
        to: Option<(GraphHandle, &[GraphNodeHandle])>,
    ) -> CudaResult<()> {
        let mut state = self.state();
        if let Some((graph, after)) = to {
            state.check_capture_into(graph, after)?;
        }
        let stream = state.resolve_stream(stream)?;
        let (context, _) = state.last_of(stream)?;
        state.check_usable(context)?;
        let thread = state.current_thread();
        let Some(entry) = state.streams.get_mut(&stream) else { return Ok(()) };
        if entry.legacy {
            let message = "the legacy default stream can't be captured: use a stream from ctx.new_stream()";
            return Err(Error::new(CudaStatus::StreamCaptureUnsupported, message));
        }
        if entry.capture.is_some() {
            let message = format!("{} is already being captured", entry.name);
            return Err(Error::new(CudaStatus::IllegalState, message));
        }
        let (graph, after) = match to {
            Some((graph, after)) => (graph, after.to_vec()),
            None => (state.insert_graph(Graph::default()), Vec::new()),
        };
        let captures = &mut state.captures;
        captures.begun += 1;
        let id = CaptureId(captures.begun);
        let (is_own, awaited) = (to.is_none(), after.clone());
        let capture = Capture { mode, thread, origin: stream, graph, is_own, awaited, broken: None };
        captures.open.insert(id, capture);
        if let Some(entry) = state.streams.get_mut(&stream) {
            entry.capture = Some(Captured { id, after });
        }
        Ok(())
    }

    /// `cuStreamEndCapture`: returns the graph that contains the enqueued operations.
    ///
    /// # Errors
    /// Returns `IllegalState` if the stream is not being captured, `StreamCaptureUnmatched` if the capture began on
    /// another stream, `StreamCaptureWrongThread` if it began on another thread and its mode forbids that,
    /// `StreamCaptureInvalidated` with the call that broke the capture, and `StreamCaptureUnjoined` if `stream` does
    /// not wait for work on another stream.
    pub fn end_capture(&self, stream: StreamHandle) -> CudaResult<GraphHandle> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let thread = state.current_thread();
        let entry = state.streams.get(&stream);
        let name = entry.map(|entry| entry.name.clone()).unwrap_or_default();
        let Some(Captured { id, after }) = entry.and_then(|entry| entry.capture.clone()) else {
            return Err(Error::new(CudaStatus::IllegalState, format!("{name} is not being captured")));
        };
        let refuse = |status, message: String| Err(Error::new(status, message));
        let Some(capture) = state.captures.open.get(&id) else { return Err(CudaStatus::IllegalState.into()) };
        if capture.origin != stream {
            let origin = capture.origin;
            let origin = state.streams.get(&origin).map(|entry| entry.name.clone()).unwrap_or_default();
            let message = format!("{name}'s capture began on {origin} and must be ended there");
            return refuse(CudaStatus::StreamCaptureUnmatched, message);
        }
        if capture.thread != thread && capture.mode != CaptureMode::Relaxed {
            let message = format!("{name}'s capture was begun by another thread, which must end it");
            return refuse(CudaStatus::StreamCaptureWrongThread, message);
        }
        let usable = state.captures.usable(id).map(drop);
        let Some(capture) = state.end_open_capture(id) else { return Err(CudaStatus::IllegalState.into()) };
        let unjoined = || {
            let graph = state.graph(capture.graph).ok()?;
            let node = graph.first_not_before(&capture.awaited, &after)?;
            let (of, call_site) = (graph.stream_name(node), &graph.nodes[node].call_site);
            let at = call_site.in_parentheses();
            let message = format!(
                "{name} does not wait for {} on {of}{at}: call {name}.wait(&{of}.record_event(None)?)? before you end the capture",
                graph.nodes[node].work
            );
            Some(Error::new(CudaStatus::StreamCaptureUnjoined, message))
        };
        let failed = usable.err().or_else(unjoined);
        match failed {
            None => Ok(capture.graph),
            Some(error) => {
                state.discard(&capture);
                self.release_graph_memory(state);
                Err(error)
            }
        }
    }

    /// `cuStreamIsCapturing`
    ///
    /// # Errors
    /// Returns `StreamCaptureImplicit` for the legacy default stream while a stream that waits for it is being
    /// captured.
    pub fn capture_status(&self, stream: StreamHandle) -> CudaResult<CaptureStatus> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let (context, _) = state.last_of(stream)?;
        if let Some((_, message)) = state.implied(stream, context) {
            return Err(Error::new(CudaStatus::StreamCaptureImplicit, message));
        }
        let captured = state.streams.get(&stream).and_then(|entry| entry.capture.as_ref());
        let capture = captured.and_then(|captured| state.captures.open.get(&captured.id));
        Ok(match capture {
            None => CaptureStatus::None,
            Some(Capture { broken: None, .. }) => CaptureStatus::Active,
            Some(_) => CaptureStatus::Invalidated,
        })
    }

    /// `cuStreamGetCaptureInfo`: returns the status of a stream's capture and, if it is active, the capture.
    ///
    /// # Errors
    /// As for [`Self::capture_status`].
    pub fn capture_info(&self, stream: StreamHandle) -> CudaResult<(CaptureStatus, Option<CaptureInfo>)> {
        let status = self.capture_status(stream)?;
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let captured = state.streams.get(&stream).and_then(|entry| entry.capture.as_ref());
        let info = captured.filter(|_| status == CaptureStatus::Active).and_then(|captured| {
            let graph = state.captures.graph_of(captured)?;
            Some(CaptureInfo { number: captured.id.0, graph, after: captured.after.clone() })
        });
        Ok((status, info))
    }

    /// `cuStreamUpdateCaptureDependencies`: adds to the nodes that a stream's next captured operation comes after, or
    /// replaces them.
    ///
    /// # Errors
    /// Returns `IllegalState` if the stream is not being captured, and `InvalidValue` for a node of another graph.
    pub fn update_captured(
        &self,
        stream: StreamHandle,
        nodes: &[GraphNodeHandle],
        replaces: bool,
    ) -> CudaResult<()> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let Some(captured) = state.streams.get(&stream).and_then(|entry| entry.capture.clone()) else {
            let message = "cuStreamUpdateCaptureDependencies: the stream is not being captured";
            return Err(Error::new(CudaStatus::IllegalState, message));
        };
        let graph = state.captures.usable(captured.id)?.graph;
        state.graph(graph)?.indices(nodes)?;
        let mut after = nodes.to_vec();
        match replaces {
            // The end of the capture need not come after nodes that are removed.
            true => {
                if let Some(capture) = state.captures.open.get_mut(&captured.id) {
                    capture.awaited.retain(|node| !captured.after.contains(node));
                }
            }
            false => after.extend(captured.after.iter().filter(|known| !nodes.contains(known))),
        }
        state.set_captured(stream, after);
        Ok(())
    }

    /// `cuThreadExchangeStreamCaptureMode`: sets which captures the calling thread can break. Returns the last mode.
    pub fn exchange_capture_mode(&self, mode: CaptureMode) -> CaptureMode {
        std::mem::replace(&mut self.state().thread().capture_mode, mode)
    }

    pub(super) fn is_capturing(&self, stream: StreamHandle) -> bool {
        let mut state = self.state();
        state.resolve_stream(stream).is_ok_and(|stream| state.is_capturing(stream))
    }

    /// Rejects a call that can't be captured, and breaks every open capture whose mode forbids the call.
    pub(super) fn check_capture_allows(&self, call: &str) -> CudaResult<()> {
        let mut state = self.state();
        let thread = state.current_thread();
        let of_thread = state.thread().capture_mode;
        let minds = |capture: &Capture| match capture.mode {
            _ if of_thread == CaptureMode::Relaxed => false,
            CaptureMode::Global if of_thread == CaptureMode::ThreadLocal => capture.thread == thread,
            CaptureMode::Global => true,
            CaptureMode::ThreadLocal => capture.thread == thread,
            CaptureMode::Relaxed => false,
        };
        let broken = state.captures.open.entries().iter().filter(|(_, capture)| minds(capture));
        let broken: Vec<(CaptureId, bool)> =
            broken.map(|(id, capture)| (*id, capture.thread == thread)).collect();
        let errors = broken.into_iter().map(|(id, is_own)| {
            let message = match is_own {
                true => format!(
                    "{call} can't be captured, but was called during a capture: call it before the capture"
                ),
                false => {
                    format!("{call} was called in another thread than the capture's, which the global capture mode forbids")
                }
            };
            state.captures.break_by(id, CudaStatus::StreamCaptureUnsupported, message)
        });
        errors.last().map_or(Ok(()), Err)
    }
}

impl State {
    /// Checks that a graph can get the nodes of a capture that begins after some of its nodes.
    fn check_capture_into(&self, graph: GraphHandle, after: &[GraphNodeHandle]) -> CudaResult<()> {
        let invalid = |message: String| Err(Error::new(CudaStatus::InvalidValue, message));
        let known = self.graph(graph)?;
        known.indices(after)?;
        if known.owner.is_some() {
            return invalid(format!("graph {:#x} belongs to a node", graph.0));
        }
        if self.captures.are_into(graph) {
            return invalid(format!("graph {:#x} is already getting the nodes of a capture", graph.0));
        }
        Ok(())
    }

    /// Removes a capture from its streams.
    fn end_open_capture(&mut self, id: CaptureId) -> Option<Capture> {
        for entry in self.streams.values_mut() {
            entry.capture.take_if(|captured| captured.id == id);
        }
        self.captures.open.remove(&id)
    }

    /// Destroys the graph of a capture that has failed.
    fn discard(&mut self, capture: &Capture) {
        if capture.is_own {
            self.remove_graph(capture.graph);
        }
    }

    /// Sets the nodes that a stream's next captured operation comes after. The end of the capture must come after them.
    fn set_captured(&mut self, stream: StreamHandle, after: Vec<GraphNodeHandle>) {
        self.await_captured(stream, &after);
        if let Some(captured) = self.streams.get_mut(&stream).and_then(|entry| entry.capture.as_mut()) {
            captured.after = after;
        }
    }

    fn await_captured(&mut self, stream: StreamHandle, nodes: &[GraphNodeHandle]) {
        let Some(captured) = self.streams.get(&stream).and_then(|entry| entry.capture.as_ref()) else {
            return;
        };
        if let Some(capture) = self.captures.open.get_mut(&captured.id) {
            capture.awaited.extend(nodes);
        }
    }

    /// Returns whether a stream is being captured.
    pub fn is_capturing(&self, stream: StreamHandle) -> bool {
        self.streams.get(&stream).is_some_and(|entry| entry.capture.is_some())
    }

    /// Adds calls that were made on a captured stream to the stream's graph.
    ///
    /// # Errors
    /// Returns a broken capture's error.
    pub fn capture_calls(
        &mut self,
        stream: StreamHandle,
        calls: SharedCalls,
        call_site: CallSite,
    ) -> CudaResult<()> {
        self.add_node(stream, NodeWork::Communication(calls), call_site)
    }

    /// Adds work that was enqueued on a captured stream to the stream's graph.
    pub(super) fn add_node(
        &mut self,
        stream: StreamHandle,
        work: NodeWork,
        call_site: CallSite,
    ) -> CudaResult<()> {
        let Some(entry) = self.streams.get_mut(&stream) else { return Ok(()) };
        let Some(Captured { id, after }) = &mut entry.capture else { return Ok(()) };
        let capture = self.captures.usable(*id)?;
        let gone = || Error::new(CudaStatus::StreamCaptureInvalidated, "the captured graph is gone");
        let graph = self.graphs.get_mut(capture.graph).ok_or_else(gone)?;
        let indices = after.iter().map(|&node| graph.index(node)).collect::<CudaResult<_>>()?;
        let at = graph.add_captured((stream, entry.context, &entry.name), indices, work, call_site);
        let graph = capture.graph;
        let node = self.name_node(graph, at);
        self.set_captured(stream, vec![node]);
        Ok(())
    }

    /// Returns `Some(true)` if one graph captures all of `streams`, `Some(false)` if none is captured, and `None`
    /// otherwise.
    pub fn captured_alike(&self, streams: &[StreamHandle]) -> Option<bool> {
        let capture = |stream| self.streams.get(stream).and_then(|entry| Some(entry.capture.as_ref()?.id));
        let mut captures = streams.iter().map(capture);
        let first = captures.next().flatten();
        captures.all(|other| other == first).then_some(first.is_some())
    }

    /// Orders the next captured operation of each of `streams` after everything captured in all of them so far.
    pub fn join_captured(&mut self, streams: &[StreamHandle]) {
        let captured = streams.iter().filter_map(|stream| self.streams.get(stream)?.capture.as_ref());
        let joined: SortedSet<GraphNodeHandle> =
            captured.flat_map(|captured| &captured.after).copied().collect();
        for stream in streams {
            if let Some(captured) = self.streams.get_mut(stream).and_then(|entry| entry.capture.as_mut()) {
                captured.after = joined.iter().copied().collect();
            }
        }
    }

    /// Adds a graph that is launched on a captured stream to the stream's graph.
    pub(super) fn add_graph(&mut self, stream: StreamHandle, child: &Executable) -> CudaResult<()> {
        if child.has_memory() {
            return self.check_not_captured(stream, &"a graph that allocates or frees memory");
        }
        let Some(entry) = self.streams.get_mut(&stream) else { return Ok(()) };
        let Some(Captured { id, after }) = &mut entry.capture else { return Ok(()) };
        let handle = self.captures.usable(*id)?.graph;
        let gone = || Error::new(CudaStatus::StreamCaptureInvalidated, "the captured graph is gone");
        let graph = self.graphs.get_mut(handle).ok_or_else(gone)?;
        let indices: Vec<usize> = after.iter().map(|&node| graph.index(node)).collect::<CudaResult<_>>()?;
        let start = graph.nodes.len();
        let last = graph.append(child, &indices);
        let end = graph.nodes.len();
        let new: Vec<_> = (start..end).map(|at| self.name_node(handle, at)).collect();
        let Ok(graph) = self.graph(handle) else { return Ok(()) };
        let last = graph.handles(&last);
        self.set_captured(stream, last);
        self.await_captured(stream, &new);
        Ok(())
    }

    /// Returns the point in the graph that an event marks if it is recorded on a captured stream.
    pub(super) fn captured_record(&mut self, stream: StreamHandle) -> CudaResult<Option<Recorded>> {
        let capture = self.streams.get(&stream).and_then(|entry| entry.capture.clone());
        let Some(captured) = capture else { return Ok(None) };
        self.captures.usable(captured.id)?;
        Ok(Some(Recorded::Captured(captured)))
    }

    /// Makes a stream wait for an event if either of them is being captured; the stream joins the event's capture.
    /// Returns `false` if neither is being captured.
    pub(super) fn captured_wait(
        &mut self,
        stream: StreamHandle,
        event: EventHandle,
        recorded: Option<&Recorded>,
    ) -> CudaResult<bool> {
        let Some(entry) = self.streams.get_mut(&stream) else { return Ok(false) };
        match (&mut entry.capture, recorded) {
            (None, None | Some(Recorded::Done(_))) => Ok(false),
            (Some(captured), Some(Recorded::Captured(event))) if captured.id == event.id => {
                self.captures.usable(captured.id)?;
                let new: Vec<_> = event.after.iter().filter(|node| !captured.after.contains(node)).collect();
                captured.after.extend(new);
                Ok(true)
            }
            (None, Some(Recorded::Captured(event))) => {
                if !self.captures.open.contains_key(&event.id) {
                    let message = "the event was last recorded in a capture that has ended";
                    return Err(Error::new(CudaStatus::InvalidValue, message));
                }
                self.captures.usable(event.id)?;
                if entry.legacy {
                    let message = "the legacy default stream waited for a captured event".to_owned();
                    return Err(self.captures.break_by(event.id, CudaStatus::StreamCaptureImplicit, message));
                }
                entry.capture = Some(event.clone());
                Ok(true)
            }
            (Some(captured), Some(Recorded::Captured(event))) => {
                let message = format!(
                    "{}, which is being captured, waited for an event from another capture, which is not allowed",
                    entry.name
                );
                let id = captured.id;
                self.captures.break_by(event.id, CudaStatus::StreamCaptureMerge, message.clone());
                Err(self.captures.break_by(id, CudaStatus::StreamCaptureMerge, message))
            }
            (Some(_), None) => Ok(true),
            (Some(captured), Some(Recorded::Done(_))) => {
                let message = format!(
                    "{}, which is being captured, waited for event {:#x}, which was recorded outside of the capture \
                     (cudarc's slice tracking does this: turn it off with ctx.disable_event_tracking() before you allocate)",
                    entry.name, event.0
                );
                let id = captured.id;
                Err(self.captures.break_by(id, CudaStatus::StreamCaptureIsolation, message))
            }
        }
    }

    /// Rejects a call that is not allowed for a captured event, and breaks the capture.
    pub(super) fn check_event_done(&mut self, recorded: &Recorded, call: &str) -> CudaResult<()> {
        let Recorded::Captured(captured) = recorded else { return Ok(()) };
        let message = format!("{call} was called for an event that was last recorded on a captured stream");
        Err(self.captures.break_by(captured.id, CudaStatus::CapturedEvent, message))
    }

    /// Rejects a call that is not allowed for a captured stream, and breaks the capture.
    pub(super) fn check_not_captured(&mut self, stream: StreamHandle, what: &dyn Display) -> CudaResult<()> {
        let Some(entry) = self.streams.get(&stream) else { return Ok(()) };
        let Some(captured) = &entry.capture else { return Ok(()) };
        let message = format!("{what} on {}, which is being captured, can't be part of a graph", entry.name);
        Err(self.captures.break_by(captured.id, CudaStatus::StreamCaptureUnsupported, message))
    }

    /// Rejects a wait for an entire context while one of its streams is being captured, and breaks the capture.
    pub(super) fn check_none_captured(&mut self, context: ContextHandle, call: &str) -> CudaResult<()> {
        let captured: Vec<StreamHandle> = self
            .all_streams_of(context)
            .filter(|(_, entry)| entry.capture.is_some())
            .map(|(stream, _)| stream)
            .collect();
        captured.into_iter().try_for_each(|stream| self.check_not_captured(stream, &call))
    }

    /// Rejects work on the legacy default stream while a stream that waits for it is being captured, and breaks the
    /// capture.
    pub(super) fn check_not_implied(
        &mut self,
        stream: StreamHandle,
        context: ContextHandle,
    ) -> CudaResult<()> {
        match self.implied(stream, context) {
            Some((id, message)) => {
                Err(self.captures.break_by(id, CudaStatus::StreamCaptureImplicit, message))
            }
            None => Ok(()),
        }
    }

    /// Returns the capture that work on `stream` would implicitly wait for, and a message about it.
    fn implied(&self, stream: StreamHandle, context: ContextHandle) -> Option<(CaptureId, String)> {
        if self.captures.open.is_empty() || !self.streams.get(&stream)?.legacy {
            return None;
        }
        let blocking = self.all_streams_of(context).filter(|(_, entry)| entry.blocking);
        let (captured, name) = blocking
            .filter_map(|(_, entry)| Some((entry.capture.as_ref()?, &entry.name)))
            .min_by_key(|it| it.1)?;
        let message = format!(
            "the legacy default stream was used while {name}, which waits for it, was being captured: \
             capture a stream from ctx.new_stream(), or don't use the default stream"
        );
        Some((captured.id, message))
    }

    /// Discards the capture that began on a stream that is gone.
    pub(super) fn leave_capture(&mut self, stream: StreamHandle) {
        let of_origin = self.captures.open.entries().iter().find(|(_, capture)| capture.origin == stream);
        if let Some(&(id, _)) = of_origin
            && let Some(capture) = self.end_open_capture(id)
        {
            self.discard(&capture);
        }
    }
}
