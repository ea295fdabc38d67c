//! Loads by whole chunks of threads, from one allocation or from shared memory.

use std::ops::Range;

use super::contiguous::{
    Pattern, addresses, element_at, is_inside, long_spans, pattern, row_of_chunks, word_spans,
};
use super::touched::{Bits, Coverage};
use super::view::Own;
use crate::features::vectorized;
use crate::mask::{FULL, Mask, WIDTH, bits};
use crate::registers::{Chunk, Files, Longs};
use virtual_gpu_core::memory::Written;
use virtual_gpu_ptx::instruction::{Access, Slot, Value};

/// Memory to load from.
pub(crate) struct Source<'m> {
    /// The address of the first byte.
    pub(crate) base: u64,
    pub(crate) bytes: &'m [u8],
    pub(crate) written: &'m Written,
    /// What replaces some of these bytes.
    pub(crate) own: Option<Own<'m>>,
    /// Where accesses are recorded; `None` for shared memory.
    pub(crate) touched: Option<&'m mut Bits>,
}

impl Source<'_> {
    #[inline(always)]
    pub(super) fn holds(&self, offset: u64, len: u64) -> bool {
        is_inside(offset, len, self.bytes.len()) && self.written.covers(offset, len)
    }

    /// Returns these bytes, unless some are out of bounds or unwritten, or must be collected one by one.
    fn bytes_at(&self, offset: u64, len: u64) -> Option<&[u8]> {
        if let Some(own) = &self.own
            && is_inside(offset, len, self.bytes.len())
        {
            match own.written.coverage(offset, len) {
                Coverage::All => return Some(own.copy.written(offset..offset + len)),
                Coverage::Part => return None,
                Coverage::None => {}
            }
        }
        self.holds(offset, len).then(|| &self.bytes[offset as usize..])
    }

    fn note(&mut self, offset: u64, len: u64) {
        if let Some(touched) = &mut self.touched {
            touched.mark(offset, len);
        }
    }

    /// Passes each thread's elements to `put(element, i, bits)`, including the elements of inactive threads. Does
    /// nothing and returns false if an access is invalid or reads unwritten bytes.
    #[inline(always)]
    fn fetch<const SIZE: usize, const COUNT: usize, const ROW: usize>(
        &mut self,
        addresses: &Longs,
        active: u16,
        mut put: impl FnMut(usize, usize, [u8; SIZE]),
    ) -> bool {
        let unit = (SIZE * COUNT) as u64;
        let first_thread = active.trailing_zeros() as usize % WIDTH;
        let first = addresses.0[first_thread];
        let offset = first.wrapping_sub(self.base);
        match pattern(addresses, active, first_thread, unit) {
            shared @ (Pattern::Row | Pattern::Same) => {
                let threads = if shared == Pattern::Row { active.count_ones() } else { 1 };
                let len = u64::from(threads) * unit;
                let Some(bytes) = self.bytes_at(offset, len) else { return false };
                // All cases share one loop. With a loop for each, the loads took a fifth of this crate's build.
                let mut copies = [0; ROW];
                let row = match (shared, bytes.first_chunk::<ROW>()) {
                    (Pattern::Row, Some(row)) if active == FULL => row,
                    (Pattern::Row, _) => {
                        copies[first_thread * SIZE * COUNT..][..len as usize]
                            .copy_from_slice(&bytes[..len as usize]);
                        &copies
                    }
                    _ => {
                        let of_threads = copies.chunks_exact_mut(SIZE * COUNT);
                        of_threads.for_each(|copy| copy.copy_from_slice(&bytes[..SIZE * COUNT]));
                        &copies
                    }
                };
                for i in 0..WIDTH {
                    for element in 0..COUNT {
                        put(element, i, element_at(row, i * COUNT + element));
                    }
                }
                self.note(offset, len);
            }
            Pattern::Scattered => {
                for i in bits(active) {
                    let address = addresses.0[i];
                    let offset = address.wrapping_sub(self.base);
                    let found = if address & (unit - 1) == 0 { self.bytes_at(offset, unit) } else { None };
                    let Some(bytes) = found else { return false };
                    for element in 0..COUNT {
                        put(element, i, element_at(bytes, element));
                    }
                    self.note(offset, unit);
                }
            }
        }
        true
    }
}

vectorized! {
    /// Loads the chunks that cause no fault and removes them from `left`. If `is_same`, all threads of the block load from
    /// the same address.
    fn load(files: &mut Files, access: &Access, source: &mut Source<'_>, left: &mut Mask, is_same: bool) = load_body
}

#[inline(always)]
fn load_body(files: &mut Files, access: &Access, source: &mut Source<'_>, left: &mut Mask, is_same: bool) {
    for value in access.values.iter().flatten() {
        files.prepare(*value, &[], is_same);
    }
    let all = *left;
    if is_same {
        *left = Mask::of_first_chunk();
    }
    load_chunks(files, access, source, left);
    if is_same {
        *left = if left.is_empty() { Mask::NONE } else { all };
    }
}

#[inline(always)]
fn load_chunks(files: &mut Files, access: &Access, source: &mut Source<'_>, left: &mut Mask) {
    match (access.bytes, access.values.len()) {
        (4, 1) if load_row(files, access, source, left) => {}
        (4, 1) => load_words::<4, 1, 64>(files, access, source, left),
        (4, 2) => load_words::<4, 2, 128>(files, access, source, left),
        (4, 4) => load_words::<4, 4, 256>(files, access, source, left),
        (8, 1) => load_longs::<1, 128>(files, access, source, left),
        (8, 2) => load_longs::<2, 256>(files, access, source, left),
        (2, 1) => load_words::<2, 1, 32>(files, access, source, left),
        (1, 1) => load_words::<1, 1, 16>(files, access, source, left),
        _ => {}
    }
}

/// Loads 32-bit values from one row of bytes. Returns false if the threads don't access such a row, or if some of it
/// can't be loaded.
#[inline(always)]
fn load_row(files: &mut Files, access: &Access, source: &mut Source<'_>, left: &mut Mask) -> bool {
    let Some(Value::Word(d)) = access.values[0] else { return false };
    let Some((chunks, address)) = row_of_chunks(files, access.address, left) else { return false };
    let (offset, len) = (address.wrapping_sub(source.base), (chunks.len() * WIDTH * 4) as u64);
    let Some(bytes) = source.bytes_at(offset, len) else { return false };
    read_row(files, d, chunks, &bytes[..len as usize]);
    source.note(offset, len);
    *left = Mask::NONE;
    true
}

/// Sets a register for the threads in some chunks to contiguous values.
#[inline(always)]
pub(super) fn read_row(files: &mut Files, d: Slot, chunks: Range<usize>, bytes: &[u8]) {
    let at = files.word(d).range(chunks);
    for (chunk, row) in files.words[at].iter_mut().zip(bytes.as_chunks::<64>().0) {
        *chunk = Chunk::of(|i| u32::from_le_bytes(element_at(row, i)));
    }
}

#[inline(always)]
fn load_words<const SIZE: usize, const COUNT: usize, const ROW: usize>(
    files: &mut Files,
    access: &Access,
    source: &mut Source<'_>,
    left: &mut Mask,
) {
    let Some(spans) = word_spans::<COUNT>(files, access) else { return };
    for (chunk, active) in left.0.iter_mut().enumerate().take(files.chunks) {
        if *active == 0 {
            continue;
        }
        let addresses = addresses(files, access.address, chunk);
        let mut results = [Chunk::zero(); COUNT];
        let put = |element: usize, i: usize, bytes: [u8; SIZE]| {
            let mut word = [0; 4];
            word[..SIZE].copy_from_slice(&bytes);
            results[element].0[i] = u32::from_le_bytes(word);
        };
        if source.fetch::<SIZE, COUNT, ROW>(&addresses, *active, put) {
            if SIZE < 4 && access.signed {
                let beyond = 32 - 8 * SIZE as u32;
                results =
                    results.map(|result| Chunk::of(|i| ((result.0[i] << beyond) as i32 >> beyond) as u32));
            }
            for (span, result) in spans.iter().zip(results) {
                files.words[span.at(chunk)].take(result, *active);
            }
            *active = 0;
        }
    }
}

#[inline(always)]
fn load_longs<const COUNT: usize, const ROW: usize>(
    files: &mut Files,
    access: &Access,
    source: &mut Source<'_>,
    left: &mut Mask,
) {
    let Some(spans) = long_spans::<COUNT>(files, access) else { return };
    for (chunk, active) in left.0.iter_mut().enumerate().take(files.chunks) {
        if *active == 0 {
            continue;
        }
        let addresses = addresses(files, access.address, chunk);
        let mut results = [Chunk::zero(); COUNT];
        let put = |element: usize, i: usize, bytes| results[element].0[i] = u64::from_le_bytes(bytes);
        if source.fetch::<8, COUNT, ROW>(&addresses, *active, put) {
            for (span, result) in spans.iter().zip(results) {
                files.longs[span.at(chunk)].take(result, *active);
            }
            *active = 0;
        }
    }
}
