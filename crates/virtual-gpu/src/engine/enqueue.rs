//! Enqueues operations: each is appended to its stream's queue, along with what it waits for.

use std::sync::Arc;

use super::context::ContextHandle;
use super::graph::NodeWork;
use super::stream::not_a_stream;
use super::stream::{Awaited, Op};
use super::work::Work;
use super::{Engine, State};
use crate::time::Class;
use virtual_gpu_core::handle::{CallKey, OpRef, OperationNumber, StreamHandle};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::CudaResult;
use virtual_gpu_core::sync::MutexGuard;

impl Engine {
    /// Enqueues `work` and returns. The work runs when its turn comes.
    pub(super) fn submit(&self, stream: StreamHandle, work: Work, call_site: CallSite) -> CudaResult<()> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        self.submit_in(state, stream, work, call_site)
    }

    /// Like [`Self::submit`], but for a resolved stream. A captured stream adds the work to its graph instead.
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
}

impl State {
    /// Appends one rank's part of a call to a stream.
    ///
    /// # Errors
    /// Returns the error if the stream or its context can't be used.
    pub fn enqueue_call(
        &mut self,
        stream: StreamHandle,
        call: CallKey,
        after: Vec<Awaited>,
        call_site: CallSite,
    ) -> CudaResult<Awaited> {
        self.enqueue(stream, Work::Collective(call), after, call_site)
    }

    /// Appends an operation that only waits for `after`.
    ///
    /// # Errors
    /// Returns the error if the stream or its context can't be used.
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
    /// Returns `StreamCaptureUnsupported` if the stream is being captured: use [`State::add_node`] for work that a
    /// graph can contain.
    pub(super) fn enqueue(
        &mut self,
        stream: StreamHandle,
        work: Work,
        mut after: Vec<Awaited>,
        call_site: CallSite,
    ) -> CudaResult<Awaited> {
        let (context, _) = self.last_of(stream)?;
        self.check_usable(context)?;
        self.check_not_captured(stream, &work)?;
        self.check_not_implied(stream, context)?;
        after.extend(self.implied_order(stream, context));
        if !self.streams.get(&stream).is_some_and(|entry| entry.of_graph) {
            let thread = self.current_thread();
            let device = self.device_of_context(context)?;
            self.time.call(thread, device, || format!("enqueue {work}"));
        }
        self.append(stream, work, after, call_site)
    }

    /// Returns a new sequence number for an operation.
    pub(super) fn next_sequence_number(&mut self) -> OperationNumber {
        self.enqueued = self.enqueued.next();
        self.enqueued
    }

    /// Returns the sequence number of `op` if it is the first operation on its stream.
    pub fn enqueued_as(&self, op: OpRef) -> Option<OperationNumber> {
        let stream = self.streams.get(&op.stream).filter(|stream| stream.is_at(op))?;
        stream.queue.front().map(|first| first.enqueued)
    }

    /// Like [`Self::enqueue`], but the operation is not treated as a separate call.
    pub(super) fn append(
        &mut self,
        stream: StreamHandle,
        mut work: Work,
        after: Vec<Awaited>,
        call_site: CallSite,
    ) -> CudaResult<Awaited> {
        if let Work::Kernel(launch) = &mut work {
            launch.objects = self.objects.of(launch.context);
        }
        let thread = self.current_thread();
        let view = self.order.view_of(thread);
        let enqueued = self.next_sequence_number();
        let entry = self.streams.get_mut(&stream).ok_or_else(|| not_a_stream(stream))?;
        let before = after.iter().chain([&entry.last]).map(|awaited| awaited.when.clone());
        let class = work.class();
        let ticket = self.time.enqueue(thread, (entry.device, stream), class, before.collect::<Arc<[_]>>());
        self.time.describe(&ticket, (stream, &entry.name), || work.label());
        entry.issued += 1;
        if matches!(class, Class::Engine | Class::Communication | Class::Host) {
            entry.last_timed = entry.issued;
        }
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

    /// Returns the implicit order: the legacy default stream waits for all blocking streams in its context, and they
    /// wait for it.
    fn implied_order(&self, stream: StreamHandle, context: ContextHandle) -> Vec<Awaited> {
        let Some(own) = self.streams.get(&stream).filter(|own| own.blocking) else { return Vec::new() };
        let mut order = Vec::new();
        for (other, entry) in self.all_streams_of(context) {
            let is_ordered = entry.blocking && (own.legacy || entry.legacy);
            if other != stream && is_ordered {
                order.push(entry.last.clone());
            }
        }
        for retired in self.retired(context) {
            if own.legacy && retired.blocking {
                order.push(retired.last.clone());
            }
        }
        order
    }
}
