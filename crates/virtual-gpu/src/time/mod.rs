//! Time: when operations happen, by a virtual clock in nanoseconds; never by the wall clock.
//!
//! An operation starts when its stream's last one has ended, what it waits for has ended, its launch has reached the
//! GPU, and the engine it needs is free. Times are worked out when somebody looks, for all that is done by then, in the
//! order in which it was enqueued on each GPU. They say nothing about values, and nothing about order.

pub(crate) mod collective;
pub mod preset;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};

use crate::nccl::CallKey;
use crate::thread::ThreadKey;
use preset::Preset;

/// Nanoseconds that a call takes on the host's side before it returns.
const CALL: u64 = 1_000;
/// Nanoseconds from a call's return until the GPU can start what it enqueued. With [`CALL`]: the 2 to 5 µs that a
/// launch takes to reach the device.
const REACH: u64 = 2_000;
/// Nanoseconds that a copy takes before its first byte moves.
const COPY_LATENCY: u64 = 1_500;

/// When an operation ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// An operation's time, once it is known.
pub(crate) type When = Arc<OnceLock<Span>>;

/// What an operation needs of its GPU.
#[derive(Clone, Debug)]
pub(crate) enum Cost {
    /// An event, a wait, a free.
    Nothing,
    Kernel {
        blocks: u64,
        lane_instructions: u64,
        bytes: u64,
        /// Nanoseconds of the thread that took longest, at one instruction each.
        longest_thread: u64,
    },
    Upload(u64),
    Download(u64),
    /// Bytes that a copy or a set moves between memory and the multiprocessors.
    Device {
        /// Read and written together.
        traffic: u64,
    },
    /// Bytes copied to or from another GPU.
    Peer(u64),
    /// One rank's part of a collective, which takes so many nanoseconds once all `ranks` are ready.
    ///
    /// `ranks` are those of this process. The others are ready at `others_ready`.
    Collective {
        call: CallKey,
        ranks: usize,
        others_ready: u64,
        duration: u64,
    },
    /// Messages that move once both ends are ready: each with the other end, and the nanoseconds that it takes.
    Exchange {
        partners: Vec<(Ticket, u64)>,
    },
}

/// What is known of an operation when it is enqueued.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    gpu: usize,
    index: u64,
    /// When the GPU can start it at the earliest.
    reaches_gpu: u64,
    after: Vec<When>,
    pub(crate) when: When,
}

/// The clocks of all GPUs and host threads.
pub(crate) struct Time {
    preset: &'static Preset,
    hosts: HashMap<ThreadKey, u64>,
    /// The latest time that a host thread has seen: where a new thread's clock starts.
    seen: u64,
    issued: u64,
    gpus: Vec<Gpu>,
    /// Operations that are done and have no time yet.
    done: BTreeMap<Key, (Ticket, Cost)>,
    /// Those of them to look at: new ones, and ones that may have a time now.
    look_at: BTreeSet<Key>,
    /// Those that wait for another's time, by the place of that time.
    waiting: HashMap<usize, Vec<Key>>,
    /// Parts of collectives that could start, with when.
    parts: HashMap<CallKey, Vec<(Key, u64)>>,
}

/// An operation's GPU, and its place in the order of enqueuing.
type Key = (usize, u64);

/// When the engines of a GPU are free.
#[derive(Clone, Debug, Default)]
struct Gpu {
    /// Kernels: when they ran, and on how many multiprocessors.
    kernels: Vec<(Span, u32)>,
    upload_free: u64,
    download_free: u64,
}

/// Kernels that a GPU remembers, to see which multiprocessors are taken.
const REMEMBERED_KERNELS: usize = 128;

impl Ticket {
    /// The place in time of an operation in another process, which is ready then.
    pub(crate) fn elsewhere(ready: u64) -> Self {
        Self { gpu: 0, index: 0, reaches_gpu: ready, after: Vec::new(), when: When::default() }
    }
}

impl Time {
    pub(crate) fn new(preset: &'static Preset, gpus: usize) -> Self {
        let gpus = vec![Gpu::default(); gpus];
        Self {
            preset,
            hosts: HashMap::new(),
            seen: 0,
            issued: 0,
            gpus,
            done: BTreeMap::new(),
            look_at: BTreeSet::new(),
            waiting: HashMap::new(),
            parts: HashMap::new(),
        }
    }

    /// The figures that it counts with.
    pub(crate) fn preset(&self) -> &'static Preset {
        self.preset
    }

    fn host(&mut self, thread: ThreadKey) -> &mut u64 {
        self.hosts.entry(thread).or_insert(self.seen)
    }

    /// A thread makes a call.
    pub(crate) fn call(&mut self, thread: ThreadKey) {
        *self.host(thread) += CALL;
    }

    /// A thread enqueues an operation on a GPU, to come after others.
    pub(crate) fn enqueue(&mut self, thread: ThreadKey, gpu: usize, after: Vec<When>) -> Ticket {
        let reaches_gpu = *self.host(thread) + REACH;
        self.issued += 1;
        Ticket { gpu, index: self.issued, reaches_gpu, after, when: When::default() }
    }

    /// When an operation may start at the earliest, as `%globaltimer` tells it.
    pub(crate) fn start_of(ticket: &Ticket) -> u64 {
        ticket.reaches_gpu
    }

    /// An operation is done, and this is what it did.
    pub(crate) fn finish(&mut self, ticket: Ticket, cost: Cost) {
        let key = (ticket.gpu, ticket.index);
        self.look_at.insert(key);
        self.done.insert(key, (ticket, cost));
    }

    /// When an operation could start whose predecessors are all done.
    pub(crate) fn ready_at(&mut self, ticket: &Ticket) -> u64 {
        self.settle();
        ready(ticket).unwrap_or(ticket.reaches_gpu)
    }

    /// A thread has waited for an operation: it goes on when that has ended.
    pub(crate) fn wait(&mut self, thread: ThreadKey, when: &When) {
        self.settle();
        let end = when.get().map_or(0, |span| span.end);
        let host = self.host(thread);
        *host = (*host).max(end) + CALL;
        self.seen = self.seen.max(*self.host(thread));
    }

    /// A thread asks whether an operation has ended, which takes it a moment.
    pub(crate) fn has_ended(&mut self, thread: ThreadKey, when: &When) -> bool {
        self.settle();
        let host = self.host(thread);
        *host += CALL;
        when.get().is_none_or(|span| span.end <= *host)
    }

    /// Works out the times of all that is done, where they can be known.
    pub(crate) fn settle(&mut self) {
        while let Some(key) = self.look_at.pop_first() {
            self.settle_one(key);
        }
    }

    fn settle_one(&mut self, key: Key) {
        let Some((ticket, cost)) = self.done.get(&key) else { return };
        let own = match ready(ticket) {
            Ok(own) => own,
            Err(unknown) => return self.waiting.entry(unknown).or_default().push(key),
        };
        match cost {
            &Cost::Collective { call, ranks, others_ready, duration } => {
                let parts = self.parts.entry(call).or_default();
                parts.push((key, own.max(others_ready)));
                if parts.len() == ranks {
                    self.settle_collective(call, duration);
                }
            }
            Cost::Exchange { partners } => {
                let mut end = own;
                for (partner, duration) in partners {
                    match ready(partner) {
                        Ok(other) => end = end.max(own.max(other) + duration),
                        Err(unknown) => return self.waiting.entry(unknown).or_default().push(key),
                    }
                }
                self.set(key, Span { start: own, end });
            }
            cost => {
                let cost = cost.clone();
                let span = self.run(key.0, own, cost);
                self.set(key, span);
            }
        }
    }

    /// All ranks of a collective start together, when the last one is ready.
    fn settle_collective(&mut self, call: CallKey, duration: u64) {
        let parts = self.parts.remove(&call).unwrap_or_default();
        let start = parts.iter().map(|(_, ready)| *ready).max().unwrap_or(0);
        for (key, _) in parts {
            self.set(key, Span { start, end: start + duration });
        }
    }

    /// An operation has its time: what waits for that is looked at again.
    fn set(&mut self, key: Key, span: Span) {
        let Some((ticket, _)) = self.done.remove(&key) else { return };
        // Set once: the entry is gone now.
        let _ = ticket.when.set(span);
        self.look_at.extend(self.waiting.remove(&place(&ticket.when)).unwrap_or_default());
    }

    /// Gives an operation its engine, from `ready` on.
    fn run(&mut self, gpu: usize, ready: u64, cost: Cost) -> Span {
        let preset = self.preset;
        let nanoseconds = |amount: u64, per_second: f64| (amount as f64 / per_second * 1e9) as u64;
        let gpu = &mut self.gpus[gpu];
        let serial = |free: &mut u64, duration: u64| {
            let start = ready.max(*free);
            *free = start + duration;
            Span { start, end: start + duration }
        };
        match cost {
            Cost::Nothing | Cost::Collective { .. } | Cost::Exchange { .. } => {
                Span { start: ready, end: ready }
            }
            Cost::Upload(bytes) => {
                serial(&mut gpu.upload_free, COPY_LATENCY + nanoseconds(bytes, preset.upload_bytes))
            }
            Cost::Download(bytes) => {
                serial(&mut gpu.download_free, COPY_LATENCY + nanoseconds(bytes, preset.download_bytes))
            }
            Cost::Device { traffic } => {
                Span { start: ready, end: ready + COPY_LATENCY + nanoseconds(traffic, preset.memory_bytes) }
            }
            Cost::Peer(bytes) => {
                Span { start: ready, end: ready + COPY_LATENCY + nanoseconds(bytes, preset.peer_bytes) }
            }
            Cost::Kernel { blocks, lane_instructions, bytes, longest_thread } => {
                let used = u32::try_from(blocks).unwrap_or(u32::MAX).min(preset.multiprocessors);
                let share = (blocks as f64 * preset.stands_for / f64::from(preset.multiprocessors)).min(1.0);
                // A roofline: whatever takes longest.
                let duration = nanoseconds(lane_instructions, preset.lane_instructions * share)
                    .max(nanoseconds(bytes, preset.memory_bytes))
                    .max(longest_thread);
                gpu.place_kernel(ready, duration, used, preset.multiprocessors)
            }
        }
    }
}

impl Gpu {
    /// The first time from `ready` on at which so many multiprocessors are free for so long.
    fn place_kernel(&mut self, ready: u64, duration: u64, used: u32, all: u32) -> Span {
        let mut starts: Vec<u64> =
            self.kernels.iter().map(|(span, _)| span.end).filter(|&end| end > ready).collect();
        starts.push(ready);
        starts.sort_unstable();
        let fits = |start: u64| {
            // The load is highest where a kernel begins, or at the start.
            let load_at = |at: u64| -> u32 {
                let running = self.kernels.iter().filter(|(span, _)| span.start <= at && at < span.end);
                running.map(|(_, used)| used).sum()
            };
            let begins = self.kernels.iter().map(|(span, _)| span.start);
            let mut within = begins.filter(|&at| at > start && at < start + duration).chain([start]);
            within.all(|at| load_at(at) + used <= all)
        };
        let start = starts.into_iter().find(|&start| fits(start)).unwrap_or(ready);
        let span = Span { start, end: start + duration };
        if self.kernels.len() == REMEMBERED_KERNELS {
            let oldest = (0..self.kernels.len()).min_by_key(|&at| self.kernels[at].0.end);
            self.kernels.swap_remove(oldest.unwrap_or(0));
        }
        self.kernels.push((span, used));
        span
    }
}

/// When all that an operation comes after has ended, or the place of a time that is not known yet.
fn ready(ticket: &Ticket) -> Result<u64, usize> {
    let ends = ticket.after.iter().map(|when| when.get().map(|span| span.end).ok_or_else(|| place(when)));
    ends.into_iter().try_fold(ticket.reaches_gpu, |latest, end| Ok(latest.max(end?)))
}

/// Tells times apart that are not known yet. Whoever waits for one holds it, so that no other gets its place.
fn place(when: &When) -> usize {
    Arc::as_ptr(when) as usize
}

#[cfg(test)]
mod tests {
    use super::preset::CLASSROOM_H100;
    use super::*;

    fn kernel(blocks: u64, nanoseconds: u64) -> Cost {
        Cost::Kernel { blocks, lane_instructions: 0, bytes: 0, longest_thread: nanoseconds }
    }

    fn span(when: &When) -> Span {
        *when.get().expect("it has a time")
    }

    #[test]
    fn small_kernels_of_two_streams_overlap_and_full_ones_don_t() {
        let thread = ThreadKey::current();
        for (blocks, overlap) in [(1, true), (132, false)] {
            let mut time = Time::new(&CLASSROOM_H100, 1);
            let (one, other) = (time.enqueue(thread, 0, vec![]), time.enqueue(thread, 0, vec![]));
            let (first, second) = (one.when.clone(), other.when.clone());
            time.finish(one, kernel(blocks, 1_000_000));
            time.finish(other, kernel(blocks, 1_000_000));
            time.settle();
            assert_eq!(span(&second).start < span(&first).end, overlap, "{blocks} blocks");
        }
    }

    #[test]
    fn an_operation_starts_behind_all_that_it_waits_for() {
        let thread = ThreadKey::current();
        let mut time = Time::new(&CLASSROOM_H100, 2);
        let first = time.enqueue(thread, 0, vec![]);
        let second = time.enqueue(thread, 1, vec![first.when.clone()]);
        let (a, b) = (first.when.clone(), second.when.clone());
        // Done in the other order: the times are the same.
        time.finish(second, Cost::Upload(1_000));
        time.settle();
        assert!(b.get().is_none());
        time.finish(first, kernel(1, 5_000));
        time.settle();
        assert_eq!(span(&b).start, span(&a).end);
    }

    #[test]
    fn a_poll_says_no_until_the_host_s_clock_has_come_there() {
        let thread = ThreadKey::current();
        let mut time = Time::new(&CLASSROOM_H100, 1);
        let ticket = time.enqueue(thread, 0, vec![]);
        let when = ticket.when.clone();
        time.finish(ticket, kernel(1, 20_000));
        let polls = (0..1000).take_while(|_| !time.has_ended(thread, &when)).count();
        assert_eq!(polls as u64, (REACH + 20_000) / CALL - 1);
    }

    #[test]
    fn a_collective_starts_when_its_last_rank_is_ready() {
        let thread = ThreadKey::current();
        let mut time = Time::new(&CLASSROOM_H100, 2);
        let slow = time.enqueue(thread, 1, vec![]);
        let parts = [time.enqueue(thread, 0, vec![]), time.enqueue(thread, 1, vec![slow.when.clone()])];
        let whens = [slow.when.clone(), parts[0].when.clone(), parts[1].when.clone()];
        let call = CallKey::of_test();
        for part in parts {
            time.finish(part, Cost::Collective { call, ranks: 2, others_ready: 0, duration: 7_000 });
        }
        time.finish(slow, kernel(1, 90_000));
        time.settle();
        assert_eq!(span(&whens[1]), span(&whens[2]));
        assert_eq!(span(&whens[1]).start, span(&whens[0]).end);
        assert_eq!(span(&whens[1]).end - span(&whens[1]).start, 7_000);
    }
}
