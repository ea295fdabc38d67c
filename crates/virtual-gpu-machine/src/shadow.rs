//! Who last wrote and read each cell of a block's shared memory, and what has made its threads wait for one another
//! since: from that, whether an access races with an earlier one.
//!
//! Time is the number of synchronisations of the block so far. Most accesses are settled by one comparison: what the
//! cell has is from before the last barrier of all threads. What is left goes through the list of later
//! synchronisations, which is exact.

use std::ops::{Range, RangeInclusive};

use super::features::vectorised;
use super::file::{Mask, WIDTH};

/// Synchronisations of part of a block that are kept. An access older than all of them counts as ordered.
const KEPT: usize = 1024;

/// Bits of a stamp that hold the instruction.
const PC_BITS: u32 = 21;

const ATOMIC: u64 = 1 << PC_BITS;

/// Of a write's stamp: it goes on, later than any time.
const UNDER_WAY: i64 = 1 << 62;

/// An access: whether it goes on (1 bit), when (30 bits), by which thread of the block (10), whether atomic (1), by which instruction (21).
///
/// 0 is none. A stamp is positive as a signed number, which vector units compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(i64);

impl Stamp {
    #[inline(always)]
    fn new(time: u32, thread: usize, pc: usize) -> Self {
        Self((u64::from(time) << 32 | (thread as u64) << (PC_BITS + 1) | pc as u64) as i64)
    }

    fn time(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline(always)]
    pub(super) fn thread(self) -> usize {
        (self.0 >> (PC_BITS + 1)) as usize & 0x3ff
    }

    pub(super) fn pc(self) -> usize {
        self.0 as usize & (ATOMIC as usize - 1)
    }

    pub(super) fn is_atomic(self) -> bool {
        self.0 as u64 & ATOMIC != 0
    }

    /// Whether it is a copy that its thread has not waited for.
    pub(super) fn is_under_way(self) -> bool {
        self.0 & UNDER_WAY != 0
    }
}

/// How one thread accesses shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Read,
    /// A write, and whether it changed what was there.
    Write(bool),
}

/// An earlier access that nothing orders before this one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unordered {
    pub(super) earlier: Stamp,
    /// Whether the earlier one wrote.
    pub(super) wrote: bool,
}

/// Something that makes threads of part of a block wait for others.
#[derive(Debug)]
struct Event {
    time: u32,
    what: Order,
}

#[derive(Debug)]
enum Order {
    /// The threads of `to` have waited for those of `from`.
    Barrier { from: Mask, to: Mask },
    /// Of each warp, these lanes have waited for one another.
    Warps(Mask),
    /// These threads passed a fence. What they did before may be seen by any that passes one later.
    Fence(Mask),
}

/// The record of a block.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    /// Whether anything is recorded.
    pub(super) is_on: bool,
    /// Whether the kernel has what orders parts of a block beyond warps: then warps count in chains of such orders.
    has_chains: bool,
    /// A cell has `1 << shift` bytes: the smallest access of the kernel.
    shift: u32,
    writes: Vec<Stamp>,
    /// The cell's first reader since it was last written.
    readers: Vec<Stamp>,
    /// Its last reader that is another thread than the first; counts only where there is a first.
    others: Vec<Stamp>,
    /// For each [`WIDTH`] cells, when all of them were found to have readers of two warps and no recent write: further
    /// reads at that time change nothing that matters.
    settled: Vec<u32>,
    /// Cells whose write goes on.
    under_way: usize,
    now: u32,
    /// When all threads were last synchronised.
    floor: u32,
    /// When all threads of each warp were.
    warp_floors: [u32; 32],
    log: Vec<Event>,
}

impl Shadow {
    /// Makes room for a kernel's shared memory, whose accesses have at least `unit` bytes.
    pub(super) fn prepare(&mut self, bytes: usize, unit: u8, has_chains: bool) {
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

    /// Begins a block: nothing was accessed.
    pub(super) fn start(&mut self) {
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
        self.synchronise_all();
    }

    /// All threads of the block have waited for one another.
    pub(super) fn synchronise_all(&mut self) {
        self.now += 1;
        self.floor = self.now;
        self.log.clear();
    }

    /// The threads of `to` have waited for those of `from`.
    pub(super) fn synchronise(&mut self, from: Mask, to: Mask) {
        self.push(Order::Barrier { from, to });
    }

    /// Of each warp, the lanes of the mask have waited for one another. `all` are the threads of the block.
    pub(super) fn synchronise_warps(&mut self, lanes: Mask, all: &Mask) {
        let mut is_partial = self.has_chains;
        self.now += 1;
        for (warp, floor) in self.warp_floors.iter_mut().enumerate() {
            let present = lanes.warp(warp);
            if present != 0 && present == all.warp(warp) {
                *floor = self.now;
            }
            is_partial |= present != 0 && present != all.warp(warp);
        }
        if is_partial {
            self.push(Order::Warps(lanes));
        }
    }

    /// Threads have passed a fence.
    pub(super) fn fence(&mut self, lanes: Mask) {
        self.push(Order::Fence(lanes));
    }

    fn push(&mut self, what: Order) {
        if self.log.len() == KEPT {
            let forgotten = self.log.drain(..KEPT / 2).next_back();
            self.floor = forgotten.map_or(self.floor, |event| self.floor.max(event.time));
        }
        self.now += 1;
        self.log.push(Event { time: self.now, what });
    }

    #[inline(always)]
    fn oldest(&self) -> i64 {
        i64::from(self.floor) << 32
    }

    /// Notes that lanes one after the other, the first of which is `thread`, read `unit` bytes each, one after the
    /// other. False where one of them may race; then nothing is noted.
    #[inline(always)]
    pub(super) fn read_row(
        &mut self,
        offset: u64,
        unit: u64,
        lanes: usize,
        thread: usize,
        pc: usize,
    ) -> bool {
        let (start, cells) = ((offset >> self.shift) as usize, (unit >> self.shift) as usize);
        let range = start..start + lanes * cells;
        self.is_settled(start, range.end - 1)
            || match lanes {
                1 => self.read_one(range, cells, thread, pc),
                _ => read_row(self, range, cells, thread, pc),
            }
    }

    #[inline(never)]
    fn read_one(&mut self, range: Range<usize>, cells: usize, thread: usize, pc: usize) -> bool {
        self.read_row_body(range, cells, thread, pc)
    }

    #[inline(always)]
    fn read_row_body(&mut self, range: Range<usize>, cells: usize, thread: usize, pc: usize) -> bool {
        let (start, lanes) = (range.start, range.len() / cells);
        let oldest = self.oldest();
        let mut recent = false;
        for write in &self.writes[range.clone()] {
            recent |= write.0 >= oldest;
        }
        if recent && !self.wrote_themselves(start, cells, lanes, thread) {
            return false;
        }
        let (readers, others) = (&mut self.readers[range.clone()], &mut self.others[range.clone()]);
        let now = Stamp::new(self.now, thread, pc).0;
        let record = |at: usize, reader: &mut Stamp, other: &mut Stamp| {
            let me = now + ((at as i64) << (PC_BITS + 1));
            let is_old = reader.0 < oldest;
            let is_me = (reader.0 ^ me) & (0x3ff << (PC_BITS + 1)) == 0;
            *other = Stamp(if is_old {
                0
            } else if is_me {
                other.0
            } else {
                me
            });
            *reader = Stamp(if is_old || is_me { me } else { reader.0 });
        };
        if let (Some(readers), Some(others)) =
            (readers.first_chunk_mut::<WIDTH>(), others.first_chunk_mut::<WIDTH>())
            && lanes == WIDTH
            && cells == 1
        {
            for at in 0..WIDTH {
                record(at, &mut readers[at], &mut others[at]);
            }
            self.settle(range);
            return true;
        }
        for (at, (reader, other)) in readers.iter_mut().zip(others).enumerate() {
            record(at / cells, reader, other);
        }
        self.settle(range);
        true
    }

    /// Whether no read of these cells needs to be noted.
    #[inline(always)]
    fn is_settled(&self, first: usize, last: usize) -> bool {
        let (first, last) = (first / WIDTH, last / WIDTH);
        self.settled[first] == self.now
            && self.settled[last] == self.now
            && (last <= first + 1 || self.settled[first..last].iter().all(|&time| time == self.now))
    }

    /// After a read that was noted: whether the cells' further reads need to be.
    #[inline(always)]
    fn settle(&mut self, range: Range<usize>) {
        const WARP: i64 = 0x3e0 << (PC_BITS + 1);
        let now = i64::from(self.now) << 32;
        let is_settled = |reader: Stamp, other: Stamp| {
            reader.0 >= now && other.0 >= now && (reader.0 ^ other.0) & WARP != 0
        };
        if !is_settled(self.readers[range.start], self.others[range.start]) {
            return;
        }
        let oldest = self.oldest();
        for group in range.start.div_ceil(WIDTH)..range.end / WIDTH {
            let cells = group * WIDTH..(group + 1) * WIDTH;
            let readers = self.readers[cells.clone()].iter().zip(&self.others[cells.clone()]);
            let mut all = true;
            for ((&reader, &other), write) in readers.zip(&self.writes[cells]) {
                all &= is_settled(reader, other) & (write.0 < oldest);
            }
            if all {
                self.settled[group] = self.now;
            }
        }
    }

    /// A write is to be seen by the next read.
    #[inline(always)]
    fn unsettle(&mut self, first: usize, last: usize) {
        self.settled[first / WIDTH..=last / WIDTH].fill(0);
    }

    /// As [`Self::read_row`], of lanes of one warp that all read the same: the lowest and the highest.
    #[inline(always)]
    pub(super) fn read_same(&mut self, offset: u64, unit: u64, ends: [usize; 2], pc: usize) -> bool {
        let (start, cells) = ((offset >> self.shift) as usize, (unit >> self.shift) as usize);
        self.is_settled(start, start + cells - 1) || self.read_same_cells(start..start + cells, ends, pc)
    }

    #[inline(never)]
    fn read_same_cells(&mut self, cells: Range<usize>, [low, high]: [usize; 2], pc: usize) -> bool {
        let oldest = self.oldest();
        for cell in cells.clone() {
            let write = self.writes[cell];
            if write.0 >= oldest && !self.is_of_synchronised_warp(write, low) {
                return false;
            }
        }
        for cell in cells {
            let (reader, other) = (&mut self.readers[cell], &mut self.others[cell]);
            if reader.0 < oldest {
                (*reader, *other) = (Stamp::new(self.now, low, pc), Stamp(0));
            }
            let another = if reader.thread() == high { low } else { high };
            if reader.thread() != another {
                *other = Stamp::new(self.now, another, pc);
            }
        }
        true
    }

    /// As [`Self::read_row`], of writes.
    #[inline(always)]
    pub(super) fn write_row(
        &mut self,
        offset: u64,
        unit: u64,
        lanes: usize,
        thread: usize,
        pc: usize,
    ) -> bool {
        let (start, cells) = ((offset >> self.shift) as usize, (unit >> self.shift) as usize);
        let range = start..start + lanes * cells;
        match lanes {
            1 => self.write_one(range, cells, thread, pc),
            _ => write_row(self, range, cells, thread, pc),
        }
    }

    #[inline(never)]
    fn write_one(&mut self, range: Range<usize>, cells: usize, thread: usize, pc: usize) -> bool {
        self.write_row_body(range, cells, thread, pc)
    }

    #[inline(always)]
    fn write_row_body(&mut self, range: Range<usize>, cells: usize, thread: usize, pc: usize) -> bool {
        let (start, lanes) = (range.start, range.len() / cells);
        let oldest = self.oldest();
        let mut recent = false;
        for (write, reader) in self.writes[range.clone()].iter().zip(&self.readers[range.clone()]) {
            recent |= write.0 >= oldest || reader.0 >= oldest;
        }
        if recent
            && !(self.wrote_themselves(start, cells, lanes, thread)
                && self.read_themselves(start, cells, lanes, thread))
        {
            return false;
        }
        self.unsettle(range.start, range.end - 1);
        let now = Stamp::new(self.now, thread, pc).0;
        let (writes, readers) = (&mut self.writes[range.clone()], &mut self.readers[range]);
        if cells == 1 {
            for (at, write) in writes.iter_mut().enumerate() {
                *write = Stamp(now + ((at as i64) << (PC_BITS + 1)));
            }
        } else {
            for (at, write) in writes.iter_mut().enumerate() {
                *write = Stamp(now + (((at / cells) as i64) << (PC_BITS + 1)));
            }
        }
        readers.fill(Stamp(0));
        true
    }

    /// Whether what was written in the cells of a row can't race with the row's lanes.
    fn wrote_themselves(&self, start: usize, cells: usize, lanes: usize, thread: usize) -> bool {
        let row = self.writes[start..start + lanes * cells].iter().enumerate();
        row.into_iter().all(|(at, &write)| self.is_harmless(write, thread + at / cells))
    }

    fn read_themselves(&self, start: usize, cells: usize, lanes: usize, thread: usize) -> bool {
        let range = start..start + lanes * cells;
        let row = self.readers[range.clone()].iter().zip(&self.others[range]).enumerate();
        row.into_iter().all(|(at, (&reader, &other))| {
            let thread = thread + at / cells;
            reader.0 < self.oldest() || self.is_harmless(reader, thread) && self.is_harmless(other, thread)
        })
    }

    /// Whether an earlier access is old, of the thread itself, or of its warp before the warp was synchronised.
    fn is_harmless(&self, earlier: Stamp, thread: usize) -> bool {
        earlier.0 < self.oldest()
            || earlier.thread() == thread && !earlier.is_under_way()
            || self.is_of_synchronised_warp(earlier, thread)
    }

    fn is_of_synchronised_warp(&self, earlier: Stamp, thread: usize) -> bool {
        let warp = thread / 32;
        earlier.thread() / 32 == warp && earlier.time() < self.warp_floors[warp]
    }

    /// Notes what one thread accesses, and tells an earlier access that it races with.
    pub(super) fn access(
        &mut self,
        offset: u64,
        bytes: u64,
        thread: usize,
        pc: usize,
        how: How,
        is_atomic: bool,
    ) -> Option<Unordered> {
        let me = Stamp(Stamp::new(self.now, thread, pc).0 | if is_atomic { ATOMIC as i64 } else { 0 });
        let mut found = None;
        for cell in self.cells(offset, bytes) {
            let (write, reader, other) = (self.writes[cell], self.readers[cell], self.others[cell]);
            let has_readers = reader.0 >= self.oldest();
            let races =
                |earlier: Stamp| !(is_atomic && earlier.is_atomic() || self.is_ordered(earlier, thread));
            if how != How::Write(false) && races(write) {
                found = found.or(Some(Unordered { earlier: write, wrote: true }));
            }
            if how != How::Read && has_readers {
                let reader = [reader, other].into_iter().find(|&reader| races(reader));
                found = found.or(reader.map(|earlier| Unordered { earlier, wrote: false }));
            }
            match how {
                How::Write(_) => {
                    self.unsettle(cell, cell);
                    (self.writes[cell], self.readers[cell]) = (me, Stamp(0));
                }
                How::Read if !has_readers => (self.readers[cell], self.others[cell]) = (me, Stamp(0)),
                How::Read if reader.thread() == thread => self.readers[cell] = me,
                How::Read => self.others[cell] = me,
            }
        }
        found
    }

    /// Notes that a thread begins to copy to shared memory, and tells an earlier access that the copy races with.
    pub(super) fn begin_copy(
        &mut self,
        offset: u64,
        bytes: u64,
        thread: usize,
        pc: usize,
    ) -> Option<Unordered> {
        let found = self.access(offset, bytes, thread, pc, How::Write(true), false);
        for cell in self.cells(offset, bytes) {
            self.writes[cell].0 |= UNDER_WAY;
            self.under_way += 1;
        }
        found
    }

    /// Notes that a thread has waited for a copy: it is as if the thread wrote now.
    pub(super) fn end_copy(&mut self, offset: u64, bytes: u64, thread: usize, pc: usize) {
        let now = Stamp::new(self.now, thread, pc);
        for cell in self.cells(offset, bytes) {
            let write = self.writes[cell];
            if write.is_under_way() && write.thread() == thread && write.pc() == pc {
                self.writes[cell] = now;
                self.under_way -= 1;
            }
        }
    }

    fn cells(&self, offset: u64, bytes: u64) -> RangeInclusive<usize> {
        (offset >> self.shift) as usize..=((offset + bytes - 1) >> self.shift) as usize
    }

    /// Whether `thread` has waited, itself or through others, for the thread that did `earlier`.
    fn is_ordered(&self, earlier: Stamp, thread: usize) -> bool {
        if self.is_harmless(earlier, thread) {
            return true;
        }
        let mut reached = Mask::of(earlier.thread());
        let mut is_published = false;
        let since = self.log.partition_point(|event| event.time <= earlier.time());
        self.log[since..].iter().any(|event| {
            match &event.what {
                Order::Barrier { from, to } => {
                    if !reached.and(from).is_empty() {
                        reached = reached.or(to);
                    }
                }
                Order::Warps(lanes) => {
                    for warp in 0..32 {
                        if reached.warp(warp) & lanes.warp(warp) != 0 {
                            reached.set_warp(warp, reached.warp(warp) | lanes.warp(warp));
                        }
                    }
                }
                Order::Fence(lanes) => {
                    let publishes = !reached.and(lanes).is_empty();
                    if is_published {
                        reached = reached.or(lanes);
                    }
                    is_published |= publishes;
                }
            }
            reached.has(thread)
        })
    }
}

vectorised! {
    #[inline(never)]
    /// Notes that a row of cells is read, `cells` of them by each lane.
    fn read_row(shadow: &mut Shadow, row: Range<usize>, cells: usize, thread: usize, pc: usize) -> bool = Shadow::read_row_body
}

vectorised! {
    #[inline(never)]
    /// Notes that a row of cells is written, `cells` of them by each lane.
    fn write_row(shadow: &mut Shadow, row: Range<usize>, cells: usize, thread: usize, pc: usize) -> bool = Shadow::write_row_body
}
