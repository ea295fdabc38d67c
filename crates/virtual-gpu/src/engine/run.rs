//! Removes operations from their streams when their turn has come and runs them without the lock.

use super::communication::CommunicationJob;
use super::stream::Op;
use super::together::{Ended, Together};
use super::touched::{Done, Outcome};
use super::value::{Check, Pending, ValueOperation};
use super::wait::Blocked;
use super::work::Work;
use super::{Engine, State};
use crate::order::View;
use crate::time::{Cost, Ticket, Time};
use virtual_gpu_core::handle::{CallKey, OpRef, OperationNumber, StreamHandle};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::sync::MutexGuard;
use virtual_gpu_core::thread::ThreadKey;

/// Work that has been removed from its stream and can run without the lock.
enum Job {
    Op { stream: StreamHandle, work: Work, turn: Turn },
    Communication(CommunicationJob),
    Together(Together),
    Check(Check),
}

/// The information that an operation needs when it runs.
pub(super) struct Turn {
    /// Its stream's GPU.
    pub(super) device: usize,
    pub(super) call_site: CallSite,
    /// Its sequence number.
    pub(super) sequence: OperationNumber,
    /// The earliest time on its stream.
    pub(super) start_ns: u64,
}

impl Turn {
    pub(super) fn of(op: &Op, device: usize) -> Self {
        Self {
            device,
            call_site: op.call_site.clone(),
            sequence: op.enqueued,
            start_ns: Time::start_of(&op.ticket),
        }
    }
}

impl Engine {
    /// Runs ready work on this thread until none is left.
    pub fn run_ready<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.forget_threads();
        let before = state.finished;
        state.check_elsewhere();
        state.together.begin_pass();
        state.recheck_values();
        while let Some(job) = state.take_ready() {
            // Other threads may find that more work is ready.
            if !state.blocked.is_empty() && !state.runnable.is_empty() {
                self.changed.notify_one();
            }
            state.under_way += 1;
            drop(state);
            state = match job {
                Job::Op { stream, work, turn } => {
                    let what = work.to_string();
                    let frees = matches!(work, Work::Free { .. });
                    let stays = matches!(work, Work::Free { of_graph: true, .. });
                    let outcome = self.execute(work, &turn);
                    let mut state = self.state();
                    if let Some(entry) = state.streams.get_mut(&stream).filter(|_| stays) {
                        // Later accesses to the memory, which remains reserved, can race with the free.
                        entry.last_touch = entry.done + 1;
                    }
                    self.conclude_op(&mut state, stream, &what, outcome, frees, false);
                    state
                }
                Job::Communication(job) => job(self),
                Job::Check(check) => {
                    let found = self.run_check(&check);
                    let mut state = self.state();
                    self.conclude_check(&mut state, &check, found);
                    state
                }
                Job::Together(job) => {
                    let ended = self.run_together(job);
                    let mut state = self.state();
                    if let Some(Ended { stream, what, outcome, learned }) = ended {
                        state.learn(stream, &learned);
                        self.conclude_op(&mut state, stream, &what, outcome, false, true);
                    }
                    state
                }
            };
            state.under_way -= 1;
        }
        state = self.release_freed(state);
        state = self.destroy_objects(state);
        state.announce_forgotten_streams();
        let may_go_on = state.has_a_wait_ended() || state.finished != before && state.waiting_for_times > 0;
        // A launch that has run for a while goes on in another thread's pass.
        if may_go_on || state.together.can_go_on() {
            self.changed.notify_all();
        }
        if !state.host_functions.is_empty() {
            self.host.notify_one();
        }
        if state.has_waits_elsewhere() {
            self.elsewhere.notify_one();
        }
        state
    }

    /// Records what the first operation on `stream` has touched, or its failure, and removes it. `frees` and `is_together`: as
    /// for [`Self::note_touched`].
    fn conclude_op(
        &self,
        state: &mut State,
        stream: StreamHandle,
        what: &str,
        outcome: Outcome,
        frees: bool,
        is_together: bool,
    ) {
        let cost = match outcome {
            Ok(Done { touched, cost }) => {
                self.note_touched(state, stream, what, touched, frees, is_together);
                cost
            }
            Err(failure) => {
                state.fail_stream(stream, &failure);
                Cost::Nothing
            }
        };
        state.finish_after(stream, &View::default(), cost);
    }
}

impl State {
    /// Returns the next stream whose first operation may be ready. CUDA promises no order between streams.
    fn next_runnable(&mut self) -> Option<StreamHandle> {
        if self.is_strict { self.runnable.pop_back() } else { self.runnable.pop_front() }
    }

    /// Takes the next work that can run. Operations that only mark a point are completed here.
    fn take_ready(&mut self) -> Option<Job> {
        while let Some(handle) = self.next_runnable() {
            let Some(stream) = self.streams.get(&handle) else { continue };
            let Some(op) = stream.queue.front().filter(|_| !stream.busy) else { continue };
            if let Some(unmet) = op.after.iter().find(|after| !self.is_done(after.op)) {
                self.waiting.get_or_insert_with(unmet.op.stream, Vec::new).push(handle);
                continue;
            }
            let device = stream.device;
            let (failed, may_wait) =
                (self.has_failed(stream.context), self.may_wait_for_others(stream.context));
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
                    let communication = self.communication;
                    match communication.arrive(self, call) {
                        Ok(Some(job)) => return Some(Job::Communication(job)),
                        Ok(None) => {}
                        Err(failure) => {
                            self.fail_stream(handle, &failure);
                            self.finish(handle);
                        }
                    }
                }
                work @ Work::Free { .. } => {
                    return Some(Job::Op { stream: handle, work, turn: Turn::of(op, device) });
                }
                Work::Nothing | Work::Record | Work::Wait => self.finish(handle),
                Work::RecordFor(record) => {
                    drop(record);
                    self.finish(handle);
                }
                Work::WaitElsewhere(record) => {
                    op.work = Work::WaitElsewhere(record.clone());
                    let op = OpRef { stream: handle, number: stream.done + 1 };
                    self.await_elsewhere(op, record);
                    self.check_elsewhere();
                }
                // A failed GPU does no more work.
                _ if failed => self.finish(handle),
                Work::Host(function) => {
                    op.work = Work::Host(None);
                    let op = OpRef { stream: handle, number: stream.done + 1 };
                    self.host_functions.extend(function.map(|function| (op, function)));
                }
                work @ Work::Value(ValueOperation::Wait(..)) => {
                    op.work = work;
                    self.value_waits.insert(handle, Pending::default());
                }
                Work::Kernel(launch) if may_wait => {
                    let turn = Turn::of(op, device);
                    let op = OpRef { stream: handle, number: stream.done + 1 };
                    if let Some(job) = self.together(launch, turn, op) {
                        return Some(Job::Together(job));
                    }
                }
                work => return Some(Job::Op { stream: handle, work, turn: Turn::of(op, device) }),
            }
        }
        self.take_check().map(Job::Check).or_else(|| self.take_suspended().map(Job::Together))
    }

    /// Removes the first operation from a stream, because it is done.
    pub fn finish(&mut self, handle: StreamHandle) {
        self.finish_after(handle, &View::default(), Cost::Nothing);
    }

    /// Like [`Self::finish`], but for an operation that has a cost and also comes after everything that `others` knows.
    pub fn finish_after(&mut self, handle: StreamHandle, others: &View, cost: Cost) {
        // The stream is gone if its context was destroyed in the meantime.
        let Some(stream) = self.streams.get_mut(&handle) else { return };
        stream.busy = false;
        stream.done += 1;
        self.finished += 1;
        self.waiters.done_on(handle);
        if let Some(mut op) = stream.queue.pop_front() {
            op.view.join(others);
            // Without this reference to the clock's numbers, they need not be copied now.
            stream.view = View::default();
            op.view.advance(handle, stream.done);
            stream.view.clone_from(&op.view);
            // This succeeds because an operation completes only once.
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

    /// Returns the thread that enqueued `op`, and what had happened when its turn came. `op` must be the first
    /// operation on its stream.
    pub fn first_of(&self, op: OpRef) -> Option<(ThreadKey, View)> {
        let stream = self.streams.get(&op.stream).filter(|stream| stream.is_at(op))?;
        stream.queue.front().map(|first| (first.thread, first.view.clone()))
    }

    /// Returns the ticket of `op`, which must be the first operation on its stream.
    pub fn ticket_of(&self, op: OpRef) -> Option<Ticket> {
        let stream = self.streams.get(&op.stream).filter(|stream| stream.is_at(op))?;
        stream.queue.front().map(|first| first.ticket.clone())
    }

    /// Returns the call site where `op` was enqueued. `op` must be the first operation on its stream.
    pub(super) fn call_site_of(&self, op: OpRef) -> Option<CallSite> {
        let stream = self.streams.get(&op.stream).filter(|stream| stream.is_at(op))?;
        stream.queue.front().map(|first| first.call_site.clone())
    }

    /// Returns what will have happened when `op`, the first operation on its stream, is done.
    pub fn view_at_end_of(&self, op: OpRef) -> Option<View> {
        let mut view = View::default();
        self.add_view_at_end_of(op, &mut view)?;
        Some(view)
    }

    /// Adds what will have happened when `op`, the first operation on its stream, is done. Returns `None` if it isn't the first.
    pub fn add_view_at_end_of(&self, op: OpRef, to: &mut View) -> Option<()> {
        let stream = self.streams.get(&op.stream).filter(|stream| stream.is_at(op))?;
        to.join(&stream.queue.front()?.view);
        to.advance(op.stream, op.number);
        Some(())
    }

    /// Returns what an unfinished operation is waiting for: an operation that the first operation on its stream is
    /// waiting for, or that first operation itself if it is a collective or host function. Returns `None` if the first
    /// operation is running or about to run.
    pub(super) fn obstacle(&self, op: OpRef) -> Option<Obstacle> {
        let stream = self.streams.get(&op.stream)?;
        let first = stream.queue.front()?;
        match first.work {
            Work::Collective(call) if stream.busy => Some(Obstacle::Collective(call)),
            Work::WaitElsewhere(_) if stream.busy => {
                Some(Obstacle::Elsewhere(OpRef { stream: op.stream, number: stream.done + 1 }))
            }
            Work::Host(None) => Some(Obstacle::Host(OpRef { stream: op.stream, number: stream.done + 1 })),
            Work::Value(ValueOperation::Wait(..)) if stream.busy => {
                Some(Obstacle::Value(OpRef { stream: op.stream, number: stream.done + 1 }))
            }
            _ if stream.busy => None,
            _ => first.after.iter().find(|after| !self.is_done(after.op)).map(|after| Obstacle::Op(after.op)),
        }
    }

    /// Returns what an operation is ultimately waiting for, which is never another operation.
    pub(super) fn last_obstacle(&self, mut op: OpRef) -> Option<Obstacle> {
        // Each step leads to an operation that was enqueued earlier, so the loop ends.
        loop {
            match self.obstacle(op)? {
                Obstacle::Op(next) => op = next,
                last => return Some(last),
            }
        }
    }

    /// Returns what a thread is blocked on, if it is blocked.
    pub(super) fn blocked(&self, thread: ThreadKey) -> Option<&Blocked> {
        self.threads.get(&thread)?.blocked.as_ref()
    }
}

/// Why the first operation on a stream does not run.
pub(super) enum Obstacle {
    Op(OpRef),
    Collective(CallKey),
    /// A host function that has not returned.
    Host(OpRef),
    /// A wait for a number in memory.
    Value(OpRef),
    /// A wait for another process.
    Elsewhere(OpRef),
}
