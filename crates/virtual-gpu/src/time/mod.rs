//! Time: when operations happen, according to a virtual clock in nanoseconds, never the wall clock.
//!
//! An operation starts when the previous operation on its stream and everything that it waits for have ended, its
//! launch has reached the GPU, and the engine that it needs is free. Times are computed for all operations that are
//! done: on demand, and when many have been done since the last time. They have no effect on values or on order.
//!
//! Times don't depend on which thread asks, or when. An operation is affected only by operations that were enqueued on
//! its GPU before it and are certain to be over when it is: see `horizon.rs`. So threads that each enqueue work on
//! their own GPU get the same times on every run, no matter how they are scheduled.

pub mod choice;
mod gpu;
mod horizon;
mod nccl_figures;
pub mod preset;
pub mod trace;
pub mod tuning;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use gpu::{Gpu, Pending};
use horizon::Horizon;
use preset::Preset;
use trace::{Label, OperationThatRan, QUERY, Trace};
use virtual_gpu_core::handle::CollectiveId;
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::map::Map;
use virtual_gpu_core::sorted::SortedMap;
use virtual_gpu_core::thread::ThreadKey;

/// When an operation ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// When an operation runs.
#[derive(Debug)]
pub struct Moment {
    key: Key,
    /// The communications and host functions that it comes after, including the operation itself if it is one.
    horizon: Horizon,
    span: OnceLock<Span>,
}

/// An operation's time, once it is known.
pub(crate) type When = Arc<Moment>;

impl Moment {
    /// Returns time zero on a GPU.
    pub(crate) fn start(gpu: usize) -> When {
        let span = OnceLock::from(Span::default());
        Arc::new(Self { key: (gpu, 0), horizon: Horizon::default(), span })
    }

    pub(crate) fn get(&self) -> Option<&Span> {
        self.span.get()
    }
}

/// How the clock treats an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The operation takes no time, such as a free or a stream join.
    Nothing,
    /// An event is recorded.
    Record,
    /// The stream waits for an event.
    Wait,
    /// A kernel or a copy, which shares the GPU with others.
    Engine,
    /// The operation needs other ranks.
    Communication,
    /// The operation runs the program's own code.
    Host,
}

/// The bytes that a kernel reads and writes, at each level of the memory. A level holds what the next one asks for again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of distinct bytes that the kernel accessed: what device memory transfers.
    pub memory: u64,
    /// The number of distinct bytes that each block accessed, summed over the blocks: what the L2 cache transfers.
    pub l2: u64,
    /// The number of bytes that loads, stores, and atomics asked for: what the L1 caches transfer.
    pub l1: u64,
    /// The number of bytes of shared memory that loads, stores, and atomics asked for.
    pub shared: u64,
    /// The number of distinct bytes that the kernel accessed in other GPUs' memory: what the links transfer.
    pub link: u64,
}

/// What an operation needs from its GPU.
#[derive(Clone, Debug)]
pub enum Cost {
    /// Only what the operation's class implies.
    Nothing,
    /// A kernel that has run.
    Kernel {
        /// The number of blocks in its grid.
        blocks: u64,
        /// The number of blocks that fit on a multiprocessor at the same time.
        resident: u64,
        /// The number of instructions, counted once per thread.
        instructions: u64,
        /// The bytes that it read and wrote.
        traffic: Traffic,
        /// The slowest thread's time in nanoseconds, at one nanosecond per instruction.
        longest_thread: u64,
        /// The kernels that it waited for while they ran. It takes its time after each of them has started.
        partners: Vec<Ticket>,
    },
    /// The number of bytes copied from the host.
    Upload(u64),
    /// The number of bytes copied to the host.
    Download(u64),
    /// The number of bytes that a copy or a set moves between memory and the multiprocessors.
    Device {
        /// The number of bytes read plus the number of bytes written.
        traffic: u64,
    },
    /// The number of bytes copied to or from another GPU.
    Peer(u64),
    /// One rank's part of a collective, which takes `duration` nanoseconds once all ranks are ready.
    ///
    /// `ranks` counts this process's ranks. The other ranks are ready at `others_ready`.
    Collective {
        /// The collective.
        call: CollectiveId,
        /// The number of ranks in this process.
        ranks: usize,
        /// When the last rank in another process is ready, in nanoseconds.
        others_ready: u64,
        /// Nanoseconds.
        duration: u64,
    },
    /// Messages, each of which moves once both of its ends are ready.
    PointToPoint {
        /// The other end of each message, and the number of nanoseconds that the message takes.
        partners: Vec<(Ticket, u64)>,
    },
}

/// What is known about an operation when it is enqueued.
#[derive(Clone, Debug)]
pub struct Ticket {
    class: Class,
    /// The earliest time at which the GPU can start it.
    reaches_gpu: u64,
    /// The operations that it comes after; the last entry is its predecessor on its stream.
    after: Arc<[When]>,
    before: Horizon,
    pub(crate) when: When,
}

/// The clocks of all GPUs and host threads.
pub struct Time {
    preset: Preset,
    hosts: SortedMap<ThreadKey, Host>,
    gpus: Vec<Gpu>,
    /// Finished operations that have no time yet.
    done: Map<Key, (Ticket, Cost)>,
    /// Operations in `done` to examine, the first one first: new operations, and operations whose time may be known now.
    look_at: BinaryHeap<Reverse<Key>>,
    /// Operations in `done` that are waiting for another operation's time, keyed by that operation.
    waiting: Map<Key, Vec<Key>>,
    /// Parts of collectives that are ready to start, with the time at which they became ready.
    parts: Map<CollectiveId, Vec<(Key, u64)>>,
    /// The trace to write when the process ends.
    trace: Option<Trace>,
    /// If communication on one GPU runs one after another: when each GPU's last one ends.
    communication_ends: Option<Vec<u64>>,
}

/// The number of operations that can be done before their times are computed, even without demand. With so few, what is
/// known about them stays in the processor's caches.
const MANY_DONE: usize = 256;

/// An operation's GPU and its index among the operations enqueued on that GPU.
type Key = (usize, u64);

/// A host thread.
#[derive(Clone, Debug, Default)]
struct Host {
    clock: u64,
    /// Everything that the thread has waited for.
    known: Horizon,
}

impl Ticket {
    /// Returns the ticket of an operation in another process that is ready at `ready` nanoseconds.
    pub fn elsewhere(ready: u64) -> Self {
        let (after, before) = (Arc::default(), Horizon::default());
        Self { class: Class::Nothing, reaches_gpu: ready, after, before, when: Moment::start(0) }
    }
}

impl Time {
    /// Starts the clocks. `one_at_a_time`: communicators that share a GPU communicate one after another.
    pub(crate) fn new(preset: Preset, gpus: usize, traced: bool, one_at_a_time: bool) -> Self {
        Self {
            preset,
            hosts: SortedMap::default(),
            gpus: (0..gpus).map(|_| Gpu::default()).collect(),
            done: Map::default(),
            look_at: BinaryHeap::new(),
            waiting: Map::default(),
            parts: Map::default(),
            trace: traced.then(|| Trace::new(gpus)),
            communication_ends: one_at_a_time.then(|| vec![0; gpus]),
        }
    }

    /// Returns the figures that the model uses.
    pub fn preset(&self) -> &Preset {
        &self.preset
    }

    /// Records that a thread makes a call for a GPU. The thread's clock is never earlier than the latest time on that
    /// GPU that any thread has seen.
    pub(crate) fn call(&mut self, thread: ThreadKey, gpu: usize, what: impl FnOnce() -> String) {
        self.advance(thread, gpu, 0, what);
    }

    /// Records that a thread's call returns, no earlier than `end`.
    fn advance(&mut self, thread: ThreadKey, gpu: usize, end: u64, what: impl FnOnce() -> String) {
        let host = self.hosts.get_or_insert_with(thread, Host::default);
        let seen = &mut self.gpus[gpu].seen;
        let start = host.clock.max(*seen);
        host.clock = start.max(end) + self.preset.call_ns;
        *seen = host.clock;
        if let Some(trace) = &mut self.trace {
            trace.called(thread, gpu, Span { start, end: host.clock }, what());
        }
    }

    /// Records that a thread enqueues an operation on a GPU, after other operations. The last of these is its
    /// predecessor on its stream.
    pub(crate) fn enqueue(
        &mut self,
        thread: ThreadKey,
        (gpu, stream): (usize, StreamHandle),
        class: Class,
        after: impl Into<Arc<[When]>>,
    ) -> Ticket {
        let after = after.into();
        let host = self.hosts.get_or_insert_with(thread, Host::default);
        let reaches_gpu = host.clock + self.preset.launch_ns;
        let mut before = host.known.clone();
        after.iter().for_each(|when| before.join(&when.horizon));
        let target = &mut self.gpus[gpu];
        target.forget(host.clock);
        target.issued += 1;
        let index = target.issued;
        let horizon = match class {
            Class::Communication | Class::Host => before.with(stream, index),
            _ => before.clone(),
        };
        let when = Arc::new(Moment { key: (gpu, index), horizon, span: OnceLock::new() });
        if matches!(class, Class::Engine | Class::Communication) {
            let (before, after, when) = (before.clone(), after.clone(), when.clone());
            let communicates = (class == Class::Communication).then_some(0);
            target.pending.insert(index, Pending { before, reaches_gpu, after, when, communicates });
        }
        Ticket { class, reaches_gpu, after, before, when }
    }

    /// Sets how long a communication that was just enqueued takes once all its ranks are ready. The communication also
    /// occupies its GPU's multiprocessors until they are ready.
    pub fn communicates(&mut self, when: &When, duration: u64, label: impl FnOnce() -> Label) {
        let (gpu, index) = when.key;
        if let Some(pending) = self.gpus[gpu].pending.get_mut(index) {
            pending.communicates = Some(duration);
        }
        if let Some(trace) = &mut self.trace {
            trace.named(when.key, label());
        }
    }

    /// Describes an operation on a stream with this name for the trace.
    pub(crate) fn describe(
        &mut self,
        ticket: &Ticket,
        stream: (StreamHandle, &Arc<str>),
        label: impl FnOnce() -> Option<Label>,
    ) {
        let Some(trace) = &mut self.trace else { return };
        let Some(label) = label() else { return };
        let others = match ticket.class {
            Class::Wait => ticket.after.split_last().map_or(&[][..], |(_, others)| others),
            _ => &[],
        };
        trace.enqueued(ticket.when.key, stream, label, others.iter().map(|when| when.key).collect());
    }

    /// Records operations from now on, as for a trace.
    pub(crate) fn record(&mut self) {
        self.trace.get_or_insert_with(|| Trace::new(self.gpus.len()));
    }

    /// Returns the recorded operations of a GPU that have run, in the order in which they were enqueued.
    pub(crate) fn operations(&mut self, gpu: usize) -> Vec<OperationThatRan<'_>> {
        self.settle();
        self.trace.as_ref().map_or_else(Vec::new, |trace| trace.operations(gpu))
    }

    /// Writes the trace, if one was requested.
    ///
    /// # Errors
    /// Returns why the file can't be written.
    pub(crate) fn write_trace(&mut self, path: &Path) -> io::Result<()> {
        self.settle();
        self.trace.as_ref().map_or(Ok(()), |trace| trace.write(path, &self.preset.name))
    }

    /// Returns the earliest time at which an operation may start, as `%globaltimer` returns it.
    pub(crate) fn start_of(ticket: &Ticket) -> u64 {
        ticket.reaches_gpu
    }

    /// Records that an operation is done and what it did.
    pub(crate) fn finish(&mut self, ticket: Ticket, cost: Cost) {
        let key = ticket.when.key;
        self.look_at.push(Reverse(key));
        self.done.insert(key, (ticket, cost));
        if self.look_at.len() >= MANY_DONE {
            self.settle();
        }
    }

    /// Returns when an operation could start whose predecessors are all done.
    pub fn ready_at(&mut self, ticket: &Ticket) -> u64 {
        self.settle();
        ready(ticket.reaches_gpu, &ticket.after).unwrap_or(ticket.reaches_gpu)
    }

    /// Returns whether the times of completed operations are known. Operations that share a GPU with them may still be
    /// running.
    pub(crate) fn is_known<'a>(&mut self, mut whens: impl Iterator<Item = &'a When>) -> bool {
        self.settle();
        whens.all(|when| when.get().is_some())
    }

    /// Records that a thread has waited for operations. The thread continues at the time when the last of them has
    /// ended.
    pub(crate) fn wait<'a>(
        &mut self,
        thread: ThreadKey,
        whens: impl Iterator<Item = &'a When> + Clone,
        caller: &str,
    ) {
        self.settle();
        let Some(first) = whens.clone().next() else { return };
        let end = whens.clone().filter_map(|when| when.get()).map(|span| span.end).max();
        self.advance(thread, first.key.0, end.unwrap_or(0), || caller.to_owned());
        let host = self.hosts.get_or_insert_with(thread, Host::default);
        whens.for_each(|when| host.known.join(&when.horizon));
    }

    /// Returns whether an operation has ended. The query itself takes the thread some time.
    pub(crate) fn has_ended(&mut self, thread: ThreadKey, when: &When) -> bool {
        self.settle();
        self.advance(thread, when.key.0, 0, || QUERY.to_owned());
        let host = self.hosts.get_or_insert_with(thread, Host::default);
        let ended = when.get().is_none_or(|span| span.end <= host.clock);
        if ended {
            host.known.join(&when.horizon);
        }
        ended
    }

    /// Computes the times of completed operations as far as they can be known.
    pub(crate) fn settle(&mut self) {
        while let Some(Reverse(key)) = self.look_at.pop() {
            if let Err(unknown) = self.settle_one(key) {
                self.waiting.entry(unknown.key).or_default().push(key);
            }
        }
    }

    /// Assigns an operation its time.
    ///
    /// # Errors
    /// Returns the time that must be known first.
    fn settle_one(&mut self, key: Key) -> Result<(), When> {
        let Some((ticket, cost)) = self.done.get(&key) else { return Ok(()) };
        let own = ready(ticket.reaches_gpu, &ticket.after).map_err(When::clone)?;
        match cost {
            &Cost::Collective { call, ranks, others_ready, duration } => {
                self.came(key, own);
                let parts = self.parts.entry(call).or_default();
                parts.push((key, own.max(others_ready)));
                if parts.len() == ranks {
                    self.settle_collective(call, duration);
                }
            }
            Cost::PointToPoint { partners } => {
                let earlier = self.communication_ends.as_ref().map_or(0, |ends| ends[key.0]);
                let start = own.max(earlier);
                let mut end = start;
                for (partner, duration) in partners {
                    let other = ready(partner.reaches_gpu, &partner.after).map_err(When::clone)?;
                    end = end.max(start.max(other) + duration);
                }
                if let Some(ends) = &mut self.communication_ends {
                    ends[key.0] = end;
                }
                self.came(key, own);
                self.set(key, Span { start, end });
            }
            Cost::Nothing => {
                let (start, end) = match ticket.class {
                    Class::Record => (own, own + self.preset.event_ns),
                    Class::Wait => (turn(ticket), own + self.preset.event_ns),
                    _ => (own, own),
                };
                self.gpus[key.0].pending.remove(key.1);
                self.set(key, Span { start, end });
            }
            cost => {
                let mut latest = own;
                if let Cost::Kernel { partners, .. } = cost {
                    for partner in partners {
                        let other = ready(partner.reaches_gpu, &partner.after).map_err(When::clone)?;
                        latest = latest.max(other);
                    }
                }
                let gpu = &mut self.gpus[key.0];
                if let Some(unknown) = gpu.obstacle(key.1, &ticket.before) {
                    return Err(unknown);
                }
                let mut span = gpu.schedule(&self.preset, key.1, ticket.before.clone(), own, cost);
                span.end = span.end.max(latest + (span.end - span.start));
                self.set(key, span);
            }
        }
        Ok(())
    }

    /// Records that a communication is done, and when its own stream reached it.
    fn came(&mut self, key: Key, at: u64) {
        self.gpus[key.0].communicated(key.1, at);
        if let Some(trace) = &mut self.trace {
            trace.came(key, at);
        }
    }

    /// Starts all ranks of a collective together, when the last one is ready.
    fn settle_collective(&mut self, call: CollectiveId, duration: u64) {
        let parts = self.parts.remove(&call).unwrap_or_default();
        let mut start = parts.iter().map(|(_, ready)| *ready).max().unwrap_or(0);
        if let Some(ends) = &mut self.communication_ends {
            start = parts.iter().map(|((gpu, _), _)| ends[*gpu]).fold(start, u64::max);
            parts.iter().for_each(|((gpu, _), _)| ends[*gpu] = start + duration);
        }
        for (key, _) in parts {
            self.set(key, Span { start, end: start + duration });
        }
    }

    /// Sets an operation's time and schedules the operations that are waiting for it to be examined again.
    fn set(&mut self, key: Key, span: Span) {
        let Some((ticket, _)) = self.done.remove(&key) else { return };
        // The time is set only once: the entry has just been removed.
        let _ = ticket.when.span.set(span);
        if let Some(trace) = &mut self.trace {
            trace.ran(key, span);
        }
        self.look_at.extend(self.waiting.remove(&key).unwrap_or_default().into_iter().map(Reverse));
    }
}

/// Returns when everything before an operation has ended or, if that is unknown, a time that must be known first.
fn ready(reaches_gpu: u64, after: &[When]) -> Result<u64, &When> {
    after.iter().try_fold(reaches_gpu, |latest, when| Ok(latest.max(when.get().ok_or(when)?.end)))
}

/// Returns the time at which a ready operation's stream reaches it.
fn turn(ticket: &Ticket) -> u64 {
    ready(ticket.reaches_gpu, ticket.after.last().map_or(&[], std::slice::from_ref))
        .unwrap_or(ticket.reaches_gpu)
}

#[cfg(test)]
mod published;
#[cfg(test)]
mod tests;
