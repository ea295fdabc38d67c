//! Register files: each register is an array with one value per thread of a block, in chunks of [`WIDTH`].

use std::hint::select_unpredictable;

use crate::mask::{FULL, Mask, WIDTH, lanes_of};
use virtual_gpu_ptx::instruction::{Condition, Predicate, Slot};

/// A register for the threads in one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
pub(crate) struct Chunk<T>(pub(crate) [T; WIDTH]);

/// A 32-bit register for one chunk.
pub(crate) type Words = Chunk<u32>;

/// A 64-bit register for one chunk.
pub(crate) type Longs = Chunk<u64>;

impl<T: Copy + Default> Chunk<T> {
    #[inline(always)]
    pub(crate) fn zero() -> Self {
        Self([T::default(); WIDTH])
    }

    /// Returns a chunk with the result of `value` for each index. `std::array::from_fn` does the same but gives the
    /// compiler five times as much code to optimize.
    #[inline(always)]
    pub(crate) fn of(value: impl Fn(usize) -> T) -> Self {
        let mut chunk = Self::zero();
        let mut i = 0;
        while i < WIDTH {
            chunk.0[i] = value(i);
            i += 1;
        }
        chunk
    }

    /// Returns a chunk with the result of `f` for each value.
    #[inline(always)]
    pub(crate) fn map<U: Copy + Default>(&self, f: impl Fn(T) -> U) -> Chunk<U> {
        Chunk::of(|i| f(self.0[i]))
    }

    /// Copies the values for the threads in `mask` from `from`.
    #[inline(always)]
    pub(crate) fn take(&mut self, from: Self, mask: u16) {
        if mask == FULL {
            *self = from;
            return;
        }
        for i in 0..WIDTH {
            // Because there is no branch, the compiler can blend vectors.
            self.0[i] = select_unpredictable(mask & 1 << i != 0, from.0[i], self.0[i]);
        }
    }
}

/// Where a register's chunks are: one after another, or, if the register is uniform, all in the same place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    base: usize,
    step: usize,
}

impl Span {
    #[inline(always)]
    pub(crate) fn at(self, chunk: usize) -> usize {
        self.base + chunk * self.step
    }
}

/// A block's registers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Files {
    pub(crate) words: Vec<Words>,
    pub(crate) longs: Vec<Longs>,
    pub(crate) predicates: Vec<u16>,
    pub(crate) chunks: usize,
    uniform_words: usize,
    uniform_longs: usize,
}

impl Files {
    /// Makes room for a kernel's registers and sets them to zero, so that values from an earlier kernel never affect a
    /// result.
    pub(crate) fn resize(&mut self, registers: &virtual_gpu_ptx::Registers, threads: usize) {
        // Round up to whole warps, so that a warp's two chunks always exist.
        self.chunks = threads.next_multiple_of(32) / WIDTH;
        self.uniform_words = registers.uniform_words.len();
        self.uniform_longs = registers.uniform_longs.len();
        let words = self.uniform_words + registers.words as usize * self.chunks;
        let longs = self.uniform_longs + registers.longs as usize * self.chunks;
        self.words.clear();
        self.longs.clear();
        self.predicates.clear();
        self.words.resize(words, Words::zero());
        self.longs.resize(longs, Longs::zero());
        self.predicates.resize(registers.predicates as usize * self.chunks, 0);
    }

    #[inline(always)]
    pub(crate) fn word(&self, slot: Slot) -> Span {
        match slot.is_uniform() {
            true => Span { base: slot.index(), step: 0 },
            false => Span { base: self.uniform_words + slot.index() * self.chunks, step: 1 },
        }
    }

    #[inline(always)]
    pub(crate) fn long(&self, slot: Slot) -> Span {
        match slot.is_uniform() {
            true => Span { base: slot.index(), step: 0 },
            false => Span { base: self.uniform_longs + slot.index() * self.chunks, step: 1 },
        }
    }

    pub(crate) fn word_of(&self, slot: Slot, thread: usize) -> u32 {
        self.words[self.word(slot).at(thread / WIDTH)].0[thread % WIDTH]
    }

    pub(crate) fn long_of(&self, slot: Slot, thread: usize) -> u64 {
        self.longs[self.long(slot).at(thread / WIDTH)].0[thread % WIDTH]
    }

    pub(crate) fn set_word(&mut self, slot: Slot, thread: usize, value: u32) {
        let at = self.word(slot).at(thread / WIDTH);
        self.words[at].0[thread % WIDTH] = value;
    }

    pub(crate) fn set_long(&mut self, slot: Slot, thread: usize, value: u64) {
        let at = self.long(slot).at(thread / WIDTH);
        self.longs[at].0[thread % WIDTH] = value;
    }

    /// Sets a register in the given lanes of a warp; `value` is called with each lane.
    pub(crate) fn set_words_of_warp(
        &mut self,
        slot: Slot,
        warp: usize,
        lanes: u32,
        value: impl Fn(usize) -> u32,
    ) {
        for lane in lanes_of(lanes) {
            self.set_word(slot, warp * 32 + lane, value(lane));
        }
    }

    #[inline(always)]
    pub(crate) fn predicate(&self, predicate: Predicate) -> usize {
        predicate.0 as usize * self.chunks
    }

    /// Returns the threads in a chunk for which a condition holds.
    #[inline(always)]
    pub(crate) fn condition(&self, condition: Condition, chunk: usize) -> u16 {
        let bits = self.predicates[self.predicate(condition.predicate) + chunk];
        if condition.negated { !bits } else { bits }
    }

    /// Returns the threads in `mask` for which a condition holds.
    pub(crate) fn where_true(&self, condition: Condition, mask: &Mask) -> Mask {
        let mut found = *mask;
        for (chunk, bits) in found.0.iter_mut().enumerate().take(self.chunks) {
            *bits &= self.condition(condition, chunk);
        }
        found
    }

    /// Sets a predicate in the threads in `mask`.
    #[inline(always)]
    pub(crate) fn set_predicate(&mut self, predicate: Predicate, chunk: usize, bits: u16, mask: u16) {
        let at = self.predicate(predicate) + chunk;
        self.predicates[at] = self.predicates[at] & !mask | bits & mask;
    }
}
