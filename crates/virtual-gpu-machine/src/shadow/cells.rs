//! A block's record: the synchronizations so far, and one cell for each unit of memory. A unit has the size of the
//! smallest access.

use std::ops::RangeInclusive;

use super::log::Log;
use super::stamp::Stamp;
use crate::mask::{Mask, WIDTH};
use crate::order::Order;

/// A block's record.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    /// Whether anything is recorded.
    pub(crate) is_on: bool,
    /// Whether the kernel synchronizes parts of a block other than warps. If so, warp synchronizations can be links in
    /// chains of such synchronizations.
    has_chains: bool,
    /// A cell covers `1 << shift` bytes, the size of the kernel's smallest access.
    pub(super) shift: u32,
    pub(super) writes: Vec<Stamp>,
    /// The cell's first reader since it was last written.
    pub(super) readers: Vec<Stamp>,
    /// The cell's last reader other than the first reader; valid only if there is a first reader.
    pub(super) others: Vec<Stamp>,
    /// For each group of [`WIDTH`] cells, the time at which all of them were found to have readers from two warps and
    /// no recent write. Further reads at that time don't matter.
    pub(super) settled: Vec<u32>,
    /// The number of cells with a pending write.
    pub(super) under_way: usize,
    pub(super) now: u32,
    /// The time when all threads were last synchronized.
    floor: u32,
    /// For each warp, the time when all its threads were last synchronized.
    warp_floors: [u32; 32],
    log: Log,
}

impl Shadow {
    /// Makes room for a kernel's shared memory, which is accessed in units of at least `unit` bytes.
    pub(crate) fn prepare(&mut self, bytes: usize, unit: u8, has_chains: bool) {
        self.shift = u32::from(unit).trailing_zeros();
        self.has_chains = has_chains;
        let cells = bytes.div_ceil(usize::from(unit.max(1)));
        for cells_of in [&mut self.writes, &mut self.readers, &mut self.others] {
            if cells_of.len() < cells {
                cells_of.resize(cells, Stamp(0));
            }
        }
        self.settled.resize(self.writes.len() / WIDTH + 1, 0);
    }

    /// Clears the record at the start of a block.
    pub(crate) fn start(&mut self) {
        if self.now > 1 << 29 {
            for cells in [&mut self.writes, &mut self.readers, &mut self.others] {
                cells.fill(Stamp(0));
            }
            self.settled.fill(0);
            (self.now, self.warp_floors) = (0, [0; 32]);
        }
        if std::mem::take(&mut self.under_way) > 0 {
            self.writes.iter_mut().filter(|write| write.is_under_way()).for_each(|write| *write = Stamp(0));
        }
        self.synchronize_all();
    }

    /// Records that all threads of the block have waited for each other.
    fn synchronize_all(&mut self) {
        self.now += 1;
        self.floor = self.now;
        self.log.clear();
    }

    /// Returns whether exchanges matter. If nothing synchronizes parts of a block, a lane can't learn about other warps.
    pub(crate) fn needs_exchanges(&self) -> bool {
        self.is_on && self.has_chains
    }

    /// Records an event. `all` is the set of all threads in the block.
    pub(crate) fn order(&mut self, what: Order, all: &Mask) {
        match what {
            Order::Barrier { from, to } if from == *all && to == *all => self.synchronize_all(),
            Order::Warps(threads) => self.synchronize_warps(threads, all),
            Order::Exchange(threads) => {
                self.now += 1;
                let forgotten = self.log.push_exchange(self.now, threads);
                self.forget(forgotten);
            }
            _ => self.push(what),
        }
    }

    /// Records that, in each warp, the lanes in the mask have waited for each other.
    fn synchronize_warps(&mut self, threads: Mask, all: &Mask) {
        let mut is_partial = self.has_chains;
        self.now += 1;
        for (warp, floor) in self.warp_floors.iter_mut().enumerate() {
            let present = threads.warp(warp);
            if present != 0 && present == all.warp(warp) {
                *floor = self.now;
            }
            is_partial |= present != 0 && present != all.warp(warp);
        }
        if is_partial {
            self.push(Order::Warps(threads));
        }
    }

    /// Records that everything before a time is known to all threads.
    pub(crate) fn raise_floor(&mut self, time: u32) {
        self.floor = self.floor.max(time);
    }

    /// Continues at the time of another block of the cluster.
    pub(crate) fn advance_to(&mut self, now: u32) {
        self.now = self.now.max(now);
    }

    /// Returns the number of synchronizations so far.
    pub(crate) fn now(&self) -> u32 {
        self.now
    }

    /// Returns the last write of a cell and its readers, from the given time on.
    pub(crate) fn accesses(&self, cell: usize, since: u32) -> [Option<(Stamp, bool)>; 3] {
        let is_recent = |stamp: Stamp| stamp.time() >= since;
        let (write, reader, other) = (self.writes[cell], self.readers[cell], self.others[cell]);
        let has_reader = is_recent(reader);
        [
            is_recent(write).then_some((write, true)),
            has_reader.then_some((reader, false)),
            (has_reader && is_recent(other)).then_some((other, false)),
        ]
    }

    fn push(&mut self, what: Order) {
        self.now += 1;
        let forgotten = self.log.push(self.now, what);
        self.forget(forgotten);
    }

    /// Treats everything up to this time as ordered.
    fn forget(&mut self, until: Option<u32>) {
        self.floor = self.floor.max(until.unwrap_or(0));
    }

    /// Returns the oldest possible stamp since the last synchronization of all threads.
    #[inline(always)]
    pub(super) fn oldest(&self) -> i64 {
        i64::from(self.floor) << 32
    }

    /// Makes the next read see a write.
    #[inline(always)]
    pub(super) fn unsettle(&mut self, first: usize, last: usize) {
        self.settled[first / WIDTH..=last / WIDTH].fill(0);
    }

    /// Returns the cells that cover the given bytes.
    pub(crate) fn cells(&self, offset: u64, bytes: u64) -> RangeInclusive<usize> {
        (offset >> self.shift) as usize..=((offset + bytes - 1) >> self.shift) as usize
    }

    /// Returns whether an earlier access is old, was made by the thread itself, or was made by its warp before the warp
    /// was synchronized.
    pub(super) fn is_harmless(&self, earlier: Stamp, thread: usize) -> bool {
        earlier.0 < self.oldest()
            || earlier.thread() == thread && !earlier.is_under_way()
            || self.is_of_synchronized_warp(earlier, thread)
    }

    pub(super) fn is_of_synchronized_warp(&self, earlier: Stamp, thread: usize) -> bool {
        let warp = thread / 32;
        earlier.thread() / 32 == warp && earlier.time() < self.warp_floors[warp]
    }

    /// Returns whether `thread` has waited, directly or through other threads, for the thread that made the access
    /// `earlier`.
    pub(super) fn is_ordered(&self, earlier: Stamp, thread: usize) -> bool {
        self.is_harmless(earlier, thread) || self.log.orders(earlier, thread)
    }
}
