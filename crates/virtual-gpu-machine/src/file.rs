//! Register files: each register is an array over a block's lanes, in chunks of [`WIDTH`].

use virtual_gpu_ptx::instruction::{Condition, Predicate, Slot};

/// Lanes of one chunk: a cache line of 32-bit values.
pub(super) const WIDTH: usize = 16;

/// Threads of a block, at most.
pub(super) const MAX_LANES: usize = 1024;

/// Chunks of a block, at most.
pub(super) const MAX_CHUNKS: usize = MAX_LANES / WIDTH;

/// All lanes of a chunk.
pub(super) const FULL: u16 = u16::MAX;

/// Sixteen lanes of a 32-bit register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
pub(super) struct Words(pub(super) [u32; WIDTH]);

/// Sixteen lanes of a 64-bit register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
pub(super) struct Longs(pub(super) [u64; WIDTH]);

impl Words {
    pub(super) const ZERO: Self = Self([0; WIDTH]);

    /// Takes the lanes of `mask` from `from`.
    #[inline(always)]
    pub(super) fn take(&mut self, from: Self, mask: u16) {
        if mask == FULL {
            *self = from;
            return;
        }
        for lane in 0..WIDTH {
            self.0[lane] = if mask & 1 << lane != 0 { from.0[lane] } else { self.0[lane] };
        }
    }
}

impl Longs {
    pub(super) const ZERO: Self = Self([0; WIDTH]);

    /// Takes the lanes of `mask` from `from`.
    #[inline(always)]
    pub(super) fn take(&mut self, from: Self, mask: u16) {
        if mask == FULL {
            *self = from;
            return;
        }
        for lane in 0..WIDTH {
            self.0[lane] = if mask & 1 << lane != 0 { from.0[lane] } else { self.0[lane] };
        }
    }
}

/// Which lanes of a block, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mask(pub(super) [u16; MAX_CHUNKS]);

impl Default for Mask {
    fn default() -> Self {
        Self::NONE
    }
}

impl Mask {
    pub(super) const NONE: Self = Self([0; MAX_CHUNKS]);

    /// One lane.
    pub(super) fn of(lane: usize) -> Self {
        let mut mask = Self::NONE;
        mask.0[lane / WIDTH] = 1 << (lane % WIDTH);
        mask
    }

    pub(super) fn has(&self, lane: usize) -> bool {
        self.0[lane / WIDTH] & 1 << (lane % WIDTH) != 0
    }

    pub(super) fn first_lanes(lanes: usize) -> Self {
        let mut mask = Self::NONE;
        for (chunk, bits) in mask.0.iter_mut().enumerate() {
            let here = lanes.saturating_sub(chunk * WIDTH).min(WIDTH);
            *bits = ((1_u32 << here) - 1) as u16;
        }
        mask
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().fold(0, |all, &bits| all | bits) == 0
    }

    pub(super) fn count(&self) -> u64 {
        // At most `MAX_LANES`: sums as narrow as the counts are quicker.
        self.0.iter().map(|bits| bits.count_ones() as u16).sum::<u16>().into()
    }

    pub(super) fn and(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(&other.0).for_each(|(bits, other)| *bits &= other);
        self
    }

    pub(super) fn or(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(&other.0).for_each(|(bits, other)| *bits |= other);
        self
    }

    pub(super) fn without(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(&other.0).for_each(|(bits, other)| *bits &= !other);
        self
    }

    /// The lanes, lowest first.
    pub(super) fn lanes(&self) -> Lanes<'_> {
        Lanes { chunks: &self.0, chunk: 0, rest: self.0[0] }
    }

    pub(super) fn first(&self) -> Option<usize> {
        self.lanes().next()
    }

    /// The 32 lanes of a warp.
    pub(super) fn warp(&self, warp: usize) -> u32 {
        u32::from(self.0[2 * warp]) | u32::from(self.0[2 * warp + 1]) << 16
    }

    pub(super) fn set_warp(&mut self, warp: usize, lanes: u32) {
        self.0[2 * warp] = lanes as u16;
        self.0[2 * warp + 1] = (lanes >> 16) as u16;
    }
}

/// The lanes of a mask.
pub(super) struct Lanes<'m> {
    chunks: &'m [u16; MAX_CHUNKS],
    chunk: usize,
    rest: u16,
}

impl Iterator for Lanes<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while self.rest == 0 {
            self.chunk += 1;
            self.rest = *self.chunks.get(self.chunk)?;
        }
        let lane = self.rest.trailing_zeros() as usize;
        self.rest &= self.rest - 1;
        Some(self.chunk * WIDTH + lane)
    }
}

/// The set bits of a chunk's mask, lowest first.
pub(super) fn bits(mut mask: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (lane < WIDTH).then_some(lane)
    })
}

/// Where a register's chunks lie: one after the other, or, if uniform, all in one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    base: usize,
    step: usize,
}

impl Span {
    #[inline(always)]
    pub(super) fn at(self, chunk: usize) -> usize {
        self.base + chunk * self.step
    }
}

/// A block's registers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Files {
    pub(super) words: Vec<Words>,
    pub(super) longs: Vec<Longs>,
    pub(super) predicates: Vec<u16>,
    pub(super) chunks: usize,
    uniform_words: usize,
    uniform_longs: usize,
}

impl Files {
    /// Makes room for a kernel's registers, all zero: what a kernel before left there shows in no result.
    pub(super) fn resize(&mut self, registers: &virtual_gpu_ptx::Registers, lanes: usize) {
        // Whole warps, so that a warp's two chunks always exist.
        self.chunks = lanes.next_multiple_of(32) / WIDTH;
        self.uniform_words = registers.uniform_words.len();
        self.uniform_longs = registers.uniform_longs.len();
        let words = self.uniform_words + registers.words as usize * self.chunks;
        let longs = self.uniform_longs + registers.longs as usize * self.chunks;
        self.words.clear();
        self.longs.clear();
        self.predicates.clear();
        self.words.resize(words, Words::ZERO);
        self.longs.resize(longs, Longs::ZERO);
        self.predicates.resize(registers.predicates as usize * self.chunks, 0);
    }

    #[inline(always)]
    pub(super) fn word(&self, slot: Slot) -> Span {
        match slot.is_uniform() {
            true => Span { base: slot.index(), step: 0 },
            false => Span { base: self.uniform_words + slot.index() * self.chunks, step: 1 },
        }
    }

    #[inline(always)]
    pub(super) fn long(&self, slot: Slot) -> Span {
        match slot.is_uniform() {
            true => Span { base: slot.index(), step: 0 },
            false => Span { base: self.uniform_longs + slot.index() * self.chunks, step: 1 },
        }
    }

    pub(super) fn word_of(&self, slot: Slot, lane: usize) -> u32 {
        self.words[self.word(slot).at(lane / WIDTH)].0[lane % WIDTH]
    }

    pub(super) fn long_of(&self, slot: Slot, lane: usize) -> u64 {
        self.longs[self.long(slot).at(lane / WIDTH)].0[lane % WIDTH]
    }

    pub(super) fn set_word(&mut self, slot: Slot, lane: usize, value: u32) {
        let at = self.word(slot).at(lane / WIDTH);
        self.words[at].0[lane % WIDTH] = value;
    }

    pub(super) fn set_long(&mut self, slot: Slot, lane: usize, value: u64) {
        let at = self.long(slot).at(lane / WIDTH);
        self.longs[at].0[lane % WIDTH] = value;
    }

    #[inline(always)]
    pub(super) fn predicate(&self, predicate: Predicate) -> usize {
        predicate.0 as usize * self.chunks
    }

    /// The lanes of a chunk for which a condition holds.
    #[inline(always)]
    pub(super) fn condition(&self, condition: Condition, chunk: usize) -> u16 {
        let bits = self.predicates[self.predicate(condition.predicate) + chunk];
        if condition.negated { !bits } else { bits }
    }

    /// Of `mask`, the lanes for which a condition holds.
    pub(super) fn where_true(&self, condition: Condition, mask: &Mask) -> Mask {
        let mut found = *mask;
        for (chunk, bits) in found.0.iter_mut().enumerate().take(self.chunks) {
            *bits &= self.condition(condition, chunk);
        }
        found
    }

    /// Sets a predicate in the lanes of `mask`.
    #[inline(always)]
    pub(super) fn set_predicate(&mut self, predicate: Predicate, chunk: usize, bits: u16, mask: u16) {
        let at = self.predicate(predicate) + chunk;
        self.predicates[at] = self.predicates[at] & !mask | bits & mask;
    }
}
