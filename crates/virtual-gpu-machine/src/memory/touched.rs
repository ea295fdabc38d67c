//! Records which bytes of which allocations a launch accessed.

use std::ops::Range;

use crate::fault::Access;
use virtual_gpu_core::memory::AllocationId;

/// The bytes of an allocation that a launch accessed in a particular way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The allocation, which may be another GPU's.
    pub allocation: AllocationId,
    /// Its address.
    pub base: u64,
    /// Ranges of byte offsets in the allocation, in ascending order; adjacent ranges are merged.
    pub ranges: Vec<Range<u64>>,
    /// How they were accessed.
    pub access: Access,
}

impl Touched {
    /// Adds ranges in ascending order.
    pub(crate) fn add(&mut self, ranges: Vec<Range<u64>>) {
        let mut all = std::mem::take(&mut self.ranges);
        all.extend(ranges);
        all.sort_unstable_by_key(|range| range.start);
        for range in all {
            match self.ranges.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => self.ranges.push(range),
            }
        }
    }
}

/// A set of an allocation's bytes: the contiguous range that grew last, and one bit for each byte outside it. Most
/// kernels access an allocation from one end to the other and never need the bits.
#[derive(Debug, Default)]
pub(crate) struct Bits {
    latest: Range<u64>,
    words: Vec<u64>,
    /// The words that may hold bits.
    used: Range<usize>,
}

impl Bits {
    #[inline(always)]
    pub(crate) fn mark(&mut self, start: u64, len: u64) {
        let end = start + len;
        if self.latest.start <= start && start <= self.latest.end {
            self.latest.end = self.latest.end.max(end);
            return;
        }
        let before = std::mem::replace(&mut self.latest, start..end);
        if !before.is_empty() {
            self.mark_bits(before.start, before.end - before.start);
        }
    }

    #[inline(always)]
    fn mark_bits(&mut self, start: u64, len: u64) {
        let end = start + len;
        let (first, last) = ((start / 64) as usize, (end / 64) as usize);
        let (head, tail) = (u64::MAX << (start % 64), !(u64::MAX << (end % 64)));
        if last - first <= 1
            && self.used.start <= first
            && last < self.used.end
            && let Some([one, two]) = self.words.get_disjoint_mut([first, first + 1]).ok()
        {
            // The common case: about 64 bytes, inside the range of words that may hold bits.
            *one |= head & if first == last { tail } else { u64::MAX };
            *two |= if first == last { 0 } else { tail };
            return;
        }
        self.mark_any(start, len);
    }

    fn mark_any(&mut self, start: u64, len: u64) {
        let end = start + len;
        let (first, last) = ((start / 64) as usize, (end / 64) as usize);
        if self.words.len() <= last + 1 {
            self.words.resize((last + 2).next_power_of_two(), 0);
        }
        let (head, tail) = (u64::MAX << (start % 64), !(u64::MAX << (end % 64)));
        if self.used.is_empty() {
            self.used = first..last + 1;
        }
        self.used = self.used.start.min(first)..self.used.end.max(last + 1);
        if first == last {
            self.words[first] |= head & tail;
            return;
        }
        self.words[first] |= head;
        self.words[first + 1..last].fill(u64::MAX);
        self.words[last] |= tail;
    }

    /// Returns how many of the bytes are in the set.
    #[inline]
    fn coverage(&self, start: u64, len: u64) -> Coverage {
        let (end, latest) = (start + len, &self.latest);
        if latest.start <= start && end <= latest.end {
            return Coverage::All;
        }
        let in_latest = latest.start.max(start) < latest.end.min(end);
        let of_bits = if self.used.is_empty() { Coverage::None } else { self.coverage_of_bits(start, end) };
        match of_bits {
            Coverage::None if in_latest => Coverage::Part,
            of_bits => of_bits,
        }
    }

    fn coverage_of_bits(&self, start: u64, end: u64) -> Coverage {
        let (mut has_any, mut has_all) = (false, true);
        for word in (start / 64) as usize..=((end - 1) / 64) as usize {
            let first = word as u64 * 64;
            let head = u64::MAX << start.saturating_sub(first);
            let mask = head & u64::MAX >> (first + 64).saturating_sub(end);
            let found = if self.used.contains(&word) { self.words[word] & mask } else { 0 };
            has_any |= found != 0;
            has_all &= found == mask;
        }
        match (has_any, has_all) {
            (_, true) => Coverage::All,
            (true, false) => Coverage::Part,
            (false, false) => Coverage::None,
        }
    }

    /// Calls `found` with each run of set bits and clears the bits.
    fn drain(&mut self, mut found: impl FnMut(Range<u64>)) {
        let latest = std::mem::take(&mut self.latest);
        if !latest.is_empty() {
            if self.used.is_empty() {
                return found(latest);
            }
            self.mark_bits(latest.start, latest.end - latest.start);
        }
        let mut open: Option<u64> = None;
        for at in std::mem::take(&mut self.used) {
            let mut word = std::mem::take(&mut self.words[at]);
            let base = at as u64 * 64;
            if word == u64::MAX && open.is_some() {
                continue;
            }
            let mut bit = 0;
            while bit < 64 {
                let same = if open.is_some() { word.trailing_ones() } else { word.trailing_zeros() };
                let same = same.min(64 - bit);
                bit += same;
                word = word.checked_shr(same).unwrap_or(0);
                if bit == 64 {
                    break;
                }
                let at = base + u64::from(bit);
                match open.take() {
                    Some(start) => found(start..at),
                    None => open = Some(at),
                }
            }
            // Every word after a run's last word is examined too, so only a run at the very end can still be open.
        }
        if let Some(start) = open {
            found(start..self.words.len() as u64 * 64);
        }
    }
}

/// How many of some bytes are in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coverage {
    None,
    Part,
    All,
}

/// The bytes of an allocation that a launch has written.
#[derive(Clone, Copy)]
pub(crate) struct Changed<'r> {
    of_block: &'r Bits,
    of_launch: Option<&'r Bits>,
}

impl Changed<'_> {
    /// Returns how many of `len` bytes, starting at offset `start`, have been written. Bytes of which the running block
    /// wrote some, and the blocks before it the others, count as `Part`.
    #[inline]
    pub(crate) fn coverage(self, start: u64, len: u64) -> Coverage {
        let of_block = self.of_block.coverage(start, len);
        let of_launch = self.of_launch.map_or(Coverage::None, |bits| bits.coverage(start, len));
        match (of_block, of_launch) {
            (Coverage::All, _) | (_, Coverage::All) => Coverage::All,
            (Coverage::None, Coverage::None) => Coverage::None,
            _ => Coverage::Part,
        }
    }
}

/// The bytes of the allocation in a slot that a launch accessed in a particular way: offsets in ascending order, with
/// adjacent ranges merged.
pub(crate) struct Accessed {
    pub(crate) slot: usize,
    pub(crate) access: Access,
    pub(crate) ranges: Vec<Range<u64>>,
}

/// What a launch accessed, by allocation slot and kind of access.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// What the running block has accessed.
    of_block: Slots,
    /// What the blocks before it have accessed.
    of_launch: Slots,
}

/// Bytes by allocation slot and kind of access.
#[derive(Debug, Default)]
struct Slots {
    bits: Vec<[Bits; 3]>,
    used: Vec<usize>,
    is_used: Vec<bool>,
}

const KINDS: [Access; 3] = [Access::Read, Access::Write, Access::Atomic];

impl Record {
    /// Records an access to `len` bytes, starting at offset `start`, of the allocation in `slot`.
    pub(crate) fn mark(&mut self, slot: usize, start: u64, len: u64, access: Access) {
        self.bits(slot, access).mark(start, len);
    }

    /// Returns the record of what the running block accessed in the allocation in `slot`.
    #[inline]
    pub(crate) fn bits(&mut self, slot: usize, access: Access) -> &mut Bits {
        self.of_block.bits(slot, access)
    }

    /// Returns the record of what the running block read in the allocation in `slot`, and what the launch has written
    /// there.
    #[inline]
    pub(crate) fn reading(&mut self, slot: usize) -> (&mut Bits, Changed<'_>) {
        let of_launch = self.of_launch.bits.get(slot).map(|bits| &bits[Access::Write as usize]);
        let [read, write, _] = self.of_block.all_bits(slot);
        (read, Changed { of_block: write, of_launch })
    }

    /// Adds what other blocks of the launch accessed.
    pub(crate) fn add(&mut self, accessed: Accessed) {
        let bits = self.of_launch.bits(accessed.slot, accessed.access);
        accessed.ranges.iter().for_each(|range| bits.mark(range.start, range.end - range.start));
    }

    /// Returns whether the launch has written a byte of the allocation in `slot`, other than by an atomic.
    pub(crate) fn has_written(&self, slot: usize, at: u64) -> bool {
        self.all_bits(slot).any(|bits| bits[Access::Write as usize].coverage(at, 1) == Coverage::All)
    }

    /// Returns whether the launch has changed any of `len` bytes, starting at offset `start`, of the allocation in
    /// `slot`.
    pub(crate) fn has_changed(&self, slot: usize, start: u64, len: u64) -> bool {
        let mut changed =
            self.all_bits(slot).flat_map(|bits| [Access::Write, Access::Atomic].map(|it| &bits[it as usize]));
        changed.any(|bits| bits.coverage(start, len) != Coverage::None)
    }

    /// Returns what the running block accessed in the allocation in `slot`, and what the blocks before it accessed there.
    fn all_bits(&self, slot: usize) -> impl Iterator<Item = &[Bits; 3]> {
        [&self.of_block, &self.of_launch].into_iter().filter_map(move |slots| slots.bits.get(slot))
    }

    /// Adds what the running block accessed to what the launch accessed. Returns how many bytes it read plus how many
    /// it wrote, each byte once, without atomics.
    pub(crate) fn end_block(&mut self) -> u64 {
        let Self { of_block, of_launch } = self;
        let mut bytes = 0;
        of_block.drain(|slot, access, range| {
            let len = range.end - range.start;
            bytes += if access == Access::Atomic { 0 } else { len };
            of_launch.bits(slot, access).mark(range.start, len);
        });
        bytes
    }

    /// Forgets what the launch accessed in the allocation in `slot`, because it frees the allocation.
    pub(crate) fn forget(&mut self, slot: usize) {
        for slots in [&mut self.of_block, &mut self.of_launch] {
            if let Some(bits) = slots.bits.get_mut(slot) {
                bits.iter_mut().for_each(|bits| bits.drain(|_| {}));
            }
        }
    }

    /// Returns what the launch accessed, ordered by slot and kind of access, and clears the record.
    pub(crate) fn drain(&mut self) -> Vec<Accessed> {
        self.end_block();
        self.of_launch.used.sort_unstable();
        let mut all: Vec<Accessed> = Vec::new();
        self.of_launch.drain(|slot, access, range| match all.last_mut() {
            Some(last) if (last.slot, last.access) == (slot, access) => last.ranges.push(range),
            _ => all.push(Accessed { slot, access, ranges: vec![range] }),
        });
        all
    }
}

impl Slots {
    #[inline]
    fn bits(&mut self, slot: usize, access: Access) -> &mut Bits {
        &mut self.all_bits(slot)[access as usize]
    }

    /// Returns the bits of an allocation by kind of access.
    #[inline]
    fn all_bits(&mut self, slot: usize) -> &mut [Bits; 3] {
        if slot >= self.bits.len() {
            self.bits.resize_with(slot + 1, Default::default);
            self.is_used.resize(slot + 1, false);
        }
        if !self.is_used[slot] {
            self.is_used[slot] = true;
            self.used.push(slot);
        }
        &mut self.bits[slot]
    }

    /// Calls `found` with each run of bytes and clears them.
    fn drain(&mut self, mut found: impl FnMut(usize, Access, Range<u64>)) {
        for slot in self.used.drain(..) {
            self.is_used[slot] = false;
            for access in KINDS {
                self.bits[slot][access as usize].drain(|range| found(slot, access, range));
            }
        }
    }
}
