//! Running: operations whose turn has come, taken out of their streams and run without the lock.

use super::communication::CommunicationJob;
use super::stream::Op;
use super::touched::Done;
use super::wait::Blocked;
use super::work::Work;
use super::{Engine, State};
use crate::order::View;
use crate::time::{Cost, Ticket, Time};
use virtual_gpu_core::handle::{CallKey, OpRef, OperationNumber, StreamHandle};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::sync::MutexGuard;
use virtual_gpu_core::thread::ThreadKey;

/// Work that has been taken out of its stream and can run without the lock.
enum Job {
    Op { stream: StreamHandle, work: Work, turn: Turn },
    Communication(CommunicationJob),
}

/// What an operation knows of itself whose turn has come.
pub(super) struct Turn {
    /// That of its stream.
    pub(super) device: usize,
    pub(super) call_site: CallSite,
    /// Its sequence number.
    pub(super) sequence: OperationNumber,
    /// The earliest time on its stream.
    pub(super) start_ns: u64,
}

impl Turn {
    fn of(op: &Op, device: usize) -> Self {
        Self {
            device,
            call_site: op.call_site.clone(),
            sequence: op.enqueued,
            start_ns: Time::start_of(&op.ticket),
        }
    }
}

impl Engine {
    /// Runs whatever is ready, on this thread, until nothing is.
    pub fn run_ready<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.forget_threads();
        let before = state.finished;
        while let Some(job) = state.take_ready() {
            // Other threads may find more that is ready.
            if !state.blocked.is_empty() && !state.runnable.is_empty() {
                self.changed.notify_one();
            }
            state.under_way += 1;
            drop(state);
            state = match job {
                Job::Op { stream, work, turn } => {
                    let what = work.to_string();
                    let frees = matches!(work, Work::Free { .. });
                    let outcome = self.execute(work, &turn);
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
                Job::Communication(job) => job(self),
            };
            state.under_way -= 1;
        }
        state = self.release_freed(state);
        state.announce_forgotten_streams();
        if state.finished != before && (state.waiting_for_times > 0 || state.is_a_wait_over()) {
            self.changed.notify_all();
        }
        if !state.host_functions.is_empty() {
            self.host.notify_one();
        }
        state
    }
}

impl State {
    /// Takes the next work that can run; operations that only mark a point are done here.
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
                // A GPU that has failed does nothing more.
                _ if failed => self.finish(handle),
                Work::Host(function) => {
                    op.work = Work::Host(None);
                    let op = OpRef { stream: handle, number: stream.done + 1 };
                    self.host_functions.extend(function.map(|function| (op, function)));
                }
                work => return Some(Job::Op { stream: handle, work, turn: Turn::of(op, device) }),
            }
        }
        None
    }

    /// Takes the first operation of a stream away, as done.
    pub fn finish(&mut self, handle: StreamHandle) {
        self.finish_after(handle, &View::default(), Cost::Nothing);
    }

    /// As [`Self::finish`], of an operation that also comes after all that `others` knows, and that has cost something.
    pub fn finish_after(&mut self, handle: StreamHandle, others: &View, cost: Cost) {
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

    /// The thread that enqueued `op`, which is the first operation of its stream, and what had happened when its turn came.
    pub fn first_of(&self, op: OpRef) -> Option<(ThreadKey, View)> {
        let stream = self.streams.get(&op.stream).filter(|stream| stream.is_at(op))?;
        stream.queue.front().map(|first| (first.thread, first.view.clone()))
    }

    /// The ticket of `op`, which is the first operation of its stream.
    pub fn ticket_of(&self, op: OpRef) -> Option<Ticket> {
        let stream = self.streams.get(&op.stream).filter(|stream| stream.is_at(op))?;
        stream.queue.front().map(|first| first.ticket.clone())
    }

    /// Where `op`, which is the first operation of its stream, was enqueued.
    pub(super) fn call_site_of(&self, op: OpRef) -> Option<CallSite> {
        let stream = self.streams.get(&op.stream).filter(|stream| stream.is_at(op))?;
        stream.queue.front().map(|first| first.call_site.clone())
    }

    /// What will have happened when the first operation of its stream, `op`, is done.
    pub fn view_at_end_of(&self, op: OpRef) -> Option<View> {
        let stream = self.streams.get(&op.stream).filter(|stream| stream.is_at(op))?;
        let mut view = stream.queue.front()?.view.clone();
        view.advance(op.stream, op.number);
        Some(view)
    }

    /// What an operation that is not done waits for: the operations that the first one of its stream waits for,
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
