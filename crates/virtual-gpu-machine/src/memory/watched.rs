//! Accesses by whole chunks of threads to shared memory, with race detection.

use super::contiguous::{
    Pattern, addresses, element_at, is_inside, known_pattern, pattern, pattern_of_words, row_of_chunks,
};
use super::load::{Source, read_row};
use super::store::{Target, write_row};
use crate::features::vectorized;
use crate::mask::{FULL, Mask, WIDTH, bits};
use crate::registers::{Chunk, Files, Longs};
use crate::shadow::Shadow;
use virtual_gpu_ptx::instruction::{Access, Slot, Value};

/// Shared memory whose accesses are watched.
pub(crate) struct Watched<'m> {
    pub(crate) shadow: &'m mut Shadow,
    /// The address of the first byte.
    pub(crate) base: u64,
    /// The number of bytes.
    pub(crate) size: usize,
    /// The program counter of the instruction.
    pub(crate) pc: usize,
    pub(crate) is_write: bool,
}

vectorized! {
    /// Records what the chunks access. Removes from `mask` the chunks that may race or go out of bounds, because their
    /// threads are checked one by one.
    fn watch(files: &Files, access: &Access, watched: &mut Watched<'_>, mask: &mut Mask) = watch_body
}

#[inline(always)]
fn watch_body(files: &Files, access: &Access, watched: &mut Watched<'_>, mask: &mut Mask) {
    let unit = u64::from(access.bytes) * access.values.len() as u64;
    for (chunk, active) in mask.0.iter_mut().enumerate().take(files.chunks) {
        if *active != 0 {
            let addresses = addresses(files, access.address, chunk);
            if !watched.admits(&addresses, *active, chunk * WIDTH, unit) {
                *active = 0;
            }
        }
    }
}

/// The number of chunks in a warp.
const WARP: usize = 32 / WIDTH;

vectorized! {
    /// Loads and records, in one step, whole chunks of 32-bit values whose addresses are contiguous or all the same, as
    /// in nearly all loads from shared memory. Removes them from `left`.
    fn load(files: &mut Files, access: &Access, source: &Source<'_>, watched: &mut Watched<'_>, left: &mut Mask) = load_body
}

#[inline(always)]
fn load_body(
    files: &mut Files,
    access: &Access,
    source: &Source<'_>,
    watched: &mut Watched<'_>,
    left: &mut Mask,
) {
    let Some(d) = single_word(access) else { return };
    files.words.prepare(d, &[], false);
    let span = files.word(d);
    let Watched { shadow, pc, .. } = watched;
    if let Some((chunks, address)) = row_of_chunks(files, access.address, left) {
        let (offset, threads) = (address.wrapping_sub(source.base), chunks.len() * WIDTH);
        let len = 4 * threads as u64;
        if source.holds(offset, len) && shadow.read_row(offset, 4, threads, chunks.start * WIDTH, *pc) {
            read_row(files, d, chunks, &source.bytes[offset as usize..][..len as usize]);
            *left = Mask::NONE;
            return;
        }
    }
    let known = known_pattern(files, access.address);
    // The last row whose reads need not be recorded, and its values: many chunks often load the same row.
    let mut repeated = (u64::MAX, Chunk::zero());
    for chunk in 0..files.chunks {
        if left.0[chunk] != FULL {
            continue;
        }
        let (address, pattern) = pattern_of_words(files, access.address, known, chunk);
        let offset = address.wrapping_sub(source.base);
        let (first, last) = (chunk * WIDTH, chunk * WIDTH + WIDTH - 1);
        let value = match pattern {
            Pattern::Row if repeated.0 == offset => repeated.1,
            Pattern::Row => {
                if !source.holds(offset, 64) {
                    continue;
                }
                // The next warp often loads the same row, and other chunks after it. Then the rest need not be recorded.
                let later = chunk + WARP;
                let is_recorded = shadow.is_row_settled(offset, 64)
                    || later < files.chunks
                        && left.0[later] == FULL
                        && pattern_of_words(files, access.address, known, later) == (address, Pattern::Row)
                        && shadow.read_chunk_twice(offset, [first, later * WIDTH], *pc);
                if !is_recorded && !shadow.read_row(offset, 4, WIDTH, first, *pc) {
                    continue;
                }
                let Some(row) = source.bytes[offset as usize..].first_chunk::<64>() else { continue };
                let value = Chunk::of(|i| u32::from_le_bytes(element_at(row, i)));
                if is_recorded || shadow.is_row_settled(offset, 64) {
                    repeated = (offset, value);
                }
                value
            }
            Pattern::Same => {
                if !source.holds(offset, 4) || !shadow.read_same(offset, 4, [first, last], *pc) {
                    continue;
                }
                Chunk([u32::from_le_bytes(element_at(&source.bytes[offset as usize..], 0)); WIDTH])
            }
            Pattern::Scattered => continue,
        };
        files.words[span.at(chunk)] = value;
        left.0[chunk] = 0;
    }
}

vectorized! {
    /// Stores and records, in one step, whole chunks of contiguous 32-bit values. Removes them from `left`.
    fn store(files: &mut Files, access: &Access, target: &mut Target<'_>, watched: &mut Watched<'_>, left: &mut Mask) = store_body
}

#[inline(always)]
fn store_body(
    files: &mut Files,
    access: &Access,
    target: &mut Target<'_>,
    watched: &mut Watched<'_>,
    left: &mut Mask,
) {
    let Some(value) = single_word(access) else { return };
    let span = files.word(value);
    let Watched { shadow, pc, size, .. } = watched;
    if let Some((chunks, address)) = row_of_chunks(files, access.address, left) {
        let (offset, threads) = (address.wrapping_sub(target.place.base), chunks.len() * WIDTH);
        let len = 4 * threads as u64;
        if is_inside(offset, len, *size) && shadow.write_row(offset, 4, threads, chunks.start * WIDTH, *pc) {
            write_row(files, value, chunks, &mut target.place.bytes[offset as usize..][..len as usize]);
            target.place.written.mark(offset..offset + len);
            *left = Mask::NONE;
            return;
        }
    }
    let known = known_pattern(files, access.address);
    for (chunk, active) in left.0.iter_mut().enumerate().take(files.chunks) {
        if *active != FULL {
            continue;
        }
        let (address, Pattern::Row) = pattern_of_words(files, access.address, known, chunk) else { continue };
        let offset = address.wrapping_sub(target.place.base);
        if !is_inside(offset, 64, *size) || !shadow.write_row(offset, 4, WIDTH, chunk * WIDTH, *pc) {
            continue;
        }
        let Some(row) = target.place.bytes[offset as usize..].first_chunk_mut::<64>() else { continue };
        let value = &files.words[span.at(chunk)];
        for (bytes, word) in row.as_chunks_mut::<4>().0.iter_mut().zip(value.0) {
            *bytes = word.to_le_bytes();
        }
        target.place.written.mark(offset..offset + 64);
        *active = 0;
    }
}

/// Returns the register if the access is to a single 32-bit value.
fn single_word(access: &Access) -> Option<Slot> {
    match *access.values {
        [Some(Value::Word(slot))] if access.bytes == 4 => Some(slot),
        _ => None,
    }
}

impl Watched<'_> {
    #[inline(always)]
    fn admits(&mut self, addresses: &Longs, active: u16, thread: usize, unit: u64) -> bool {
        let Self { base, size, pc, is_write, .. } = *self;
        let first_thread = active.trailing_zeros() as usize % WIDTH;
        let offset = addresses.0[first_thread].wrapping_sub(base);
        match pattern(addresses, active, first_thread, unit) {
            Pattern::Row => {
                let run = active.count_ones() as usize;
                if !is_inside(offset, run as u64 * unit, size) {
                    return false;
                }
                match is_write {
                    true => self.shadow.write_row(offset, unit, run, thread + first_thread, pc),
                    false => self.shadow.read_row(offset, unit, run, thread + first_thread, pc),
                }
            }
            Pattern::Same if !is_write => {
                let last_thread = WIDTH - 1 - active.leading_zeros() as usize;
                is_inside(offset, unit, size)
                    && self.shadow.read_same(offset, unit, [thread + first_thread, thread + last_thread], pc)
            }
            _ => bits(active).all(|i| {
                let offset = addresses.0[i].wrapping_sub(base);
                offset & (unit - 1) == 0
                    && is_inside(offset, unit, size)
                    && match is_write {
                        true => self.shadow.write_row(offset, unit, 1, thread + i, pc),
                        false => self.shadow.read_row(offset, unit, 1, thread + i, pc),
                    }
            }),
        }
    }
}
