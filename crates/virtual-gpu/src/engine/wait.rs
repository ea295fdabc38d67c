//! Blocks host threads and detects waits that will never end.
//!
//! A thread waits for operations. An operation waits for other operations or for the ranks of its collective. A missing
//! rank waits for the thread that drives it. A wait is deadlocked if everything that it still needs has ended or is
//! waiting in the same cycle. Nothing here depends on a clock, except for the last resort,
//! [`Config::timeout`](crate::config::Config).

use std::time::{Duration, Instant};

use super::communication::{Awaiting, Deadlocked, Missing};
use super::run::Obstacle;
use super::stream::{Awaited, Stream};
use super::work::Work;
use super::{Engine, Failure, State};
use crate::config::Timeout;
use crate::report::Report;
use virtual_gpu_core::handle::CallKey;
use virtual_gpu_core::handle::{OpRef, OperationNumber, StreamHandle};
use virtual_gpu_core::map::Map;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::CudaStatus;
use virtual_gpu_core::sync::MutexGuard;
use virtual_gpu_core::thread::ThreadKey;

/// How often a blocked thread checks whether a thread that it is waiting for has ended, if few are blocked.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// If more threads than this are blocked, each looks less often, so that all looks together take no more time.
const FEW_BLOCKED: u32 = 16;

/// A polling loop may have its own deadline, so its timeout is this many times as long as a wait's. So is the timeout
/// of a wait while another thread polls.
const POLLING: u32 = 3;

/// How long nothing must have changed before a wait is known never to end. No thread holds a lock for so long.
const PROOF: Duration = Duration::from_millis(50);

/// Since when nothing could end some waits, with the number of changes and the last operation's number at that time.
#[derive(Default)]
pub(super) struct Stuck(Option<(Instant, (u64, OperationNumber))>);

impl Stuck {
    /// Returns whether this has lasted long enough without a change. `now` is `None` if something can end the waits.
    pub(super) fn has_lasted(&mut self, now: Option<(u64, OperationNumber)>) -> bool {
        match (self.0, now) {
            (Some((since, then)), Some(now)) if then == now => since.elapsed() >= PROOF,
            _ => {
                self.0 = now.map(|now| (Instant::now(), now));
                false
            }
        }
    }
}

/// What a blocked thread is waiting for. It waits until all of these are over.
#[derive(Clone, Debug)]
pub enum Wait {
    /// Operations.
    Ops(Vec<OpRef>),
    /// This thread's communicators that are being created, split, or finalized.
    Communicators(Vec<Awaiting>),
}

/// A host thread's wait.
#[derive(Clone, Debug)]
pub(crate) struct Blocked {
    pub(crate) wait: Wait,
    /// The function that the thread called.
    pub(crate) caller: &'static str,
    pub(crate) call_site: CallSite,
}

/// The blocked threads by what they wait for.
#[derive(Default)]
pub(super) struct Waiters {
    of_streams: Map<StreamHandle, Vec<ThreadKey>>,
    /// The threads that wait for communicators, without those that have been woken because their wait is over.
    of_communicators: Vec<ThreadKey>,
    /// Threads for which an operation on one of their streams has been done.
    to_check: Vec<ThreadKey>,
}

impl Waiters {
    fn add(&mut self, thread: ThreadKey, wait: &Wait) {
        match wait {
            Wait::Ops(ops) => {
                ops.iter().for_each(|op| self.of_streams.entry(op.stream).or_default().push(thread))
            }
            Wait::Communicators(_) => self.of_communicators.push(thread),
        }
    }

    fn remove(&mut self, thread: ThreadKey, wait: &Wait) {
        let Wait::Ops(ops) = wait else {
            self.of_communicators.retain(|&waiting| waiting != thread);
            return;
        };
        for op in ops {
            if let Some(threads) = self.of_streams.get_mut(&op.stream) {
                threads.retain(|&waiting| waiting != thread);
                if threads.is_empty() {
                    self.of_streams.remove(&op.stream);
                }
            }
        }
    }

    /// Records that an operation on a stream is done.
    pub(super) fn done_on(&mut self, stream: StreamHandle) {
        if let Some(threads) = self.of_streams.get(&stream) {
            self.to_check.extend(threads);
        }
    }
}

/// A query that a thread keeps repeating on a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Polled {
    /// The operation that isn't done.
    number: u64,
    since: Instant,
    last: Instant,
}

/// A wait's timeout, and how much of it has passed.
struct WaitTimeout {
    timeout: Duration,
    /// How long no operation has been running. The time while one is running does not count, because the awaited thread
    /// may be running it.
    idle: Duration,
    /// The number of times that the timeout may still start again because another thread polls.
    restarts: u32,
    /// The value of [`State::early_queries`] when the timeout last started.
    early_queries: u64,
}

impl WaitTimeout {
    fn new(timeout: Duration, early_queries: u64) -> Self {
        Self { timeout, idle: Duration::ZERO, restarts: POLLING - 1, early_queries }
    }

    /// Counts time in which no operation was running. The waiting thread wakes up after `pause`. If it wakes up much
    /// later, the machine is busy or the process was stopped, and the awaited thread may not have run either. So the
    /// delay does not count.
    fn count(&mut self, time: Duration, pause: Duration) {
        self.idle += time.min(2 * pause);
    }

    /// Returns whether the timeout has passed. It starts again if a query has returned "not done" for an operation
    /// whose end is known: the thread that polls will continue. Each of its queries advances its clock by the time of a
    /// call, so on a busy machine it may take seconds to reach that end.
    fn has_passed(&mut self, early_queries: u64) -> bool {
        if self.idle < self.timeout {
            return false;
        }
        if self.restarts == 0 || self.early_queries == early_queries {
            return true;
        }
        *self = Self { idle: Duration::ZERO, restarts: self.restarts - 1, early_queries, ..*self };
        false
    }
}

impl Engine {
    /// Blocks the calling thread until `wait` is over and runs any work that becomes ready in the meantime. A wait that
    /// would never end fails, so this function always returns.
    pub fn block_on<'a>(
        &'a self,
        wait: Wait,
        caller: &'static str,
        mut state: MutexGuard<'a, State>,
    ) -> MutexGuard<'a, State> {
        let me = ThreadKey::current();
        state = self.run_ready(state);
        if state.is_over(&wait) {
            return state;
        }
        state.thread().blocked = Some(Blocked { wait: wait.clone(), caller, call_site: CallSite::here() });
        state.blocked.insert(me);
        state.waiters.add(me, &wait);
        let timeout = match &wait {
            Wait::Ops(_) => state.timeout,
            Wait::Communicators(_) => state.bootstrap_timeout,
        };
        let mut timeout = WaitTimeout::new(timeout.duration, state.early_queries);
        state.together.look_again();
        loop {
            state = self.run_ready(state);
            if state.is_over(&wait) {
                break;
            }
            if state.together.can_go_on() || state.end_stuck_launches() {
                continue;
            }
            if state.end_stuck_values(me) {
                continue;
            }
            if let Some(deadlocked) = state.deadlocked(me) {
                let report = state.communication.deadlock_report(&state, &deadlocked);
                state.fail_calls(&deadlocked, CudaStatus::LaunchTimeout, &report);
            } else if !timeout.has_passed(state.early_queries) || !state.give_up(me) {
                let (since, pause) = (Instant::now(), state.pause());
                state = self.wait_for_change(state);
                if state.under_way == 0 {
                    timeout.count(since.elapsed(), pause);
                }
                continue;
            }
            self.changed.notify_all();
        }
        state.blocked.remove(&me);
        state.waiters.remove(me, &wait);
        state.thread().blocked = None;
        state
    }
}

impl Engine {
    /// Blocks until something has changed that a blocked thread may be waiting for, or until it is time to look again.
    pub fn wait_for_change<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let pause = state.pause();
        let waited = self.changed.wait_timeout(state, pause);
        waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0
    }

    /// Blocks until the times of completed operations are known. Another thread may still be running operations that
    /// share a GPU with them.
    pub(super) fn wait_for_times<'a>(
        &'a self,
        done: &[Awaited],
        mut state: MutexGuard<'a, State>,
    ) -> MutexGuard<'a, State> {
        let since = Instant::now();
        state.waiting_for_times += 1;
        while !state.time.is_known(done.iter().map(|done| &done.when))
            && since.elapsed() < self.config().timeout.duration
        {
            state = self.run_ready(self.wait_for_change(state));
        }
        state.waiting_for_times -= 1;
        state
    }
}

/// Returns the reason for ending a wait whose outcome can't be determined.
pub fn given_up(timeout: Timeout) -> String {
    format!("(not proved: given up after {} s, {})", timeout.duration.as_secs_f64(), timeout.variable)
}

impl State {
    /// Returns how long a blocked thread waits before it looks again.
    fn pause(&self) -> Duration {
        LOOK_AGAIN * (self.blocked.iter().len() as u32 / FEW_BLOCKED).max(1)
    }

    fn fail_calls(&mut self, calls: &Deadlocked, status: CudaStatus, report: &Report) {
        let communication = self.communication;
        if let Err(failure) = communication.fail_calls(self, calls, status, report) {
            self.fail_streams_at(calls, &failure);
        }
    }

    /// Fails the streams that have reached one of these calls.
    fn fail_streams_at(&mut self, calls: &Deadlocked, failure: &Failure) {
        let is_at = |stream: &Stream| match stream.queue.front().map(|op| &op.work) {
            Some(Work::Collective(call)) => stream.busy && calls.contains(call),
            _ => false,
        };
        let streams = self.streams.iter().filter(|(_, stream)| is_at(stream));
        for handle in streams.map(|(&handle, _)| handle).collect::<Vec<_>>() {
            self.fail_stream(handle, failure);
            self.finish(handle);
        }
    }

    fn is_over(&self, wait: &Wait) -> bool {
        match wait {
            Wait::Ops(ops) => ops.iter().all(|&op| self.is_done(op)),
            Wait::Communicators(awaited) => {
                awaited.iter().all(|&awaiting| self.communication.is_settled(awaiting))
            }
        }
    }

    /// Returns whether a blocked thread other than this one can continue, considering only what has changed since the last
    /// call. This thread looks by itself.
    pub(super) fn has_a_wait_ended(&mut self) -> bool {
        let me = ThreadKey::current();
        let to_check = std::mem::take(&mut self.waiters.to_check);
        let has_ended = to_check.iter().any(|&thread| thread != me && self.has_its_wait_ended(thread));
        // A communicator may let a thousand ranks go on, and none of them needs to be woken twice.
        let of_communicators = std::mem::take(&mut self.waiters.of_communicators);
        let (joined, waiting): (Vec<_>, _) =
            of_communicators.into_iter().partition(|&thread| self.has_its_wait_ended(thread));
        self.waiters.of_communicators = waiting;
        has_ended || joined.iter().any(|&thread| thread != me)
    }

    /// Returns whether a blocked thread can continue.
    pub(super) fn is_a_wait_over(&self) -> bool {
        self.blocked.iter().any(|&thread| self.has_its_wait_ended(thread))
    }

    fn has_its_wait_ended(&self, thread: ThreadKey) -> bool {
        self.blocked(thread).is_some_and(|blocked| self.is_over(&blocked.wait))
    }

    /// Returns the calls that are certain to keep a blocked thread waiting forever: calls that are waiting only for
    /// each other and for ranks that will never arrive. Calls that are waiting for these calls may continue once these
    /// have failed. The result does not depend on which thread checks first.
    fn deadlocked(&self, thread: ThreadKey) -> Option<Deadlocked> {
        let mut search = Search { state: self, open: Vec::new(), deadlocked: Deadlocked::default() };
        let found = search.thread_is_stuck(thread).then_some(search.deadlocked)?;
        let reach: Vec<(CallKey, Deadlocked)> =
            found.iter().map(|&call| (call, self.reachable(call, &found))).collect();
        let is_root = |(call, ahead): &&(CallKey, Deadlocked)| {
            reach.iter().all(|(other, beyond)| !ahead.contains(other) || beyond.contains(call))
        };
        let (root, mut calls) = reach.iter().find(is_root)?.clone();
        calls.insert(root);
        Some(calls)
    }

    /// Returns the calls among `all` that a call is waiting for, directly or indirectly.
    fn reachable(&self, call: CallKey, all: &Deadlocked) -> Deadlocked {
        let mut seen = Deadlocked::default();
        let mut next = vec![call];
        while let Some(call) = next.pop() {
            for missing in self.communication.missing(call) {
                let ahead = match missing {
                    Missing::Gone | Missing::Elsewhere => Vec::new(),
                    Missing::InStream(op) => self.collective_ahead(op).into_iter().collect(),
                    Missing::NotCalled(thread) | Missing::Handed { thread, .. } => {
                        match self.blocked(thread).map(|blocked| &blocked.wait) {
                            Some(Wait::Ops(ops)) => {
                                ops.iter().filter_map(|&op| self.collective_ahead(op)).collect()
                            }
                            Some(Wait::Communicators(awaited)) => {
                                awaited.iter().filter_map(Awaiting::call).collect()
                            }
                            None => Vec::new(),
                        }
                    }
                };
                next.extend(ahead.into_iter().filter(|ahead| all.contains(ahead) && seen.insert(*ahead)));
            }
        }
        seen
    }

    /// Ends a wait that has lasted too long and whose outcome can't be determined. Returns `false` if only a running
    /// kernel is delaying it: the kernel will end, so the wait continues.
    fn give_up(&mut self, thread: ThreadKey) -> bool {
        match self.blocked(thread).map(|blocked| blocked.wait.clone()) {
            Some(Wait::Ops(ops)) => {
                let calls: Deadlocked = ops.iter().filter_map(|&op| self.collective_ahead(op)).collect();
                if calls.is_empty() {
                    return self.give_up_launches(&ops)
                        || self.give_up_elsewhere(&ops)
                        || self.give_up_values(&ops)
                        || self.give_up_host_functions(&ops);
                }
                let report = self.communication.deadlock_report(self, &calls).fact(given_up(self.timeout));
                self.fail_calls(&calls, CudaStatus::LaunchTimeout, &report);
            }
            Some(Wait::Communicators(awaited)) => {
                let communication = self.communication;
                return communication.give_up_joining(self, &awaited);
            }
            None => return false,
        }
        true
    }

    /// Like [`Self::give_up`], but for a thread that repeatedly queries an operation while no operation is running.
    pub(super) fn give_up_polling(&mut self, op: OpRef) -> bool {
        let (timeout, busy, now) = (self.timeout.duration, self.under_way > 0, Instant::now());
        let new = Polled { number: op.number, since: now, last: now };
        let polled = self.thread().polled.get_or_insert_with(op.stream, || new);
        if busy || polled.number != op.number || now.duration_since(polled.last) > timeout {
            *polled = new;
        }
        polled.last = now;
        if now.duration_since(polled.since) < POLLING * timeout {
            return false;
        }
        if self.give_up_elsewhere(&[op]) {
            return true;
        }
        let Some(call) = self.collective_ahead(op) else { return self.give_up_values(&[op]) };
        let calls = Deadlocked::from([call]);
        let report = self.communication.deadlock_report(self, &calls).fact(format!(
            "(not proved: polled for {} s, {POLLING} times VIRTUAL_GPU_TIMEOUT)",
            (POLLING * timeout).as_secs_f64()
        ));
        self.fail_calls(&calls, CudaStatus::LaunchTimeout, &report);
        true
    }

    /// Returns the collective that an operation is ultimately waiting for.
    fn collective_ahead(&self, op: OpRef) -> Option<CallKey> {
        match self.last_obstacle(op)? {
            Obstacle::Collective(call) => Some(call),
            _ => None,
        }
    }
}

/// A walk along the wait-for edges. Reaching a node that is still open closes a cycle, so the node is considered stuck.
struct Search<'a> {
    state: &'a State,
    open: Vec<Node>,
    deadlocked: Deadlocked,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Node {
    Thread(ThreadKey),
    Call(CallKey),
}

impl Search<'_> {
    fn within(&mut self, node: Node, look: impl FnOnce(&mut Self) -> bool) -> bool {
        if self.open.contains(&node) {
            return true;
        }
        self.open.push(node);
        let before = self.deadlocked.clone();
        let stuck = look(self);
        if !stuck {
            // The calls found below this node were considered stuck only because the node was.
            self.deadlocked = before;
        }
        self.open.pop();
        stuck
    }

    /// Returns whether a thread will never continue on its own.
    fn thread_is_stuck(&mut self, thread: ThreadKey) -> bool {
        let Some(entry) = self.state.threads.get(&thread) else { return false };
        match &entry.blocked {
            None => entry.life.has_ended(),
            Some(Blocked { wait: Wait::Ops(ops), .. }) => {
                let ops = ops.clone();
                self.within(Node::Thread(thread), |search| ops.iter().any(|&op| search.op_is_stuck(op)))
            }
            Some(Blocked { wait: Wait::Communicators(awaited), .. }) => {
                let awaited = awaited.clone();
                self.within(Node::Thread(thread), |search| {
                    awaited.iter().filter_map(Awaiting::call).any(|call| search.call_is_stuck(call))
                })
            }
        }
    }

    fn op_is_stuck(&mut self, op: OpRef) -> bool {
        match self.state.collective_ahead(op) {
            Some(call) if !self.state.is_done(op) => self.call_is_stuck(call),
            _ => false,
        }
    }

    /// Returns whether none of the ranks that have not reached a collective will ever reach it.
    fn call_is_stuck(&mut self, call: CallKey) -> bool {
        if self.deadlocked.contains(&call) {
            return true;
        }
        let missing = self.state.communication.missing(call);
        if missing.is_empty() {
            return false;
        }
        let stuck = self.within(Node::Call(call), |search| {
            missing.into_iter().all(|missing| match missing {
                Missing::Gone => true,
                Missing::InStream(op) => {
                    !search.state.streams.contains_key(&op.stream) || search.op_is_stuck(op)
                }
                Missing::NotCalled(thread) => search.thread_is_stuck(thread),
                // Another thread may take over the rank once this thread has ended.
                Missing::Handed { thread, has_used } => {
                    has_used && search.state.blocked(thread).is_some() && search.thread_is_stuck(thread)
                }
                Missing::Elsewhere => false,
            })
        });
        if stuck {
            self.deadlocked.insert(call);
        }
        stuck
    }
}

impl State {
    /// Describes where a thread is, for a report.
    pub fn whereabouts(&self, thread: ThreadKey) -> (String, CallSite) {
        match self.threads.get(&thread) {
            Some(entry) if entry.blocked.is_none() && entry.life.has_ended() => {
                ("its thread has ended".to_owned(), CallSite::unknown())
            }
            Some(entry) => match &entry.blocked {
                Some(blocked) => {
                    (format!("its thread is waiting in {}", blocked.caller), blocked.call_site.clone())
                }
                None => ("its thread has not called it".to_owned(), CallSite::unknown()),
            },
            None => ("its thread is unknown".to_owned(), CallSite::unknown()),
        }
    }
}
