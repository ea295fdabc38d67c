//! How the addresses of a chunk's threads are arranged. Contiguous addresses need only one check and one copy.

use std::ops::Range;

use crate::features::vectorized;
use crate::mask::{FULL, Mask, WIDTH};
use crate::registers::{Files, Longs, Shape, Span};
use virtual_gpu_ptx::instruction::{Access, Address, Slot, Value};

/// How a chunk's addresses are arranged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Contiguous: each thread accesses the bytes after those of the thread before it.
    Row,
    /// All addresses are the same.
    Same,
    /// Anything else, or misaligned.
    Scattered,
}

/// Returns a chunk's addresses.
#[inline(always)]
pub(super) fn addresses(files: &Files, address: Address, chunk: usize) -> Longs {
    let mut all = Longs::zero();
    match address.base {
        Value::Long(slot) => {
            let base = &files.longs[files.long(slot).at(chunk)];
            for i in 0..WIDTH {
                all.0[i] = base.0[i].wrapping_add(address.offset as u64);
            }
        }
        Value::Word(slot) => {
            let base = &files.words[files.word(slot).at(chunk)];
            for i in 0..WIDTH {
                all.0[i] = u64::from(base.0[i]).wrapping_add(address.offset as u64);
            }
        }
    }
    all
}

vectorized! {
    /// Returns the pattern of the addresses that some of a chunk's threads access. `first_thread` is the lowest of them. If
    /// an address is not aligned to `unit` (a power of two), the pattern is scattered.
    fn pattern(addresses: &Longs, active: u16, first_thread: usize, unit: u64) -> Pattern = find_pattern
}

#[inline(always)]
fn find_pattern(addresses: &Longs, active: u16, first_thread: usize, unit: u64) -> Pattern {
    let first = addresses.0[first_thread];
    // The bits in which any address differs from the pattern that the second address suggests. The compiler vectorizes
    // this loop.
    let mut apart = first & (unit - 1);
    if active == FULL {
        if addresses.0[1] == first {
            for i in 0..WIDTH {
                apart |= addresses.0[i] ^ first;
            }
            return if apart == 0 { Pattern::Same } else { Pattern::Scattered };
        }
        for i in 0..WIDTH {
            apart |= addresses.0[i] ^ first.wrapping_add(i as u64 * unit);
        }
        return if apart == 0 { Pattern::Row } else { Pattern::Scattered };
    }
    let shifted = u32::from(active) >> first_thread;
    let is_contiguous = shifted & (shifted + 1) == 0;
    let is_same = !is_contiguous || shifted > 1 && addresses.0[(first_thread + 1) % WIDTH] == first;
    let step = if is_same { 0 } else { unit };
    for i in 0..WIDTH {
        let expected = (i as u64).wrapping_sub(first_thread as u64).wrapping_mul(step);
        let counts = if active & 1 << i != 0 { u64::MAX } else { 0 };
        apart |= (addresses.0[i].wrapping_sub(first) ^ expected) & counts;
    }
    match (apart, is_same) {
        (0, false) => Pattern::Row,
        (0, true) => Pattern::Same,
        _ => Pattern::Scattered,
    }
}

/// If the threads in `mask` fill whole contiguous chunks, and their addresses are one row of 32-bit values, returns these
/// chunks and the first address.
#[inline(always)]
pub(super) fn row_of_chunks(files: &mut Files, address: Address, mask: &Mask) -> Option<(Range<usize>, u64)> {
    let Value::Long(slot) = address.base else { return None };
    let active = &mask.0[..files.chunks];
    let start = active.iter().position(|&active| active != 0)?;
    let end = start + active[start..].iter().take_while(|&&active| active == FULL).count();
    if start == end
        || active[end..].iter().any(|&active| active != 0)
        || files.longs.shape(slot) != Shape::Row
    {
        return None;
    }
    let first = files.longs[files.long(slot).at(start)].0[0].wrapping_add(address.offset as u64);
    (first & 3 == 0).then_some((start..end, first))
}

/// The pattern of a register that holds the addresses of 32-bit values, if it is the same in all chunks.
pub(super) type Known = Option<(Span, Pattern)>;

/// Returns the pattern of a register with addresses.
#[inline(always)]
pub(super) fn known_pattern(files: &mut Files, address: Address) -> Known {
    let Value::Long(slot) = address.base else { return None };
    let pattern = match files.longs.shape(slot) {
        Shape::Row | Shape::Rows => Pattern::Row,
        Shape::Same | Shape::SameInChunks => Pattern::Same,
        Shape::Unknown | Shape::Other => return None,
    };
    Some((files.long(slot), pattern))
}

/// Returns the first address of a full chunk, and the pattern of its addresses of 32-bit values.
#[inline(always)]
pub(super) fn pattern_of_words(
    files: &Files,
    address: Address,
    known: Known,
    chunk: usize,
) -> (u64, Pattern) {
    let Some((span, pattern_of_base)) = known else {
        let addresses = addresses(files, address, chunk);
        return (addresses.0[0], pattern(&addresses, FULL, 0, 4));
    };
    let first = files.longs[span.at(chunk)].0[0].wrapping_add(address.offset as u64);
    (first, if first & 3 == 0 { pattern_of_base } else { Pattern::Scattered })
}

#[inline(always)]
pub(super) fn is_inside(offset: u64, len: u64, size: usize) -> bool {
    let size = size as u64;
    offset < size && len <= size - offset
}

/// Returns the `element`th group of `SIZE` bytes.
#[inline(always)]
pub(super) fn element_at<const SIZE: usize>(bytes: &[u8], element: usize) -> [u8; SIZE] {
    bytes.as_chunks().0[element]
}

/// Returns the registers of an access, if all are 32-bit.
#[inline(always)]
pub(super) fn word_spans<const COUNT: usize>(files: &Files, access: &Access) -> Option<[Span; COUNT]> {
    let mut spans = [files.word(Slot::uniform(0)); COUNT];
    for (span, value) in spans.iter_mut().zip(&access.values) {
        let Some(Value::Word(slot)) = *value else { return None };
        *span = files.word(slot);
    }
    Some(spans)
}

/// Returns the registers of an access, if all are 64-bit.
#[inline(always)]
pub(super) fn long_spans<const COUNT: usize>(files: &Files, access: &Access) -> Option<[Span; COUNT]> {
    let mut spans = [files.long(Slot::uniform(0)); COUNT];
    for (span, value) in spans.iter_mut().zip(&access.values) {
        let Some(Value::Long(slot)) = *value else { return None };
        *span = files.long(slot);
    }
    Some(spans)
}
