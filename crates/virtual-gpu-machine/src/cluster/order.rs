//! The synchronizations of a cluster's threads, and their accesses to each other's shared memory. Together they decide
//! whether an access races with an earlier one by a thread of another block.
//!
//! All blocks of a cluster count synchronizations together, so that times can be compared.

use std::collections::HashMap;

use crate::mask::Mask;
use crate::order::{Order, Phase};

/// The maximum number of synchronizations that are kept. Accesses older than all of them are considered ordered.
const KEPT: usize = 4096;

/// The maximum number of readers of a cell that are kept.
const READERS: usize = 4;

/// A thread of the cluster: its block's rank, and its number in the block.
pub(crate) type Thread = (usize, usize);

/// An access by a thread of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) time: u32,
    pub(crate) thread: Thread,
    pub(crate) pc: usize,
    /// The offset of its first byte in shared memory, and its size in bytes; 0 bytes if they are not recorded.
    pub(crate) bytes: (u64, u64),
    pub(crate) wrote: bool,
    pub(crate) is_atomic: bool,
    /// Whether it is a copy that has not completed.
    pub(crate) is_under_way: bool,
}

/// The accesses to a cell of a block's shared memory by threads of other blocks.
#[derive(Debug, Default)]
struct Cell {
    write: Option<Access>,
    /// Reads since.
    reads: Vec<Access>,
}

/// What threads of other blocks did in a block's shared memory.
#[derive(Debug, Default)]
pub(crate) struct Visits {
    cells: HashMap<usize, Cell>,
    /// The last access by each thread.
    last: HashMap<Thread, Access>,
}

impl Visits {
    pub(crate) fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// Returns the accesses to a cell, the last write first.
    pub(crate) fn of_cell(&self, cell: usize) -> impl Iterator<Item = &Access> {
        self.cells.get(&cell).into_iter().flat_map(|cell| cell.write.iter().chain(&cell.reads))
    }

    /// Returns the last access of each thread, in the order of their times.
    pub(crate) fn last_of_each(&self) -> Vec<Access> {
        let mut all: Vec<Access> = self.last.values().copied().collect();
        all.sort_unstable_by_key(|access| (access.time, access.thread));
        all
    }

    /// Returns the oldest copy that is under way.
    pub(crate) fn under_way(&self) -> Option<Access> {
        let writes = self.cells.values().filter_map(|cell| cell.write);
        writes.filter(|write| write.is_under_way).min_by_key(|write| (write.time, write.thread, write.bytes))
    }

    /// Records an access to cells.
    pub(crate) fn add(&mut self, cells: impl Iterator<Item = usize>, access: Access) {
        self.last.insert(access.thread, access);
        for at in cells {
            let cell = self.cells.entry(at).or_default();
            if access.wrote {
                (cell.write, cell.reads) = (Some(access), Vec::new());
            } else if let Some(own) = cell.reads.iter_mut().find(|read| read.thread == access.thread) {
                *own = access;
            } else if cell.reads.len() < READERS {
                cell.reads.push(access);
            }
        }
    }

    /// Records that a copy by a thread has completed, at the given time.
    pub(crate) fn complete(
        &mut self,
        cells: impl Iterator<Item = usize>,
        thread: Thread,
        pc: usize,
        time: u32,
    ) {
        for at in cells {
            let Some(write) = self.cells.get_mut(&at).and_then(|cell| cell.write.as_mut()) else { continue };
            if write.is_under_way && (write.thread, write.pc) == (thread, pc) {
                (write.is_under_way, write.time) = (false, time);
                if let Some(last) = self.last.get_mut(&thread) {
                    last.time = time.max(last.time);
                }
            }
        }
    }

    /// Forgets the accesses for which `is_known` is true.
    fn forget(&mut self, is_known: impl Fn(&Access) -> bool) {
        let is_known = |access: &Access| !access.is_under_way && is_known(access);
        self.last.retain(|_, access| !is_known(access));
        self.cells.retain(|_, cell| {
            cell.write.take_if(|write| is_known(write));
            cell.reads.retain(|read| !is_known(read));
            cell.write.is_some() || !cell.reads.is_empty()
        });
    }
}

/// An event in a block of the cluster.
#[derive(Debug)]
struct Event {
    time: u32,
    rank: usize,
    what: Order,
}

/// The synchronizations of a cluster's threads, and their accesses to other blocks' shared memory.
#[derive(Debug, Default)]
pub(crate) struct ClusterOrder {
    events: Vec<Event>,
    /// For each block, the time before which its threads' accesses are known to all threads of the cluster.
    floors: Vec<u32>,
    /// For each block, the time when it started.
    started: Vec<u32>,
    /// For each block, whether a thread of it has waited for the cluster's barrier, so that all blocks have started.
    met: Vec<bool>,
    /// By the rank of the block whose memory it is.
    pub(crate) visits: Vec<Visits>,
}

impl ClusterOrder {
    /// Starts a cluster whose blocks start now.
    pub(crate) fn start(&mut self, blocks: usize, now: u32) {
        *self = Self {
            events: Vec::new(),
            floors: vec![now; blocks],
            started: vec![now; blocks],
            met: vec![false; blocks],
            visits: (0..blocks).map(|_| Visits::default()).collect(),
        };
    }

    /// Returns the time when a block started.
    pub(crate) fn started(&self, rank: usize) -> u32 {
        self.started.get(rank).copied().unwrap_or(0)
    }

    /// Records that a thread of a block has waited for the cluster's barrier.
    pub(crate) fn meet(&mut self, rank: usize) {
        if let Some(met) = self.met.get_mut(rank) {
            *met = true;
        }
    }

    /// Adds an event in a block. A loop may repeat an exchange, which is then moved.
    pub(crate) fn push(&mut self, time: u32, rank: usize, what: Order) {
        if let (Order::Exchange(now), Some(last)) = (&what, self.events.last_mut())
            && matches!(&last.what, Order::Exchange(before) if before == now && last.rank == rank)
        {
            last.time = time;
            return;
        }
        if self.events.len() == KEPT {
            let forgotten = self.events.drain(..KEPT / 2).next_back().map_or(0, |event| event.time);
            self.raise_floors(|_| forgotten);
        }
        self.events.push(Event { time, rank, what });
    }

    /// Records that everything that a block's threads did before a time is known to all threads of the cluster.
    pub(crate) fn raise_floors(&mut self, of_block: impl Fn(usize) -> u32) {
        let floors = self.floors.iter_mut().enumerate();
        floors.for_each(|(rank, floor)| *floor = of_block(rank).max(*floor));
        let oldest = self.floors.iter().min().copied().unwrap_or(0);
        self.events.retain(|event| event.time > oldest);
        let floors = &self.floors;
        self.visits
            .iter_mut()
            .for_each(|visits| visits.forget(|access| access.time < floors[access.thread.0]));
    }

    /// Returns whether a thread has waited, directly or through other threads, for one that made an access.
    pub(crate) fn orders(&self, earlier: &Access, thread: Thread) -> bool {
        if earlier.is_under_way {
            return false;
        }
        if earlier.thread == thread || self.floors.get(earlier.thread.0).is_some_and(|&at| earlier.time < at)
        {
            return true;
        }
        self.is_known(earlier, |reached| reached[thread.0].has(thread.1))
    }

    /// Returns whether a thread knows that a block has started.
    pub(crate) fn knows_start(&self, rank: usize, thread: Thread, all: &Mask) -> bool {
        self.started.get(rank).zip(self.floors.get(rank)).is_some_and(|(&started, &floor)| {
            started < floor
                || self.met[thread.0]
                || self.reaches(rank, *all, started, None, |reached| reached[thread.0].has(thread.1))
        })
    }

    /// Returns whether any thread of a block knows of an access.
    pub(crate) fn is_known_in(&self, rank: usize, access: &Access) -> bool {
        !access.is_under_way
            && (self.floors.get(access.thread.0).is_some_and(|&floor| access.time < floor)
                || self.is_known(access, |reached| !reached[rank].is_empty()))
    }

    /// Passes the threads of each block that have waited for an access to `is_reached`, and returns its result.
    fn is_known(&self, access: &Access, is_reached: impl Fn(&[Mask]) -> bool) -> bool {
        let (rank, thread) = access.thread;
        let own = (!access.is_atomic).then_some((rank, thread / 32));
        self.reaches(rank, Mask::of(thread), access.time, own, is_reached)
    }

    /// Follows the synchronizations after `time`, starting from `threads` of the block with this rank. Passes the threads
    /// of each block that have waited for them to `is_reached`, and returns its result. Exchanges within the warp `own` of
    /// a block order nothing.
    fn reaches(
        &self,
        rank: usize,
        threads: Mask,
        time: u32,
        own: Option<(usize, usize)>,
        is_reached: impl Fn(&[Mask]) -> bool,
    ) -> bool {
        let mut reached = vec![Mask::NONE; self.floors.len()];
        reached[rank] = threads;
        let mut phases: Vec<Phase> = Vec::new();
        // The threads among those reached that have passed a fence for the cluster since.
        let mut fenced = vec![Mask::NONE; self.floors.len()];
        // Whether a fence has published: in each block, and for the threads of all blocks.
        let (mut published, mut is_published) = (vec![false; self.floors.len()], false);
        let since = self.events.partition_point(|event| event.time <= time);
        for Event { rank, what, .. } in &self.events[since..] {
            let here = &mut reached[*rank];
            match what {
                Order::Barrier { from, to } => {
                    if !here.and(from).is_empty() {
                        *here = here.or(to);
                    }
                }
                Order::Warps(threads) => {
                    for warp in 0..32 {
                        if here.warp(warp) & threads.warp(warp) != 0 {
                            here.set_warp(warp, here.warp(warp) | threads.warp(warp));
                        }
                    }
                }
                Order::Exchange(exchanged) => {
                    for warp in (0..32).filter(|&warp| Some((*rank, warp)) != own) {
                        if here.warp(warp) & exchanged.warp(warp) != 0 {
                            here.set_warp(warp, here.warp(warp) | exchanged.warp(warp));
                        }
                    }
                }
                Order::Arrival(threads, phase) => {
                    if !here.and(threads).is_empty() {
                        phases.push(*phase);
                    }
                }
                Order::RelaxedArrival(threads, phase) => {
                    if !fenced[*rank].and(threads).is_empty() {
                        phases.push(*phase);
                    }
                }
                Order::Wait(threads, phase) => {
                    if phases.contains(phase) {
                        *here = here.or(threads);
                    }
                }
                Order::Fence(threads, is_wide) => {
                    let publishes = !here.and(threads).is_empty();
                    if *is_wide {
                        fenced[*rank] = fenced[*rank].or(&here.and(threads));
                    }
                    if published[*rank] || *is_wide && is_published {
                        *here = here.or(threads);
                    }
                    published[*rank] |= publishes;
                    is_published |= *is_wide && publishes;
                }
            }
            if is_reached(&reached) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(rank: usize, thread: usize, time: u32) -> Access {
        Access {
            time,
            thread: (rank, thread),
            pc: 0,
            bytes: (0, 0),
            wrote: true,
            is_atomic: false,
            is_under_way: false,
        }
    }

    fn started() -> ClusterOrder {
        let mut order = ClusterOrder::default();
        order.start(2, 10);
        order
    }

    #[test]
    fn a_phase_of_the_cluster_orders_arrivals_before_waits() {
        let mut order = started();
        let phase = Phase::Cluster(0);
        order.push(11, 0, Order::Arrival(Mask::of(3), phase));
        order.push(12, 1, Order::Wait(Mask::of(5), phase));
        assert!(order.orders(&write(0, 3, 10), (1, 5)));
        assert!(!order.orders(&write(0, 4, 10), (1, 5)));
        assert!(!order.orders(&write(0, 3, 11), (1, 5)), "after the arrival");
        assert!(!order.orders(&write(0, 3, 10), (1, 6)));
    }

    #[test]
    fn order_goes_through_other_blocks() {
        let mut order = started();
        let (first, second) = (Phase::Object(1, 1), Phase::Object(0, 1));
        order.push(11, 0, Order::Arrival(Mask::of(0), first));
        order.push(12, 1, Order::Wait(Mask::of(7), first));
        order.push(13, 1, Order::Arrival(Mask::of(7), second));
        order.push(14, 0, Order::Wait(Mask::of(9), second));
        assert!(order.orders(&write(0, 0, 10), (0, 9)));
    }

    #[test]
    fn a_fence_for_a_block_orders_nothing_across_blocks() {
        for is_wide in [false, true] {
            let mut order = started();
            order.push(11, 0, Order::Fence(Mask::of(0), is_wide));
            order.push(12, 1, Order::Fence(Mask::of(0), is_wide));
            assert_eq!(order.orders(&write(0, 0, 10), (1, 0)), is_wide);
        }
    }

    #[test]
    fn what_is_known_to_all_is_forgotten() {
        let mut order = started();
        order.visits[1].add(0..2, write(0, 3, 11));
        order.raise_floors(|rank| if rank == 0 { 12 } else { 0 });
        assert!(order.visits[1].is_empty());
        assert!(order.orders(&write(0, 4, 11), (1, 0)));
    }
}
