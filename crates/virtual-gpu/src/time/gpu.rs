//! Models how operations overlap on one GPU: multiprocessors, memory, and copy engines.
//!
//! An operation that was enqueued earlier keeps its share of the GPU, and a later operation gets what is left. So
//! nothing on the GPU is used twice, and a time that a thread has seen never changes.

use std::sync::Arc;

use super::horizon::Horizon;
use super::preset::Preset;
use super::{Cost, Span, When};
use virtual_gpu_core::number_map::NumberMap;

/// An engine that processes one operation at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Upload,
    Download,
    Peer,
}

/// What an operation needs from its GPU.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    engine: Option<Engine>,
    /// The share of the GPU's block capacity that the operation occupies from start to end.
    room: f64,
    /// The number of nanoseconds before the work begins.
    lead: u64,
    /// The minimum duration in nanoseconds. It does not depend on what overlaps with the operation.
    least: u64,
    /// The time that the work takes if nothing else is running, in nanoseconds.
    work: f64,
    /// The shares of all multiprocessors' throughput and of the memory's throughput that the work uses at that speed.
    compute: f64,
    memory: f64,
}

/// The resources that a placed operation uses.
#[derive(Debug)]
struct Used {
    index: u64,
    before: Horizon,
    span: Span,
    engine: Option<Engine>,
    room: f64,
    compute: f64,
    memory: f64,
}

/// A communication on this GPU, starting when its own stream reaches it.
#[derive(Debug)]
struct Window {
    index: u64,
    before: Horizon,
    span: Span,
}

/// An operation that has no time yet.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) before: Horizon,
    pub(super) reaches_gpu: u64,
    pub(super) after: Arc<[When]>,
    pub(super) when: When,
    /// How long a communication takes once all ranks are ready; `None` for a kernel or a copy.
    pub(super) communicates: Option<u64>,
}

/// One GPU's engines, with their past and pending operations.
#[derive(Debug, Default)]
pub(super) struct Gpu {
    /// The number of operations enqueued so far.
    pub(super) issued: u64,
    /// The latest time on this GPU that a host thread has seen.
    pub(super) seen: u64,
    pub(super) pending: NumberMap<Pending>,
    /// `used` and `windows` are sorted by end time.
    used: Vec<Used>,
    windows: Vec<Window>,
    /// The total number of entries in both lists at which old entries are removed.
    full: usize,
}

/// How many operations a GPU remembers before it removes old operations.
const REMEMBERED: usize = 1024;

/// A share of a throughput smaller than this is treated as zero.
const NONE_LEFT: f64 = 1e-6;

impl Gpu {
    /// Returns a time that must be known before an operation can be placed: the time of another operation that was
    /// enqueued earlier and ends no later. Returns `None` if the operation can be placed.
    pub(super) fn obstacle(&mut self, index: u64, before: &Horizon) -> Option<When> {
        let mut begun = Vec::new();
        for (earlier, pending) in self.pending.range(0..index) {
            if !pending.before.is_within(before) {
                continue;
            }
            if pending.communicates.is_none() {
                return Some(pending.when.clone());
            }
            match super::ready(pending.reaches_gpu, &pending.after) {
                Ok(start) => begun.push((earlier, start)),
                Err(unknown) => return Some(unknown.clone()),
            }
        }
        for (index, start) in begun {
            self.communicated(index, start);
        }
        None
    }

    /// Makes a communication occupy the GPU from `start`, when its own stream reaches it.
    pub(super) fn communicated(&mut self, index: u64, start: u64) {
        let Some(Pending { before, communicates: Some(duration), .. }) = self.pending.remove(index) else {
            return;
        };
        let span = Span { start, end: start + duration };
        let at = self.windows.partition_point(|window| window.span.end <= span.end);
        self.windows.insert(at, Window { index, before, span });
    }

    /// Assigns an operation the first free time at or after `ready`.
    pub(super) fn schedule(
        &mut self,
        preset: &Preset,
        index: u64,
        before: Horizon,
        ready: u64,
        cost: &Cost,
    ) -> Span {
        let demand = demand(preset, cost);
        let counts = |other: u64, horizon: &Horizon| other < index && horizon.is_within(&before);
        let late = self.used.partition_point(|used| used.span.end <= ready);
        let overlapping: Vec<&Used> =
            self.used[late..].iter().filter(|used| counts(used.index, &used.before)).collect();
        let late = self.windows.partition_point(|window| window.span.end <= ready);
        let slow: Vec<Span> = self.windows[late..]
            .iter()
            .filter(|window| counts(window.index, &window.before))
            .map(|window| window.span)
            .collect();
        let slowdown = preset.links.compute_slowdown;
        let span = std::iter::once(ready)
            .chain(overlapping.iter().map(|used| used.span.end))
            .find_map(|start| {
                let span = Span { start, end: demand.end(start, &overlapping, &slow, slowdown) };
                demand.fits(span, &overlapping).then_some(span)
            })
            // After the last of the other operations has ended, nothing overlaps with this one.
            .unwrap_or(Span { start: ready, end: ready });
        self.pending.remove(index);
        let length = (span.end - span.start) as f64;
        if length > 0.0 {
            let part = demand.work / length;
            let (compute, memory) = (demand.compute * part, demand.memory * part);
            let Demand { engine, room, .. } = demand;
            let at = self.used.partition_point(|used| used.span.end <= span.end);
            self.used.insert(at, Used { index, before, span, engine, room, compute, memory });
        }
        span
    }

    /// Forgets operations that can't overlap with later operations, because no operation starts before `clock`.
    pub(super) fn forget(&mut self, clock: u64) {
        if self.used.len() + self.windows.len() < self.full.max(REMEMBERED) {
            return;
        }
        let earliest = self.pending.values().map(|pending| pending.reaches_gpu).fold(clock, u64::min);
        self.used.retain(|used| used.span.end > earliest);
        self.windows.retain(|window| window.span.end > earliest);
        self.full = 2 * (self.used.len() + self.windows.len());
    }
}

/// Returns what an operation needs, based on what it did.
fn demand(preset: &Preset, cost: &Cost) -> Demand {
    let nanoseconds = |amount: u64, per_second: f64| amount as f64 * preset.stands_for / per_second * 1e9;
    let copy = |engine: Engine, bytes: u64, per_second: f64| Demand {
        engine: Some(engine),
        least: preset.copy_latency_ns + nanoseconds(bytes, per_second) as u64,
        ..Demand::default()
    };
    match *cost {
        Cost::Upload(bytes) => copy(Engine::Upload, bytes, preset.upload_bytes),
        Cost::Download(bytes) => copy(Engine::Download, bytes, preset.download_bytes),
        Cost::Peer(bytes) => copy(Engine::Peer, bytes, preset.peer_bytes),
        Cost::Device { traffic } => {
            let work = nanoseconds(traffic, preset.memory_bytes);
            Demand { lead: preset.copy_latency_ns, work, memory: 1.0, ..Demand::default() }
        }
        Cost::Kernel { blocks, resident, instructions, traffic, longest_thread, .. } => {
            // The busiest multiprocessor runs `each` blocks, rounded up, and the others run the same number or one
            // fewer.
            let each = blocks as f64 * preset.stands_for / preset.multiprocessors;
            let share = each / each.ceil().max(1.0);
            let instructions = nanoseconds(instructions, preset.instructions);
            // A multiprocessor's L1 cache and its shared memory are one unit.
            let l1 =
                nanoseconds(traffic.l1, preset.l1_bytes) + nanoseconds(traffic.shared, preset.shared_bytes);
            let compute = instructions.max(l1);
            let drawn = preset.multiprocessor_bytes * preset.multiprocessors * each.min(1.0);
            let l2 = nanoseconds(traffic.l2, drawn.min(preset.l2_bytes));
            let memory = nanoseconds(traffic.memory, drawn.min(preset.memory_bytes));
            // A roofline model: the slowest part determines the time.
            let link = nanoseconds(traffic.link, preset.peer_bytes);
            let work = (compute / share).max(l2).max(memory).max(link);
            let part = |alone: f64| if work > 0.0 { alone / work } else { 0.0 };
            Demand {
                room: (blocks as f64 / (resident.max(1) as f64 * preset.multiprocessors)).min(1.0),
                least: longest_thread,
                work,
                compute: part(compute),
                memory: part(
                    nanoseconds(traffic.l2, preset.l2_bytes)
                        .max(nanoseconds(traffic.memory, preset.memory_bytes)),
                ),
                ..Demand::default()
            }
        }
        Cost::Nothing | Cost::Collective { .. } | Cost::PointToPoint { .. } => Demand::default(),
    }
}

impl Demand {
    /// Returns when an operation that starts at `start` ends. It gets the capacity that overlapping operations don't
    /// use.
    fn end(&self, start: u64, overlapping: &[&Used], slow: &[Span], slowdown: f64) -> u64 {
        let begin = start + self.lead;
        let least = begin + self.least;
        let mut left = self.work;
        let mut now = begin as f64;
        let mut changes = Vec::new();
        for span in overlapping.iter().map(|used| used.span).chain(slow.iter().copied()) {
            changes.push(span.start);
            changes.push(span.end);
        }
        changes.retain(|&at| at > begin);
        changes.sort_unstable();
        for change in changes {
            let speed = self.speed(now, overlapping, slow, slowdown);
            let until = change as f64;
            if left <= (until - now) * speed {
                break;
            }
            left -= (until - now) * speed;
            now = until;
        }
        // After the last change, nothing else overlaps with the operation.
        let end = now + left / self.speed(now, overlapping, slow, slowdown).max(NONE_LEFT);
        least.max(end.round() as u64)
    }

    /// Returns how fast the work progresses at a given time; 1 means that nothing overlaps with it.
    fn speed(&self, now: f64, overlapping: &[&Used], slow: &[Span], slowdown: f64) -> f64 {
        let is_in = |span: &Span| span.start as f64 <= now && now < span.end as f64;
        let (compute, memory) = overlapping
            .iter()
            .filter(|used| is_in(&used.span))
            .fold((1.0, 1.0), |(compute, memory), used| (compute - used.compute, memory - used.memory));
        let of =
            |left: f64, needed: f64| if needed > NONE_LEFT { (left / needed).clamp(0.0, 1.0) } else { 1.0 };
        let speed = of(compute, self.compute).min(of(memory, self.memory));
        if slow.iter().any(is_in) { speed / slowdown } else { speed }
    }

    /// Returns whether the operation's engine is free and there is room for its blocks.
    fn fits(&self, span: Span, overlapping: &[&Used]) -> bool {
        let meets = |used: &&&Used| used.span.start < span.end && span.start < used.span.end;
        if self.engine.is_some() && overlapping.iter().filter(meets).any(|used| used.engine == self.engine) {
            return false;
        }
        // There is the least room at the start or where another operation begins.
        let taken_at = |at: u64| -> f64 {
            let running = overlapping.iter().filter(|used| used.span.start <= at && at < used.span.end);
            running.map(|used| used.room).sum()
        };
        let begins =
            overlapping.iter().filter(meets).map(|used| used.span.start).filter(|&at| at > span.start);
        begins.chain([span.start]).all(|at| taken_at(at) + self.room <= 1.0 + NONE_LEFT)
    }
}
