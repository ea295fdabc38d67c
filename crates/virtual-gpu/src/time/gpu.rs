//! What runs beside what on one GPU: multiprocessors, memory, copy engines.
//!
//! What was enqueued earlier keeps what it got; a newcomer gets what is left. So the GPU as a whole is never used twice,
//! and a time that somebody has seen never changes.

use std::collections::BTreeMap;

use super::horizon::Horizon;
use super::preset::Preset;
use super::{Cost, Span, When};

/// Something that does one thing at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Upload,
    Download,
    Peer,
}

/// What an operation needs of its GPU.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    engine: Option<Engine>,
    /// Part of the GPU's places for blocks, held from start to end.
    places: f64,
    /// Nanoseconds before the work begins.
    lead: u64,
    /// Nanoseconds that it takes at least, of which none depends on what runs beside it.
    least: u64,
    /// Nanoseconds that the work takes where nothing else runs.
    work: f64,
    /// Parts of all multiprocessors' and of the memory's throughput that the work uses at that speed.
    compute: f64,
    memory: f64,
}

/// What a placed operation uses.
#[derive(Clone, Debug)]
struct Used {
    index: u64,
    before: Horizon,
    span: Span,
    engine: Option<Engine>,
    places: f64,
    compute: f64,
    memory: f64,
}

/// A communication on this GPU, from when its own stream has come to it.
#[derive(Clone, Debug)]
struct Window {
    index: u64,
    before: Horizon,
    span: Span,
}

/// An operation that has no place yet.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) before: Horizon,
    pub(super) reaches_gpu: u64,
    pub(super) after: Vec<When>,
    pub(super) when: When,
    /// How long a communication takes once all ranks are ready. None: a kernel or a copy.
    pub(super) communicates: Option<u64>,
}

/// One GPU's engines, and what they have done and are to do.
#[derive(Clone, Debug, Default)]
pub(super) struct Gpu {
    /// Operations enqueued so far.
    pub(super) issued: u64,
    /// The latest time that a host thread has seen of it.
    pub(super) seen: u64,
    pub(super) pending: BTreeMap<u64, Pending>,
    /// Both in the order of their ends.
    used: Vec<Used>,
    windows: Vec<Window>,
    /// How many of both make it look for old ones.
    full: usize,
}

/// How many operations a GPU remembers before it looks for old ones.
const REMEMBERED: usize = 1024;

/// Less of a throughput than this is none.
const NONE_LEFT: f64 = 1e-6;

impl Gpu {
    /// The time that has to be known before an operation can be placed: of one that was enqueued before it and is over no
    /// later. `None`: it can be placed.
    pub(super) fn obstacle(&mut self, index: u64, before: &Horizon) -> Option<When> {
        let mut begun = Vec::new();
        for (&earlier, pending) in self.pending.range(..index).filter(|(_, it)| it.before.is_within(before)) {
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

    /// A communication holds the GPU from `start`, when its own stream comes to it.
    pub(super) fn communicated(&mut self, index: u64, start: u64) {
        let Some(Pending { before, communicates: Some(duration), .. }) = self.pending.remove(&index) else {
            return;
        };
        let span = Span { start, end: start + duration };
        let at = self.windows.partition_point(|window| window.span.end <= span.end);
        self.windows.insert(at, Window { index, before, span });
    }

    /// Gives an operation the first place from `ready` on.
    pub(super) fn place(
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
        let beside: Vec<&Used> =
            self.used[late..].iter().filter(|used| counts(used.index, &used.before)).collect();
        let late = self.windows.partition_point(|window| window.span.end <= ready);
        let slow: Vec<Span> = self.windows[late..]
            .iter()
            .filter(|window| counts(window.index, &window.before))
            .map(|window| window.span)
            .collect();
        let slowdown = preset.links.compute_slowdown;
        let span = std::iter::once(ready)
            .chain(beside.iter().map(|used| used.span.end))
            .find_map(|start| {
                let span = Span { start, end: demand.end(start, &beside, &slow, slowdown) };
                demand.fits(span, &beside).then_some(span)
            })
            // Behind the last one there is nothing beside it.
            .unwrap_or(Span { start: ready, end: ready });
        self.pending.remove(&index);
        let length = (span.end - span.start) as f64;
        if length > 0.0 {
            let part = demand.work / length;
            let (compute, memory) = (demand.compute * part, demand.memory * part);
            let Demand { engine, places, .. } = demand;
            let at = self.used.partition_point(|used| used.span.end <= span.end);
            self.used.insert(at, Used { index, before, span, engine, places, compute, memory });
        }
        span
    }

    /// Forgets what nothing can run beside any more: no operation starts before `clock`.
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

/// What an operation needs, from what it did.
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
        Cost::Kernel { blocks, resident, instructions, bytes, longest_thread } => {
            // The busiest multiprocessor does so many blocks, and the others as many or one less.
            let each = blocks as f64 * preset.stands_for / preset.multiprocessors;
            let share = each / each.ceil().max(1.0);
            let instructions = nanoseconds(instructions, preset.instructions);
            let drawn = (preset.multiprocessor_bytes * preset.multiprocessors * each.min(1.0))
                .min(preset.memory_bytes);
            // A roofline: whatever takes longest.
            let work = (instructions / share).max(nanoseconds(bytes, drawn));
            let part = |alone: f64| if work > 0.0 { alone / work } else { 0.0 };
            Demand {
                places: (blocks as f64 / (resident.max(1) as f64 * preset.multiprocessors)).min(1.0),
                least: longest_thread,
                work,
                compute: part(instructions),
                memory: part(nanoseconds(bytes, preset.memory_bytes)),
                ..Demand::default()
            }
        }
        Cost::Nothing | Cost::Collective { .. } | Cost::PointToPoint { .. } => Demand::default(),
    }
}

impl Demand {
    /// When it ends that starts at `start`, beside what is there: its work goes on with what that leaves.
    fn end(&self, start: u64, beside: &[&Used], slow: &[Span], slowdown: f64) -> u64 {
        let begin = start + self.lead;
        let least = begin + self.least;
        let mut left = self.work;
        let mut now = begin as f64;
        let spans = || beside.iter().map(|used| used.span).chain(slow.iter().copied());
        let mut changes: Vec<u64> =
            spans().flat_map(|span| [span.start, span.end]).filter(|&at| at > begin).collect();
        changes.sort_unstable();
        for change in changes {
            let speed = self.speed(now, beside, slow, slowdown);
            let until = change as f64;
            if left <= (until - now) * speed {
                break;
            }
            left -= (until - now) * speed;
            now = until;
        }
        // Behind the last change nothing is beside it.
        let end = now + left / self.speed(now, beside, slow, slowdown).max(NONE_LEFT);
        least.max(end.round() as u64)
    }

    /// How quickly the work goes on at a time, 1 where nothing is beside it.
    fn speed(&self, now: f64, beside: &[&Used], slow: &[Span], slowdown: f64) -> f64 {
        let is_in = |span: &Span| span.start as f64 <= now && now < span.end as f64;
        let (compute, memory) = beside
            .iter()
            .filter(|used| is_in(&used.span))
            .fold((1.0, 1.0), |(compute, memory), used| (compute - used.compute, memory - used.memory));
        let of =
            |left: f64, needed: f64| if needed > NONE_LEFT { (left / needed).clamp(0.0, 1.0) } else { 1.0 };
        let speed = of(compute, self.compute).min(of(memory, self.memory));
        if slow.iter().any(is_in) { speed / slowdown } else { speed }
    }

    /// Whether its engine is free, and so many places for blocks.
    fn fits(&self, span: Span, beside: &[&Used]) -> bool {
        let meets = |used: &&&Used| used.span.start < span.end && span.start < used.span.end;
        if self.engine.is_some() && beside.iter().filter(meets).any(|used| used.engine == self.engine) {
            return false;
        }
        // Most places are taken where one begins, or at the start.
        let taken_at = |at: u64| -> f64 {
            let running = beside.iter().filter(|used| used.span.start <= at && at < used.span.end);
            running.map(|used| used.places).sum()
        };
        let begins = beside.iter().filter(meets).map(|used| used.span.start).filter(|&at| at > span.start);
        begins.chain([span.start]).all(|at| taken_at(at) + self.places <= 1.0 + NONE_LEFT)
    }
}
