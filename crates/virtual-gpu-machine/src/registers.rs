//! Register files: each register is an array with one value per thread of a block, in chunks of [`WIDTH`].

use std::hint::select_unpredictable;
use std::ops::Range;

use crate::mask::{FULL, Mask, WIDTH, lanes_of};
use virtual_gpu_ptx::instruction::{Condition, Predicate, Slot, Value};

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

/// Where a register's chunks are: one after another, or, if all threads have the same value, all in the same place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    base: usize,
    step: usize,
}

impl Span {
    /// Returns the place of a single chunk.
    pub(crate) fn of(chunk: usize) -> Self {
        Self { base: chunk, step: 0 }
    }

    #[inline(always)]
    pub(crate) fn at(self, chunk: usize) -> usize {
        self.base + chunk * self.step
    }

    /// Returns where these chunks are, if the threads' values may differ.
    #[inline(always)]
    pub(crate) fn range(self, chunks: Range<usize>) -> Range<usize> {
        self.base + chunks.start..self.base + chunks.end
    }
}

/// How the values of a 64-bit register change from thread to thread, as those of an address do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// It has not been determined since the register was written.
    Unknown,
    /// Each thread's value is 4 more than that of the thread before it.
    Row,
    /// The same within each chunk.
    Rows,
    /// In each chunk, all values are the same.
    Same,
    Other,
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
    /// For each register, whether all threads have the same value. Then only its first chunk is valid.
    same_words: Vec<bool>,
    same_longs: Vec<bool>,
    shapes: Vec<Shape>,
}

/// The chunks to compute if all threads of a block compute the same value.
const ONCE: &[u16] = &[FULL];

/// Returns how the values in a register's chunks change from thread to thread.
#[inline(always)]
fn shape_of(row: &[Longs]) -> Shape {
    let first = row[0].0[0];
    let step = row[0].0[1].wrapping_sub(first);
    if step != 0 && step != 4 {
        return Shape::Other;
    }
    // The bits in which values differ from the pattern that the second value suggests.
    let mut within = [0; WIDTH];
    let mut across = 0;
    let mut expected = first;
    for chunk in row {
        let start = chunk.0[0];
        for (i, (apart, value)) in within.iter_mut().zip(chunk.0).enumerate() {
            *apart |= value ^ start.wrapping_add(i as u64 * step);
        }
        across |= start ^ expected;
        expected = expected.wrapping_add(4 * WIDTH as u64);
    }
    match (within.iter().fold(0, |all, bits| all | bits), step, across) {
        (0, 0, _) => Shape::Same,
        (0, _, 0) => Shape::Row,
        (0, ..) => Shape::Rows,
        _ => Shape::Other,
    }
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
        self.same_words.clear();
        self.same_longs.clear();
        self.same_words.resize(registers.words as usize, false);
        self.same_longs.resize(registers.longs as usize, false);
        self.shapes.clear();
        self.shapes.resize(registers.longs as usize, Shape::Unknown);
    }

    #[inline(always)]
    pub(crate) fn word(&self, slot: Slot) -> Span {
        match slot.is_uniform() {
            true => Span { base: slot.index(), step: 0 },
            false => Span {
                base: self.uniform_words + slot.index() * self.chunks,
                step: usize::from(!self.same_words[slot.index()]),
            },
        }
    }

    #[inline(always)]
    pub(crate) fn long(&self, slot: Slot) -> Span {
        match slot.is_uniform() {
            true => Span { base: slot.index(), step: 0 },
            false => Span {
                base: self.uniform_longs + slot.index() * self.chunks,
                step: usize::from(!self.same_longs[slot.index()]),
            },
        }
    }

    /// Returns whether all threads are known to have the same value.
    #[inline(always)]
    pub(crate) fn is_same_word(&self, slot: Slot) -> bool {
        slot.is_uniform() || self.same_words[slot.index()]
    }

    /// Like [`Self::is_same_word`], for a 64-bit register.
    #[inline(always)]
    pub(crate) fn is_same_long(&self, slot: Slot) -> bool {
        slot.is_uniform() || self.same_longs[slot.index()]
    }

    /// Like [`Self::is_same_word`], for any register.
    #[inline(always)]
    pub(crate) fn is_same(&self, value: Value) -> bool {
        match value {
            Value::Word(slot) => self.is_same_word(slot),
            Value::Long(slot) => self.is_same_long(slot),
        }
    }

    /// Prepares a register for a result of the threads in `mask`, and returns the chunks to compute. If `is_same`, all
    /// threads of the block take part and compute the same result, which is then computed once.
    #[inline(always)]
    pub(crate) fn prepare_words<'m>(&mut self, d: Slot, mask: &'m [u16], is_same: bool) -> &'m [u16] {
        if is_same {
            self.same_words[d.index()] = true;
            return ONCE;
        }
        self.spread_word(d);
        mask
    }

    /// Like [`Self::prepare_words`], for a 64-bit register.
    #[inline(always)]
    pub(crate) fn prepare_longs<'m>(&mut self, d: Slot, mask: &'m [u16], is_same: bool) -> &'m [u16] {
        if is_same {
            self.same_longs[d.index()] = true;
            return ONCE;
        }
        self.spread_long(d);
        self.shapes[d.index()] = Shape::Unknown;
        mask
    }

    /// Like [`Self::prepare_words`], for any register.
    #[inline(always)]
    pub(crate) fn prepare_values<'m>(&mut self, d: Value, mask: &'m [u16], is_same: bool) -> &'m [u16] {
        match d {
            Value::Word(d) => self.prepare_words(d, mask, is_same),
            Value::Long(d) => self.prepare_longs(d, mask, is_same),
        }
    }

    /// Stores a register's value for each thread, because the values may soon differ.
    #[inline(always)]
    fn spread_word(&mut self, slot: Slot) {
        if std::mem::take(&mut self.same_words[slot.index()]) {
            let start = self.word(slot).base;
            let value = self.words[start];
            self.words[start..start + self.chunks].fill(value);
        }
    }

    /// Like [`Self::spread_word`], for a 64-bit register.
    #[inline(always)]
    fn spread_long(&mut self, slot: Slot) {
        if std::mem::take(&mut self.same_longs[slot.index()]) {
            let start = self.long(slot).base;
            let value = self.longs[start];
            self.longs[start..start + self.chunks].fill(value);
        }
    }

    /// Stores each register's value for each thread, so that the same values are stored the same way.
    pub(crate) fn spread(&mut self) {
        for index in 0..self.same_words.len() {
            self.spread_word(Slot::register(index as u32));
        }
        for index in 0..self.same_longs.len() {
            self.spread_long(Slot::register(index as u32));
        }
        self.shapes.fill(Shape::Unknown);
    }

    /// Returns how a register's values change from thread to thread.
    #[inline(always)]
    pub(crate) fn shape(&mut self, slot: Slot) -> Shape {
        if self.is_same_long(slot) {
            return Shape::Same;
        }
        if self.shapes[slot.index()] == Shape::Unknown {
            let at = self.long(slot).range(0..self.chunks);
            self.shapes[slot.index()] = shape_of(&self.longs[at]);
        }
        self.shapes[slot.index()]
    }

    pub(crate) fn word_of(&self, slot: Slot, thread: usize) -> u32 {
        self.words[self.word(slot).at(thread / WIDTH)].0[thread % WIDTH]
    }

    pub(crate) fn long_of(&self, slot: Slot, thread: usize) -> u64 {
        self.longs[self.long(slot).at(thread / WIDTH)].0[thread % WIDTH]
    }

    pub(crate) fn set_word(&mut self, slot: Slot, thread: usize, value: u32) {
        self.spread_word(slot);
        let at = self.word(slot).at(thread / WIDTH);
        self.words[at].0[thread % WIDTH] = value;
    }

    pub(crate) fn set_long(&mut self, slot: Slot, thread: usize, value: u64) {
        self.spread_long(slot);
        self.shapes[slot.index()] = Shape::Unknown;
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
        let at = self.predicate(condition.predicate);
        let flip = if condition.negated { FULL } else { 0 };
        for (bits, holds) in found.0.iter_mut().zip(&self.predicates[at..at + self.chunks]) {
            *bits &= holds ^ flip;
        }
        found
    }

    /// Sets a predicate in the threads in `mask`, from the first chunk on.
    #[inline(always)]
    pub(crate) fn set_predicates(&mut self, predicate: Predicate, bits: &[u16], mask: &[u16]) {
        let at = self.predicate(predicate);
        for (old, (bits, active)) in
            self.predicates[at..at + mask.len()].iter_mut().zip(bits.iter().zip(mask))
        {
            *old = *old & !active | bits & active;
        }
    }

    /// Sets a predicate in the threads in `mask` of a chunk.
    #[inline(always)]
    pub(crate) fn set_predicate(&mut self, predicate: Predicate, chunk: usize, bits: u16, mask: u16) {
        let at = self.predicate(predicate) + chunk;
        self.predicates[at] = self.predicates[at] & !mask | bits & mask;
    }
}
