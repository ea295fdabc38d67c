//! The record of a block: a cell for each of the smallest accesses, and the synchronizations so far.

use std::ops::RangeInclusive;

use super::log::{Log, Order};
use super::stamp::Stamp;
use crate::mask::{Mask, WIDTH};

/// The record of a block.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    /// Whether anything is recorded.
    pub(crate) is_on: bool,
    /// Whether the kernel orders parts of a block other than warps: then warps count in chains of such orders.
    has_chains: bool,
    /// A cell has `1 << shift` bytes: the smallest access of the kernel.
    pub(super) shift: u32,
    pub(super) writes: Vec<Stamp>,
    /// The cell's first reader since it was last written.
    pub(super) readers: Vec<Stamp>,
    /// Its last reader that is another thread than the first; counts only where there is a first.
    pub(super) others: Vec<Stamp>,
    /// For each [`WIDTH`] cells, when all of them were found to have readers of two warps and no recent write: further
    /// reads at that time change nothing that matters.
    pub(super) settled: Vec<u32>,
    /// Cells whose write is under way.
    pub(super) under_way: usize,
    pub(super) now: u32,
    /// When all threads were last synchronized.
    floor: u32,
    /// When all threads of each warp were.
    warp_floors: [u32; 32],
    log: Log,
}

impl Shadow {
    /// Makes room for a kernel's shared memory, whose accesses have at least `unit` bytes.
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

    /// Starts a block: nothing was accessed.
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

    /// All threads of the block have waited for one another.
    pub(crate) fn synchronize_all(&mut self) {
        self.now += 1;
        self.floor = self.now;
        self.log.clear();
    }

    /// The threads of `to` have waited for those of `from`.
    pub(crate) fn synchronize(&mut self, from: Mask, to: Mask) {
        self.push(Order::Barrier { from, to });
    }

    /// The lanes of each warp that are in the mask have waited for one another. `all` are the threads of the block.
    pub(crate) fn synchronize_warps(&mut self, threads: Mask, all: &Mask) {
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

    /// Threads have passed a fence.
    pub(crate) fn fence(&mut self, threads: Mask) {
        self.push(Order::Fence(threads));
    }

    fn push(&mut self, what: Order) {
        self.now += 1;
        if let Some(forgotten) = self.log.push(self.now, what) {
            self.floor = self.floor.max(forgotten);
        }
    }

    /// Stamps from here on are from after the last synchronization of all threads.
    #[inline(always)]
    pub(super) fn oldest(&self) -> i64 {
        i64::from(self.floor) << 32
    }

    /// Makes the next read see a write.
    #[inline(always)]
    pub(super) fn unsettle(&mut self, first: usize, last: usize) {
        self.settled[first / WIDTH..=last / WIDTH].fill(0);
    }

    /// The cells of some bytes.
    pub(super) fn cells(&self, offset: u64, bytes: u64) -> RangeInclusive<usize> {
        (offset >> self.shift) as usize..=((offset + bytes - 1) >> self.shift) as usize
    }

    /// Whether an earlier access is old, by the thread itself, or by its warp before the warp was synchronized.
    pub(super) fn is_harmless(&self, earlier: Stamp, thread: usize) -> bool {
        earlier.0 < self.oldest()
            || earlier.thread() == thread && !earlier.is_under_way()
            || self.is_of_synchronized_warp(earlier, thread)
    }

    pub(super) fn is_of_synchronized_warp(&self, earlier: Stamp, thread: usize) -> bool {
        let warp = thread / 32;
        earlier.thread() / 32 == warp && earlier.time() < self.warp_floors[warp]
    }

    /// Whether `thread` has waited, directly or through other threads, for the thread that did `earlier`.
    pub(super) fn is_ordered(&self, earlier: Stamp, thread: usize) -> bool {
        self.is_harmless(earlier, thread) || self.log.orders(earlier, thread)
    }
}
