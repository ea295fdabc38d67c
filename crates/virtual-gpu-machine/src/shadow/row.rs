//! Accesses to rows of cells by contiguous threads.

use std::ops::Range;

use super::cells::Shadow;
use super::stamp::{PC_BITS, Stamp};
use crate::features::vectorized;
use crate::mask::WIDTH;

impl Shadow {
    /// Records that contiguous threads, starting with `thread`, read `unit` contiguous bytes each. If one of them may
    /// race, records nothing and returns false.
    #[inline(always)]
    pub(crate) fn read_row(
        &mut self,
        offset: u64,
        unit: u64,
        threads: usize,
        thread: usize,
        pc: usize,
    ) -> bool {
        let (start, cells) = ((offset >> self.shift) as usize, (unit >> self.shift) as usize);
        let range = start..start + threads * cells;
        self.is_settled(start, range.end - 1)
            || match threads {
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
        let (start, threads) = (range.start, range.len() / cells);
        let oldest = self.oldest();
        let mut recent = false;
        for write in &self.writes[range.clone()] {
            recent |= write.0 >= oldest;
        }
        if recent && !self.wrote_themselves(start, cells, threads, thread) {
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
            && threads == WIDTH
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

    /// Records that a chunk of threads, starting with `thread`, reads 32-bit values, and that a chunk of another warp, starting with
    /// `later`, then reads the same values. After that, no other read of them needs to be recorded until the next synchronization.
    /// If they were accessed since the last one, or if a value has several cells, records nothing and returns false.
    #[inline(always)]
    pub(crate) fn read_chunk_twice(&mut self, offset: u64, [thread, later]: [usize; 2], pc: usize) -> bool {
        let start = (offset >> self.shift) as usize;
        let (oldest, row) = (self.oldest(), start..start + WIDTH);
        let (Some(writes), Some(readers), Some(others)) = (
            self.writes[row.clone()].first_chunk::<WIDTH>(),
            self.readers[row.clone()].first_chunk_mut::<WIDTH>(),
            self.others[row].first_chunk_mut::<WIDTH>(),
        ) else {
            return false;
        };
        let mut is_recent = self.shift != 2;
        for at in 0..WIDTH {
            is_recent |= (writes[at].0 >= oldest) | (readers[at].0 >= oldest);
        }
        if is_recent {
            return false;
        }
        let [first, last] = [thread, later].map(|thread| Stamp::new(self.now, thread, pc).0);
        for at in 0..WIDTH {
            let offset = (at as i64) << (PC_BITS + 1);
            (readers[at], others[at]) = (Stamp(first + offset), Stamp(last + offset));
        }
        if start.is_multiple_of(WIDTH) {
            self.settled[start / WIDTH] = self.now;
        }
        true
    }

    /// Returns whether no read of these bytes needs to be recorded.
    #[inline(always)]
    pub(crate) fn is_row_settled(&self, offset: u64, bytes: u64) -> bool {
        let cells = self.cells(offset, bytes);
        self.is_settled(*cells.start(), *cells.end())
    }

    /// Returns whether no read of these cells needs to be recorded.
    #[inline(always)]
    fn is_settled(&self, first: usize, last: usize) -> bool {
        let (first, last) = (first / WIDTH, last / WIDTH);
        self.settled[first] == self.now
            && self.settled[last] == self.now
            && (last <= first + 1 || self.settled[first..last].iter().all(|&time| time == self.now))
    }

    /// Decides, after recording a read, whether further reads of the cells need to be recorded.
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

    /// Like [`Self::read_row`], for threads of one warp that all read the same bytes. `ends` are the lowest and the
    /// highest thread.
    #[inline(always)]
    pub(crate) fn read_same(&mut self, offset: u64, unit: u64, ends: [usize; 2], pc: usize) -> bool {
        let (start, cells) = ((offset >> self.shift) as usize, (unit >> self.shift) as usize);
        self.is_settled(start, start + cells - 1) || self.read_same_cells(start..start + cells, ends, pc)
    }

    #[inline(never)]
    fn read_same_cells(&mut self, cells: Range<usize>, [low, high]: [usize; 2], pc: usize) -> bool {
        let oldest = self.oldest();
        for cell in cells.clone() {
            let write = self.writes[cell];
            if write.0 >= oldest && !self.is_of_synchronized_warp(write, low) {
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

    /// Like [`Self::read_row`], for writes.
    #[inline(always)]
    pub(crate) fn write_row(
        &mut self,
        offset: u64,
        unit: u64,
        threads: usize,
        thread: usize,
        pc: usize,
    ) -> bool {
        let (start, cells) = ((offset >> self.shift) as usize, (unit >> self.shift) as usize);
        let range = start..start + threads * cells;
        match threads {
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
        let (start, threads) = (range.start, range.len() / cells);
        let oldest = self.oldest();
        let mut recent = false;
        for (write, reader) in self.writes[range.clone()].iter().zip(&self.readers[range.clone()]) {
            recent |= write.0 >= oldest || reader.0 >= oldest;
        }
        if recent
            && !(self.wrote_themselves(start, cells, threads, thread)
                && self.read_themselves(start, cells, threads, thread))
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

    /// Returns whether no earlier write to the cells of a row races with the row's threads.
    fn wrote_themselves(&self, start: usize, cells: usize, threads: usize, thread: usize) -> bool {
        let row = self.writes[start..start + threads * cells].iter().enumerate();
        row.into_iter().all(|(at, &write)| self.is_harmless(write, thread + at / cells))
    }

    /// Returns whether no earlier read of the cells of a row races with the row's threads.
    fn read_themselves(&self, start: usize, cells: usize, threads: usize, thread: usize) -> bool {
        let range = start..start + threads * cells;
        let row = self.readers[range.clone()].iter().zip(&self.others[range]).enumerate();
        row.into_iter().all(|(at, (&reader, &other))| {
            let thread = thread + at / cells;
            reader.0 < self.oldest() || self.is_harmless(reader, thread) && self.is_harmless(other, thread)
        })
    }
}

vectorized! {
    #[inline(never)]
    /// Records that a row of cells is read, `cells` of them by each thread.
    fn read_row(shadow: &mut Shadow, row: Range<usize>, cells: usize, thread: usize, pc: usize) -> bool = Shadow::read_row_body
}

vectorized! {
    #[inline(never)]
    /// Records that a row of cells is written, `cells` of them by each thread.
    fn write_row(shadow: &mut Shadow, row: Range<usize>, cells: usize, thread: usize, pc: usize) -> bool = Shadow::write_row_body
}

#[cfg(test)]
mod tests {
    use test_data::random::SplitMix64;

    use super::*;
    use crate::mask::Mask;
    use crate::order::Order;

    /// The cells of four chunks.
    const CELLS: usize = 4 * WIDTH;

    fn shadow(unit: u8) -> Shadow {
        let mut shadow = Shadow::default();
        shadow.prepare(CELLS * usize::from(unit), unit, false);
        shadow.start();
        shadow
    }

    fn state(shadow: &Shadow) -> (&[Stamp], Vec<(Stamp, Stamp)>, &[u32]) {
        // Without a recent first reader, the other one doesn't count.
        let readers = shadow.readers.iter().zip(&shadow.others).map(|(&reader, &other)| {
            if reader.0 < shadow.oldest() { (Stamp(0), Stamp(0)) } else { (reader, other) }
        });
        (&shadow.writes, readers.collect(), &shadow.settled)
    }

    #[test]
    fn two_reads_of_a_chunk_at_once_are_recorded_like_one_after_the_other() {
        let mut random = SplitMix64::new(0x5eed);
        let mut below = |limit: usize| (random.next_u64() % limit as u64) as usize;
        let everyone = Mask::first_threads(256);
        let (mut at_once, mut one_by_one) = (shadow(4), shadow(4));
        let mut counts = [0; 2];
        for _ in 0..20_000 {
            let (offset, thread) = (4 * below(CELLS - WIDTH + 1) as u64, below(4) * WIDTH);
            let later = thread + 2 * WIDTH * (1 + below(4));
            match below(8) {
                0 => {
                    for shadow in [&mut at_once, &mut one_by_one] {
                        shadow.order(Order::Barrier { from: everyone, to: everyone }, &everyone);
                    }
                }
                1 => {
                    let [one, other] = [&mut at_once, &mut one_by_one]
                        .map(|shadow| shadow.write_row(offset, 4, WIDTH, thread, 7));
                    assert_eq!(one, other);
                }
                _ => {
                    let is_new = at_once.read_chunk_twice(offset, [thread, later], 9);
                    counts[usize::from(is_new)] += 1;
                    let shadows =
                        if is_new { vec![&mut one_by_one] } else { vec![&mut at_once, &mut one_by_one] };
                    for shadow in shadows {
                        let first = shadow.read_row(offset, 4, WIDTH, thread, 9);
                        assert!(first || !is_new);
                        shadow.read_row(offset, 4, WIDTH, later, 9);
                    }
                }
            }
            assert_eq!(state(&at_once), state(&one_by_one));
        }
        assert!(counts.iter().all(|&count| count > 1000), "{counts:?}");
    }

    #[test]
    fn a_chunk_with_several_cells_for_each_value_is_not_recorded_at_once() {
        assert!(!shadow(1).read_chunk_twice(0, [0, 32], 9));
    }
}
