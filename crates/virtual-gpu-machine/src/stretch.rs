//! The fast way of loads and stores: all lanes in one stretch of memory, an allocation or a block's shared memory.
//! A chunk whose lanes lie one after the other costs one check and one copy.

use super::features::vectorised;
use super::file::{FULL, Files, Longs, Mask, Span, WIDTH, Words, bits};
use super::shadow::Shadow;
use super::touched::Bits;
use virtual_gpu_core::memory::Written;
use virtual_gpu_ptx::instruction::{Access, Address, Value};

/// Memory to load from.
pub(super) struct Source<'m> {
    /// Address of the first byte.
    pub(super) base: u64,
    pub(super) bytes: &'m [u8],
    pub(super) written: &'m Written,
    /// Where accesses are noted; shared memory's are not.
    pub(super) touched: Option<&'m mut Bits>,
}

/// Memory to store to.
pub(super) struct Target<'m> {
    /// Address of the first byte.
    pub(super) base: u64,
    pub(super) bytes: &'m mut [u8],
    pub(super) written: &'m mut Written,
    /// Where accesses are noted; shared memory's are not.
    pub(super) touched: Option<&'m mut Bits>,
}

/// How a chunk's addresses lie.
#[derive(Clone, Copy)]
enum Pattern {
    /// Neighbouring lanes, one after the other.
    Row,
    /// All the same.
    Same,
    /// Anything else, or misaligned.
    Scattered,
}

/// A chunk's addresses.
#[inline(always)]
fn addresses(files: &Files, address: Address, chunk: usize) -> Longs {
    let mut all = Longs::ZERO;
    match address.base {
        Value::Long(slot) => {
            let base = &files.longs[files.long(slot).at(chunk)];
            for lane in 0..WIDTH {
                all.0[lane] = base.0[lane].wrapping_add(address.offset as u64);
            }
        }
        Value::Word(slot) => {
            let base = &files.words[files.word(slot).at(chunk)];
            for lane in 0..WIDTH {
                all.0[lane] = u64::from(base.0[lane]).wrapping_add(address.offset as u64);
            }
        }
    }
    all
}

/// The pattern of some lanes of a chunk, of which `first_lane` is the lowest. What is not aligned to `unit`, a power of
/// two, counts as scattered.
#[inline(always)]
fn pattern(addresses: &Longs, lanes: u16, first_lane: usize, unit: u64) -> Pattern {
    let first = addresses.0[first_lane];
    // How the addresses differ from the pattern that the second one suggests, as a sum of bits, which the compiler makes
    // vectors of.
    let mut apart = first & (unit - 1);
    if lanes == FULL {
        if addresses.0[1] == first {
            for lane in 0..WIDTH {
                apart |= addresses.0[lane] ^ first;
            }
            return if apart == 0 { Pattern::Same } else { Pattern::Scattered };
        }
        for lane in 0..WIDTH {
            apart |= addresses.0[lane] ^ first.wrapping_add(lane as u64 * unit);
        }
        return if apart == 0 { Pattern::Row } else { Pattern::Scattered };
    }
    let shifted = u32::from(lanes) >> first_lane;
    let is_run = shifted & (shifted + 1) == 0;
    let is_same = !is_run || shifted > 1 && addresses.0[(first_lane + 1) % WIDTH] == first;
    let step = if is_same { 0 } else { unit };
    for lane in 0..WIDTH {
        let expected = (lane as u64).wrapping_sub(first_lane as u64).wrapping_mul(step);
        let counts = if lanes & 1 << lane != 0 { u64::MAX } else { 0 };
        apart |= (addresses.0[lane].wrapping_sub(first) ^ expected) & counts;
    }
    match (apart, is_same) {
        (0, false) => Pattern::Row,
        (0, true) => Pattern::Same,
        _ => Pattern::Scattered,
    }
}

#[inline(always)]
fn is_inside(offset: u64, len: u64, size: usize) -> bool {
    let size = size as u64;
    offset < size && len <= size - offset
}

impl Source<'_> {
    #[inline(always)]
    fn holds(&self, offset: u64, len: u64) -> bool {
        is_inside(offset, len, self.bytes.len()) && self.written.covers(offset, len)
    }

    #[inline(always)]
    fn note(&mut self, offset: u64, len: u64) {
        if let Some(touched) = &mut self.touched {
            touched.mark(offset, len);
        }
    }

    /// Hands the elements of each lane to `put(element, lane, bits)`, lanes outside of `lanes` too. Does nothing and
    /// returns false where a lane's access is wrong, or where it reads what nothing wrote.
    #[inline(always)]
    fn fetch<const SIZE: usize, const COUNT: usize, const ROW: usize>(
        &mut self,
        addresses: &Longs,
        lanes: u16,
        mut put: impl FnMut(usize, usize, [u8; SIZE]),
    ) -> bool {
        let unit = (SIZE * COUNT) as u64;
        let first_lane = lanes.trailing_zeros() as usize % WIDTH;
        let first = addresses.0[first_lane];
        let offset = first.wrapping_sub(self.base);
        match pattern(addresses, lanes, first_lane, unit) {
            Pattern::Row => {
                let run = u64::from(lanes.count_ones());
                if !self.holds(offset, run * unit) {
                    return false;
                }
                let bytes = &self.bytes[offset as usize..];
                match bytes.first_chunk::<ROW>() {
                    Some(row) if lanes == FULL => {
                        for lane in 0..WIDTH {
                            for element in 0..COUNT {
                                put(element, lane, element_at(row, lane * COUNT + element));
                            }
                        }
                    }
                    _ => {
                        for (lane, unit) in bytes.chunks_exact(SIZE * COUNT).enumerate().take(run as usize) {
                            for element in 0..COUNT {
                                put(element, first_lane + lane, element_at(unit, element));
                            }
                        }
                    }
                }
                self.note(offset, run * unit);
            }
            Pattern::Same => {
                if !self.holds(offset, unit) {
                    return false;
                }
                let bytes = &self.bytes[offset as usize..][..SIZE * COUNT];
                for element in 0..COUNT {
                    let value = element_at(bytes, element);
                    for lane in 0..WIDTH {
                        put(element, lane, value);
                    }
                }
                self.note(offset, unit);
            }
            Pattern::Scattered => {
                for lane in bits(lanes) {
                    let address = addresses.0[lane];
                    let offset = address.wrapping_sub(self.base);
                    if address & (unit - 1) != 0 || !self.holds(offset, unit) {
                        return false;
                    }
                    let bytes = &self.bytes[offset as usize..][..SIZE * COUNT];
                    for element in 0..COUNT {
                        put(element, lane, element_at(bytes, element));
                    }
                    self.note(offset, unit);
                }
            }
        }
        true
    }
}

/// The `element`th group of `SIZE` bytes.
#[inline(always)]
fn element_at<const SIZE: usize>(bytes: &[u8], element: usize) -> [u8; SIZE] {
    let mut value = [0; SIZE];
    value.copy_from_slice(&bytes[element * SIZE..element * SIZE + SIZE]);
    value
}

vectorised! {
    /// Loads the chunks for which nothing is wrong, and clears them in `left`.
    fn load(files: &mut Files, access: &Access, source: &mut Source<'_>, left: &mut Mask) = load_body
}

#[inline(always)]
fn load_body(files: &mut Files, access: &Access, source: &mut Source<'_>, left: &mut Mask) {
    match (access.bytes, access.values.len()) {
        (4, 1) => load_words::<4, 1, 64>(files, access, source, left, u32::from_le_bytes),
        (4, 2) => load_words::<4, 2, 128>(files, access, source, left, u32::from_le_bytes),
        (4, 4) => load_words::<4, 4, 256>(files, access, source, left, u32::from_le_bytes),
        (8, 1) => load_longs::<1, 128>(files, access, source, left),
        (8, 2) => load_longs::<2, 256>(files, access, source, left),
        (2, 1) => {
            let extend = if access.signed {
                |b| i16::from_le_bytes(b) as u32
            } else {
                |b| u16::from_le_bytes(b).into()
            };
            load_words::<2, 1, 32>(files, access, source, left, extend);
        }
        (1, 1) => {
            let extend = if access.signed { |[b]: [u8; 1]| b as i8 as u32 } else { |[b]: [u8; 1]| b.into() };
            load_words::<1, 1, 16>(files, access, source, left, extend);
        }
        _ => {}
    }
}

#[inline(always)]
fn load_words<const SIZE: usize, const COUNT: usize, const ROW: usize>(
    files: &mut Files,
    access: &Access,
    source: &mut Source<'_>,
    left: &mut Mask,
    extend: impl Fn([u8; SIZE]) -> u32,
) {
    let Some(spans) = word_spans::<COUNT>(files, access) else { return };
    for (chunk, lanes) in left.0.iter_mut().enumerate().take(files.chunks) {
        if *lanes == 0 {
            continue;
        }
        let addresses = addresses(files, access.address, chunk);
        let mut results = [Words::ZERO; COUNT];
        let put = |element: usize, lane: usize, bytes| results[element].0[lane] = extend(bytes);
        if source.fetch::<SIZE, COUNT, ROW>(&addresses, *lanes, put) {
            for (span, result) in spans.iter().zip(results) {
                files.words[span.at(chunk)].take(result, *lanes);
            }
            *lanes = 0;
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
    for (chunk, lanes) in left.0.iter_mut().enumerate().take(files.chunks) {
        if *lanes == 0 {
            continue;
        }
        let addresses = addresses(files, access.address, chunk);
        let mut results = [Longs::ZERO; COUNT];
        let put = |element: usize, lane: usize, bytes| results[element].0[lane] = u64::from_le_bytes(bytes);
        if source.fetch::<8, COUNT, ROW>(&addresses, *lanes, put) {
            for (span, result) in spans.iter().zip(results) {
                files.longs[span.at(chunk)].take(result, *lanes);
            }
            *lanes = 0;
        }
    }
}

/// The registers of an access, if all are 32-bit.
#[inline(always)]
fn word_spans<const COUNT: usize>(files: &Files, access: &Access) -> Option<[Span; COUNT]> {
    let mut spans = [files.word(virtual_gpu_ptx::instruction::Slot::uniform(0)); COUNT];
    for (span, value) in spans.iter_mut().zip(&access.values) {
        let Some(Value::Word(slot)) = *value else { return None };
        *span = files.word(slot);
    }
    Some(spans)
}

/// The registers of an access, if all are 64-bit.
#[inline(always)]
fn long_spans<const COUNT: usize>(files: &Files, access: &Access) -> Option<[Span; COUNT]> {
    let mut spans = [files.long(virtual_gpu_ptx::instruction::Slot::uniform(0)); COUNT];
    for (span, value) in spans.iter_mut().zip(&access.values) {
        let Some(Value::Long(slot)) = *value else { return None };
        *span = files.long(slot);
    }
    Some(spans)
}

impl Target<'_> {
    #[inline(always)]
    fn note(&mut self, offset: u64, len: u64) {
        self.written.mark(offset..offset + len);
        if let Some(touched) = &mut self.touched {
            touched.mark(offset, len);
        }
    }

    /// Stores what `get(element, lane)` says. Does nothing and returns false where a lane's access is wrong.
    #[inline(always)]
    fn put<const SIZE: usize, const COUNT: usize, const ROW: usize>(
        &mut self,
        addresses: &Longs,
        lanes: u16,
        get: impl Fn(usize, usize) -> [u8; SIZE],
    ) -> bool {
        let unit = (SIZE * COUNT) as u64;
        let first_lane = lanes.trailing_zeros() as usize % WIDTH;
        let first = addresses.0[first_lane];
        let offset = first.wrapping_sub(self.base);
        let size = self.bytes.len();
        if let Pattern::Row = pattern(addresses, lanes, first_lane, unit) {
            let run = u64::from(lanes.count_ones());
            if !is_inside(offset, run * unit, size) {
                return false;
            }
            let bytes = &mut self.bytes[offset as usize..];
            match bytes.first_chunk_mut::<ROW>() {
                Some(row) if lanes == FULL => {
                    for lane in 0..WIDTH {
                        for element in 0..COUNT {
                            let at = (lane * COUNT + element) * SIZE;
                            row[at..at + SIZE].copy_from_slice(&get(element, lane));
                        }
                    }
                }
                _ => {
                    for (lane, unit) in bytes.chunks_exact_mut(SIZE * COUNT).enumerate().take(run as usize) {
                        for (element, bytes) in unit.chunks_exact_mut(SIZE).enumerate() {
                            bytes.copy_from_slice(&get(element, first_lane + lane));
                        }
                    }
                }
            }
            self.note(offset, run * unit);
            return true;
        }
        let is_good = |lane: usize| {
            let address = addresses.0[lane];
            address & (unit - 1) == 0 && is_inside(address.wrapping_sub(self.base), unit, size)
        };
        if !bits(lanes).all(is_good) {
            return false;
        }
        for lane in bits(lanes) {
            let offset = addresses.0[lane].wrapping_sub(self.base);
            let unit_bytes = &mut self.bytes[offset as usize..][..SIZE * COUNT];
            for (element, bytes) in unit_bytes.chunks_exact_mut(SIZE).enumerate() {
                bytes.copy_from_slice(&get(element, lane));
            }
            self.note(offset, unit);
        }
        true
    }
}

vectorised! {
    /// Stores the chunks for which nothing is wrong, and clears them in `left`.
    fn store(files: &Files, access: &Access, target: &mut Target<'_>, left: &mut Mask) = store_body
}

#[inline(always)]
fn store_body(files: &Files, access: &Access, target: &mut Target<'_>, left: &mut Mask) {
    match (access.bytes, access.values.len()) {
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

#[inline(always)]
fn store_words<const SIZE: usize, const COUNT: usize, const ROW: usize>(
    files: &Files,
    access: &Access,
    target: &mut Target<'_>,
    left: &mut Mask,
    cut: impl Fn(u32) -> [u8; SIZE],
) {
    let Some(spans) = word_spans::<COUNT>(files, access) else { return };
    for (chunk, lanes) in left.0.iter_mut().enumerate().take(files.chunks) {
        if *lanes == 0 {
            continue;
        }
        let addresses = addresses(files, access.address, chunk);
        let values = spans.map(|span| files.words[span.at(chunk)]);
        let get = |element: usize, lane: usize| cut(values[element].0[lane]);
        if target.put::<SIZE, COUNT, ROW>(&addresses, *lanes, get) {
            *lanes = 0;
        }
    }
}

#[inline(always)]
fn store_longs<const COUNT: usize, const ROW: usize>(
    files: &Files,
    access: &Access,
    target: &mut Target<'_>,
    left: &mut Mask,
) {
    let Some(spans) = long_spans::<COUNT>(files, access) else { return };
    for (chunk, lanes) in left.0.iter_mut().enumerate().take(files.chunks) {
        if *lanes == 0 {
            continue;
        }
        let addresses = addresses(files, access.address, chunk);
        let values = spans.map(|span| files.longs[span.at(chunk)]);
        let get = |element: usize, lane: usize| values[element].0[lane].to_le_bytes();
        if target.put::<8, COUNT, ROW>(&addresses, *lanes, get) {
            *lanes = 0;
        }
    }
}

/// Shared memory whose accesses are watched.
pub(super) struct Watched<'m> {
    pub(super) shadow: &'m mut Shadow,
    /// Address of the first byte.
    pub(super) base: u64,
    /// Bytes.
    pub(super) size: usize,
    /// The instruction.
    pub(super) pc: usize,
    pub(super) is_write: bool,
}

vectorised! {
    /// Notes what the chunks access, and clears those in `mask` that may race or leave the memory: their lanes are to be
    /// looked at one by one.
    fn watch(files: &Files, access: &Access, watched: &mut Watched<'_>, mask: &mut Mask) = watch_body
}

#[inline(always)]
fn watch_body(files: &Files, access: &Access, watched: &mut Watched<'_>, mask: &mut Mask) {
    let unit = u64::from(access.bytes) * access.values.len() as u64;
    for (chunk, lanes) in mask.0.iter_mut().enumerate().take(files.chunks) {
        if *lanes != 0 {
            let addresses = addresses(files, access.address, chunk);
            if !watched.admits(&addresses, *lanes, chunk * WIDTH, unit) {
                *lanes = 0;
            }
        }
    }
}

vectorised! {
    /// Loads and notes, in one go, whole chunks of 32-bit values that lie one after the other or are all the same: nearly
    /// all that is read from shared memory. Clears them in `left`.
    fn load_watched(files: &mut Files, access: &Access, source: &Source<'_>, watched: &mut Watched<'_>, left: &mut Mask) = load_watched_body
}

#[inline(always)]
fn load_watched_body(
    files: &mut Files,
    access: &Access,
    source: &Source<'_>,
    watched: &mut Watched<'_>,
    left: &mut Mask,
) {
    let Some([span]) =
        word_spans::<1>(files, access).filter(|_| access.bytes == 4 && access.values.len() == 1)
    else {
        return;
    };
    let Watched { shadow, pc, .. } = watched;
    for (chunk, lanes) in left.0.iter_mut().enumerate().take(files.chunks) {
        if *lanes != FULL {
            continue;
        }
        let addresses = addresses(files, access.address, chunk);
        let offset = addresses.0[0].wrapping_sub(source.base);
        let (first, last) = (chunk * WIDTH, chunk * WIDTH + WIDTH - 1);
        let value = match pattern(&addresses, FULL, 0, 4) {
            Pattern::Row => {
                if !source.holds(offset, 64) || !shadow.read_row(offset, 4, WIDTH, first, *pc) {
                    continue;
                }
                let Some(row) = source.bytes[offset as usize..].first_chunk::<64>() else { continue };
                Words(std::array::from_fn(|lane| u32::from_le_bytes(element_at(row, lane))))
            }
            Pattern::Same => {
                if !source.holds(offset, 4) || !shadow.read_same(offset, 4, [first, last], *pc) {
                    continue;
                }
                Words([u32::from_le_bytes(element_at(&source.bytes[offset as usize..], 0)); WIDTH])
            }
            Pattern::Scattered => continue,
        };
        files.words[span.at(chunk)] = value;
        *lanes = 0;
    }
}

vectorised! {
    /// Stores and notes, in one go, whole chunks of 32-bit values that lie one after the other. Clears them in `left`.
    fn store_watched(files: &Files, access: &Access, target: &mut Target<'_>, watched: &mut Watched<'_>, left: &mut Mask) = store_watched_body
}

#[inline(always)]
fn store_watched_body(
    files: &Files,
    access: &Access,
    target: &mut Target<'_>,
    watched: &mut Watched<'_>,
    left: &mut Mask,
) {
    let Some([span]) =
        word_spans::<1>(files, access).filter(|_| access.bytes == 4 && access.values.len() == 1)
    else {
        return;
    };
    let Watched { shadow, pc, size, .. } = watched;
    for (chunk, lanes) in left.0.iter_mut().enumerate().take(files.chunks) {
        if *lanes != FULL {
            continue;
        }
        let addresses = addresses(files, access.address, chunk);
        let offset = addresses.0[0].wrapping_sub(target.base);
        let Pattern::Row = pattern(&addresses, FULL, 0, 4) else { continue };
        if !is_inside(offset, 64, *size) || !shadow.write_row(offset, 4, WIDTH, chunk * WIDTH, *pc) {
            continue;
        }
        let Some(row) = target.bytes[offset as usize..].first_chunk_mut::<64>() else { continue };
        let value = &files.words[span.at(chunk)];
        for (bytes, word) in row.as_chunks_mut::<4>().0.iter_mut().zip(value.0) {
            *bytes = word.to_le_bytes();
        }
        target.written.mark(offset..offset + 64);
        *lanes = 0;
    }
}

impl Watched<'_> {
    #[inline(always)]
    fn admits(&mut self, addresses: &Longs, lanes: u16, thread: usize, unit: u64) -> bool {
        let Self { base, size, pc, is_write, .. } = *self;
        let first_lane = lanes.trailing_zeros() as usize % WIDTH;
        let offset = addresses.0[first_lane].wrapping_sub(base);
        match pattern(addresses, lanes, first_lane, unit) {
            Pattern::Row => {
                let run = lanes.count_ones() as usize;
                if !is_inside(offset, run as u64 * unit, size) {
                    return false;
                }
                match is_write {
                    true => self.shadow.write_row(offset, unit, run, thread + first_lane, pc),
                    false => self.shadow.read_row(offset, unit, run, thread + first_lane, pc),
                }
            }
            Pattern::Same if !is_write => {
                let last_lane = WIDTH - 1 - lanes.leading_zeros() as usize;
                is_inside(offset, unit, size)
                    && self.shadow.read_same(offset, unit, [thread + first_lane, thread + last_lane], pc)
            }
            _ => bits(lanes).all(|lane| {
                let offset = addresses.0[lane].wrapping_sub(base);
                offset & (unit - 1) == 0
                    && is_inside(offset, unit, size)
                    && match is_write {
                        true => self.shadow.write_row(offset, unit, 1, thread + lane, pc),
                        false => self.shadow.read_row(offset, unit, 1, thread + lane, pc),
                    }
            }),
        }
    }
}
