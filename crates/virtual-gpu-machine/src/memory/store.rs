//! Stores by whole chunks of threads, to one allocation or to shared memory.

use std::ops::Range;

use super::contiguous::{Pattern, addresses, is_inside, long_spans, pattern, row_of_chunks, word_spans};
use super::touched::Bits;
use super::view::Place;
use crate::features::vectorized;
use crate::mask::{FULL, Mask, WIDTH, bits};
use crate::registers::{Files, Longs};
use virtual_gpu_ptx::instruction::{Access, Slot, Value};

/// Memory to store to.
pub(crate) struct Target<'m> {
    pub(crate) place: Place<'m>,
    /// Where accesses are recorded; `None` for shared memory.
    pub(crate) touched: Option<&'m mut Bits>,
}

impl Target<'_> {
    #[inline(always)]
    /// Records a write to `len` bytes, starting at offset `offset` in the place.
    fn note(&mut self, offset: u64, len: u64) {
        let start = self.place.start + offset;
        self.place.written.mark(start..start + len);
        if let Some(touched) = &mut self.touched {
            touched.mark(start, len);
        }
    }

    /// Stores each thread's `get(element, i)`. Does nothing and returns false if an access is invalid.
    #[inline(always)]
    fn put<const SIZE: usize, const COUNT: usize, const ROW: usize>(
        &mut self,
        addresses: &Longs,
        active: u16,
        get: impl Fn(usize, usize) -> [u8; SIZE],
    ) -> bool {
        let unit = (SIZE * COUNT) as u64;
        let first_thread = active.trailing_zeros() as usize % WIDTH;
        let first = addresses.0[first_thread];
        let offset = first.wrapping_sub(self.place.base);
        let size = self.place.bytes.len();
        if let Pattern::Row = pattern(addresses, active, first_thread, unit) {
            let run = u64::from(active.count_ones());
            if !is_inside(offset, run * unit, size) {
                return false;
            }
            let bytes = &mut self.place.bytes[offset as usize..][..(run * unit) as usize];
            // If some threads are inactive, the bytes of all go to a copy.
            let mut copy = [0; ROW];
            let row = match bytes.first_chunk_mut::<ROW>() {
                Some(row) => row,
                None => &mut copy,
            };
            for i in 0..WIDTH {
                for element in 0..COUNT {
                    row.as_chunks_mut().0[i * COUNT + element] = get(element, i);
                }
            }
            if active != FULL {
                bytes.copy_from_slice(&copy[first_thread * SIZE * COUNT..][..bytes.len()]);
            }
            self.note(offset, run * unit);
            return true;
        }
        let is_good = |i: usize| {
            let address = addresses.0[i];
            address & (unit - 1) == 0 && is_inside(address.wrapping_sub(self.place.base), unit, size)
        };
        if !bits(active).all(is_good) {
            return false;
        }
        for i in bits(active) {
            let offset = addresses.0[i].wrapping_sub(self.place.base);
            let unit_bytes = &mut self.place.bytes[offset as usize..][..SIZE * COUNT];
            for (element, bytes) in unit_bytes.as_chunks_mut().0.iter_mut().enumerate() {
                *bytes = get(element, i);
            }
            self.note(offset, unit);
        }
        true
    }
}

vectorized! {
    /// Stores the chunks that cause no fault and removes them from `left`.
    fn store(files: &mut Files, access: &Access, target: &mut Target<'_>, left: &mut Mask) = store_body
}

#[inline(always)]
fn store_body(files: &mut Files, access: &Access, target: &mut Target<'_>, left: &mut Mask) {
    match (access.bytes, access.values.len()) {
        (4, 1) if store_row(files, access, target, left) => {}
        (4, 1) => store_words::<4, 1, 64>(files, access, target, left, u32::to_le_bytes),
        (4, 2) => store_words::<4, 2, 128>(files, access, target, left, u32::to_le_bytes),
        (4, 4) => store_words::<4, 4, 256>(files, access, target, left, u32::to_le_bytes),
        (2, 1) => store_words::<2, 1, 32>(files, access, target, left, |word| (word as u16).to_le_bytes()),
        (1, 1) => store_words::<1, 1, 16>(files, access, target, left, |word| [word as u8]),
        (8, 1) => store_longs::<1, 128>(files, access, target, left),
        (8, 2) => store_longs::<2, 256>(files, access, target, left),
        _ => {}
    }
}

/// Stores 32-bit values to one row of bytes. Returns false if the threads don't access such a row.
#[inline(always)]
fn store_row(files: &mut Files, access: &Access, target: &mut Target<'_>, left: &mut Mask) -> bool {
    let Some(Value::Word(value)) = access.values[0] else { return false };
    let Some((chunks, address)) = row_of_chunks(files, access.address, left) else { return false };
    let (offset, len) = (address.wrapping_sub(target.place.base), (chunks.len() * WIDTH * 4) as u64);
    if !is_inside(offset, len, target.place.bytes.len()) {
        return false;
    }
    write_row(files, value, chunks, &mut target.place.bytes[offset as usize..][..len as usize]);
    target.note(offset, len);
    *left = Mask::NONE;
    true
}

/// Copies the values of a register of the threads in some chunks.
#[inline(always)]
pub(super) fn write_row(files: &Files, value: Slot, chunks: Range<usize>, bytes: &mut [u8]) {
    let span = files.word(value);
    for (chunk, row) in chunks.zip(bytes.as_chunks_mut::<64>().0) {
        let value = &files.words[span.at(chunk)];
        for (bytes, word) in row.as_chunks_mut::<4>().0.iter_mut().zip(value.0) {
            *bytes = word.to_le_bytes();
        }
    }
}

#[inline(always)]
fn store_words<const SIZE: usize, const COUNT: usize, const ROW: usize>(
    files: &mut Files,
    access: &Access,
    target: &mut Target<'_>,
    left: &mut Mask,
    cut: impl Fn(u32) -> [u8; SIZE],
) {
    let Some(spans) = word_spans::<COUNT>(files, access) else { return };
    for (chunk, active) in left.0.iter_mut().enumerate().take(files.chunks) {
        if *active == 0 {
            continue;
        }
        let addresses = addresses(files, access.address, chunk);
        let values = spans.map(|span| files.words[span.at(chunk)]);
        let get = |element: usize, i: usize| cut(values[element].0[i]);
        if target.put::<SIZE, COUNT, ROW>(&addresses, *active, get) {
            *active = 0;
        }
    }
}

#[inline(always)]
fn store_longs<const COUNT: usize, const ROW: usize>(
    files: &mut Files,
    access: &Access,
    target: &mut Target<'_>,
    left: &mut Mask,
) {
    let Some(spans) = long_spans::<COUNT>(files, access) else { return };
    for (chunk, active) in left.0.iter_mut().enumerate().take(files.chunks) {
        if *active == 0 {
            continue;
        }
        let addresses = addresses(files, access.address, chunk);
        let values = spans.map(|span| files.longs[span.at(chunk)]);
        let get = |element: usize, i: usize| values[element].0[i].to_le_bytes();
        if target.put::<8, COUNT, ROW>(&addresses, *active, get) {
            *active = 0;
        }
    }
}
