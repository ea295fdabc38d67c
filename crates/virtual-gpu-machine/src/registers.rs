//! Register files: each register is an array with one value per thread of a block, in chunks of [`WIDTH`].

use std::hint::select_unpredictable;
use std::ops::{Deref, DerefMut, Range};

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

/// What is known about how the values of a register change from thread to thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Shape {
    /// It has not been determined since the register was written.
    #[default]
    Unknown,
    /// All threads of the block have the same value. Only the first chunk is valid.
    Same,
    /// In each chunk, all values are the same.
    SameInChunks,
    /// Each thread's value is 4 more than that of the thread before it, as addresses often are.
    Row,
    /// The same within each chunk.
    Rows,
    Other,
}

/// A block's registers of one size. It dereferences to their chunks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct File<T> {
    chunks: Vec<Chunk<T>>,
    /// The number of registers, at the start, that have the same value in all threads of the launch: one chunk each.
    uniform: usize,
    /// The number of chunks of each other register.
    chunks_each: usize,
    /// What is known about each of the other registers.
    shapes: Vec<Shape>,
}

impl<T> Deref for File<T> {
    type Target = [Chunk<T>];

    #[inline(always)]
    fn deref(&self) -> &[Chunk<T>] {
        &self.chunks
    }
}

impl<T> DerefMut for File<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [Chunk<T>] {
        &mut self.chunks
    }
}

/// A block's registers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Files {
    pub(crate) words: File<u32>,
    pub(crate) longs: File<u64>,
    pub(crate) predicates: Vec<u16>,
    pub(crate) chunks: usize,
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
        (0, 0, _) => Shape::SameInChunks,
        (0, _, 0) => Shape::Row,
        (0, ..) => Shape::Rows,
        _ => Shape::Other,
    }
}

impl<T: Copy + Default> File<T> {
    /// Makes room for registers and sets them to zero.
    fn resize(&mut self, uniform: usize, registers: usize, chunks_each: usize) {
        (self.uniform, self.chunks_each) = (uniform, chunks_each);
        self.chunks.clear();
        self.chunks.resize(uniform + registers * chunks_each, Chunk::zero());
        self.shapes.clear();
        self.shapes.resize(registers, Shape::Unknown);
    }

    #[inline(always)]
    fn span(&self, slot: Slot) -> Span {
        match slot.is_uniform() {
            true => Span { base: slot.index(), step: 0 },
            false => Span {
                base: self.uniform + slot.index() * self.chunks_each,
                step: usize::from(self.shapes[slot.index()] != Shape::Same),
            },
        }
    }

    /// Returns whether all threads are known to have the same value.
    #[inline(always)]
    pub(crate) fn is_same(&self, slot: Slot) -> bool {
        slot.is_uniform() || self.shapes[slot.index()] == Shape::Same
    }

    /// Prepares a register for a result of the threads in `mask`, and returns the chunks to compute. If `is_same`, all
    /// threads of the block take part and compute the same result, which is then computed once.
    #[inline(always)]
    pub(crate) fn prepare<'m>(&mut self, d: Slot, mask: &'m [u16], is_same: bool) -> &'m [u16] {
        if is_same {
            self.shapes[d.index()] = Shape::Same;
            return ONCE;
        }
        self.spread(d);
        mask
    }

    /// Prepares an operation with the result `d` and the sources `a`, `b`, and `c`: returns the chunks to compute, and
    /// where the registers are. `is_whole` states whether all threads of the block take part.
    #[inline(always)]
    pub(crate) fn prepare_operation<'m>(
        &mut self,
        [d, a, b, c]: [Slot; 4],
        mask: &'m [u16],
        is_whole: bool,
    ) -> (&'m [u16], [Span; 4]) {
        let is_same = is_whole && self.is_same(a) && self.is_same(b) && self.is_same(c);
        let mask = self.prepare(d, mask, is_same);
        (mask, [self.span(d), self.span(a), self.span(b), self.span(c)])
    }

    /// Stores a register's value for each thread, because the values may soon differ.
    #[inline(always)]
    fn spread(&mut self, slot: Slot) {
        if std::mem::take(&mut self.shapes[slot.index()]) == Shape::Same {
            let start = self.span(slot).base;
            let value = self.chunks[start];
            self.chunks[start..start + self.chunks_each].fill(value);
        }
    }

    fn spread_all(&mut self) {
        (0..self.shapes.len()).for_each(|index| self.spread(Slot::register(index as u32)));
    }

    fn get(&self, slot: Slot, thread: usize) -> T {
        self.chunks[self.span(slot).at(thread / WIDTH)].0[thread % WIDTH]
    }

    fn set(&mut self, slot: Slot, thread: usize, value: T) {
        self.spread(slot);
        let at = self.span(slot).at(thread / WIDTH);
        self.chunks[at].0[thread % WIDTH] = value;
    }
}

impl File<u64> {
    /// Returns how a register's values change from thread to thread.
    #[inline(always)]
    pub(crate) fn shape(&mut self, slot: Slot) -> Shape {
        if slot.is_uniform() {
            return Shape::Same;
        }
        if self.shapes[slot.index()] == Shape::Unknown {
            let at = self.span(slot).range(0..self.chunks_each);
            self.shapes[slot.index()] = shape_of(&self.chunks[at]);
        }
        self.shapes[slot.index()]
    }
}

impl Files {
    /// Makes room for a kernel's registers and sets them to zero, so that values from an earlier kernel never affect a
    /// result.
    pub(crate) fn resize(&mut self, registers: &virtual_gpu_ptx::Registers, threads: usize) {
        // Round up to whole warps, so that a warp's two chunks always exist.
        self.chunks = threads.next_multiple_of(32) / WIDTH;
        self.words.resize(registers.uniform_words.len(), registers.words as usize, self.chunks);
        self.longs.resize(registers.uniform_longs.len(), registers.longs as usize, self.chunks);
        self.predicates.clear();
        self.predicates.resize(registers.predicates as usize * self.chunks, 0);
    }

    #[inline(always)]
    pub(crate) fn word(&self, slot: Slot) -> Span {
        self.words.span(slot)
    }

    #[inline(always)]
    pub(crate) fn long(&self, slot: Slot) -> Span {
        self.longs.span(slot)
    }

    /// Like [`File::is_same`], for a register of any size.
    #[inline(always)]
    pub(crate) fn is_same(&self, value: Value) -> bool {
        match value {
            Value::Word(slot) => self.words.is_same(slot),
            Value::Long(slot) => self.longs.is_same(slot),
        }
    }

    /// Like [`File::prepare`], for a register of any size.
    #[inline(always)]
    pub(crate) fn prepare<'m>(&mut self, d: Value, mask: &'m [u16], is_same: bool) -> &'m [u16] {
        match d {
            Value::Word(d) => self.words.prepare(d, mask, is_same),
            Value::Long(d) => self.longs.prepare(d, mask, is_same),
        }
    }

    /// Stores each register's value for each thread, so that the same values are stored the same way.
    pub(crate) fn spread(&mut self) {
        self.words.spread_all();
        self.longs.spread_all();
    }

    pub(crate) fn word_of(&self, slot: Slot, thread: usize) -> u32 {
        self.words.get(slot, thread)
    }

    pub(crate) fn long_of(&self, slot: Slot, thread: usize) -> u64 {
        self.longs.get(slot, thread)
    }

    pub(crate) fn set_word(&mut self, slot: Slot, thread: usize, value: u32) {
        self.words.set(slot, thread, value);
    }

    pub(crate) fn set_long(&mut self, slot: Slot, thread: usize, value: u64) {
        self.longs.set(slot, thread, value);
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
