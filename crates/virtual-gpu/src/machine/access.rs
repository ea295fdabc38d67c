//! Loads and stores. A chunk whose lanes read neighbouring addresses, or all the same one, costs one check and one
//! copy; any other goes lane by lane.

use super::block::{Machine, Stop};
use super::fault::{Access as Kind, FaultKind};
use super::file::{FULL, Longs, Mask, WIDTH, Words, bits};
use super::window;
use crate::memory::{POISON, Written};
use crate::ptx::instruction::{Access, Address, Space, Value};

/// Memory that an access falls into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// The allocation in this slot.
    Device(usize),
    Shared,
}

/// How a chunk's addresses lie.
enum Pattern {
    /// One after the other, without gaps.
    Row,
    /// All the same.
    Same,
    Scattered,
}

impl Machine<'_> {
    /// A chunk's addresses.
    #[inline]
    pub(super) fn addresses(&self, address: Address, chunk: usize) -> Longs {
        let files = &self.block.files;
        let base = match address.base {
            Value::Long(slot) => files.longs[files.long(slot).at(chunk)],
            Value::Word(slot) => Longs(files.words[files.word(slot).at(chunk)].0.map(u64::from)),
        };
        Longs(base.0.map(|base| base.wrapping_add(address.offset as u64)))
    }

    /// `ld`
    pub(super) fn load(&mut self, access: &Access, mask: &Mask) -> Result<(), Stop> {
        let unit = u64::from(access.bytes) * access.values.len() as u64;
        for chunk in 0..self.block.files.chunks {
            let lanes = mask.0[chunk];
            if lanes == 0 {
                continue;
            }
            let addresses = self.addresses(access.address, chunk);
            self.bytes_read += unit * u64::from(lanes.count_ones());
            let done = match pattern(&addresses, lanes, unit) {
                Pattern::Row => self.load_row(access, chunk, addresses.0[0], unit),
                Pattern::Same => {
                    let first = addresses.0[lanes.trailing_zeros() as usize];
                    self.load_same(access, chunk, lanes, first, unit)
                }
                Pattern::Scattered => false,
            };
            if !done {
                for lane in bits(lanes) {
                    self.load_lane(access, chunk * WIDTH + lane, addresses.0[lane], unit)?;
                }
            }
        }
        Ok(())
    }

    /// Where `address..address + len` lies, if all of it is in one piece, and its offset there.
    #[inline]
    fn locate(&mut self, space: Space, address: u64, len: u64) -> Option<(Home, u64)> {
        let address = match space {
            Space::Shared => address,
            Space::Generic if address >> 48 == window::SHARED >> 48 => address - window::SHARED,
            Space::Global | Space::Const | Space::Generic => return self.locate_device(address, len),
            Space::Local | Space::Param => return None,
        };
        let size = self.block.shared.bytes.len() as u64;
        (address <= size && len <= size - address).then_some((Home::Shared, address))
    }

    #[inline]
    fn locate_device(&mut self, address: u64, len: u64) -> Option<(Home, u64)> {
        for _ in 0..2 {
            if let Some(allocation) = self.memory.in_slot(self.last_slot) {
                let offset = address.wrapping_sub(allocation.base());
                let size = allocation.size();
                if offset < size && len <= size - offset {
                    return Some((Home::Device(self.last_slot), offset));
                }
            }
            self.last_slot = self.memory.slot_of(address)?;
        }
        None
    }

    fn parts(&self, home: Home) -> Option<(&[u8], &Written)> {
        match home {
            Home::Device(slot) => self.memory.in_slot(slot).map(|allocation| allocation.parts()),
            Home::Shared => Some((&self.block.shared.bytes, &self.block.shared.written)),
        }
    }

    fn parts_mut(&mut self, home: Home) -> Option<(&mut [u8], &mut Written)> {
        match home {
            Home::Device(slot) => self.memory.in_slot_mut(slot).map(|allocation| allocation.parts_mut()),
            Home::Shared => Some((&mut self.block.shared.bytes, &mut self.block.shared.written)),
        }
    }

    #[inline]
    fn note(&mut self, home: Home, offset: u64, len: u64, kind: Kind) {
        if let Home::Device(slot) = home {
            self.record.mark(slot, offset, len, kind);
        }
    }

    /// A full chunk from one stretch of memory. Whether it could be done.
    fn load_row(&mut self, access: &Access, chunk: usize, address: u64, unit: u64) -> bool {
        let len = unit * WIDTH as u64;
        if address & (unit - 1) != 0 {
            return false;
        }
        let Some((home, offset)) = self.locate(access.space, address, len) else { return false };
        let Some((bytes, written)) = self.parts(home) else { return false };
        if !written.is_full() && written.first_missing(offset..offset + len).is_some() {
            return false;
        }
        let row = &bytes[offset as usize..(offset + len) as usize];
        let size = usize::from(access.bytes);
        let count = access.values.len();
        // At most four elements of eight bytes.
        let mut results = [Longs::ZERO; 4];
        match (size, count) {
            (4, 1) => {
                let mut result = Words::ZERO;
                for (lane, bytes) in row.chunks_exact(4).enumerate().take(WIDTH) {
                    result.0[lane] = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
                self.note(home, offset, len, Kind::Read);
                if let Some(Value::Word(slot)) = access.values[0] {
                    let at = self.block.files.word(slot).at(chunk);
                    self.block.files.words[at] = result;
                    return true;
                }
                results[0] = Longs(result.0.map(|word| extend(u64::from(word), 4, access.signed)));
            }
            _ => {
                for lane in 0..WIDTH {
                    for (element, result) in results.iter_mut().enumerate().take(count) {
                        let at = (lane * count + element) * size;
                        result.0[lane] = extend(read(&row[at..at + size]), size, access.signed);
                    }
                }
                self.note(home, offset, len, Kind::Read);
            }
        }
        for (value, result) in access.values.iter().zip(results) {
            self.put_chunk(*value, chunk, FULL, result);
        }
        true
    }

    /// One element for all lanes. Whether it could be done.
    fn load_same(&mut self, access: &Access, chunk: usize, lanes: u16, address: u64, unit: u64) -> bool {
        if address & (unit - 1) != 0 {
            return false;
        }
        let Some((home, offset)) = self.locate(access.space, address, unit) else { return false };
        let Some((bytes, written)) = self.parts(home) else { return false };
        if !written.is_full() && written.first_missing(offset..offset + unit).is_some() {
            return false;
        }
        let size = usize::from(access.bytes);
        let mut results = [0; 4];
        for (element, result) in results.iter_mut().enumerate().take(access.values.len()) {
            let at = offset as usize + element * size;
            *result = extend(read(&bytes[at..at + size]), size, access.signed);
        }
        self.note(home, offset, unit, Kind::Read);
        for (value, result) in access.values.iter().zip(results) {
            self.put_chunk(*value, chunk, lanes, Longs([result; WIDTH]));
        }
        true
    }

    fn put_chunk(&mut self, value: Option<Value>, chunk: usize, lanes: u16, from: Longs) {
        let files = &mut self.block.files;
        match value {
            Some(Value::Word(slot)) => {
                let at = files.word(slot).at(chunk);
                files.words[at].take(Words(from.0.map(|value| value as u32)), lanes);
            }
            Some(Value::Long(slot)) => {
                let at = files.long(slot).at(chunk);
                files.longs[at].take(from, lanes);
            }
            None => {}
        }
    }

    /// One lane, whatever is wrong with it.
    fn load_lane(&mut self, access: &Access, lane: usize, address: u64, unit: u64) -> Result<(), Stop> {
        let mut bytes = [0; 32];
        let size = usize::from(access.bytes);
        self.read_bytes(access.space, Kind::Read, lane, address, &mut bytes[..unit as usize])?;
        for (element, value) in access.values.iter().enumerate() {
            let bits = extend(read(&bytes[element * size..(element + 1) * size]), size, access.signed);
            match *value {
                Some(Value::Word(slot)) => self.block.files.set_word(slot, lane, bits as u32),
                Some(Value::Long(slot)) => self.block.files.set_long(slot, lane, bits),
                None => {}
            }
        }
        Ok(())
    }

    /// Reads what one lane sees at an address: checked, poisoned where unwritten, noted.
    pub(super) fn read_bytes(
        &mut self,
        space: Space,
        kind: Kind,
        lane: usize,
        address: u64,
        into: &mut [u8],
    ) -> Result<(), Stop> {
        let len = into.len() as u64;
        let (space, address) = concrete(space, address);
        self.check_alignment(space, kind, lane, address, len)?;
        match space {
            Space::Local => {
                let at = self.local_offset(kind, lane, address, len)?;
                into.copy_from_slice(&self.block.local[at..at + into.len()]);
                return Ok(());
            }
            Space::Param => {
                let start = address as usize;
                let Some(bytes) = self.launch.parameters.get(start..start.saturating_add(into.len())) else {
                    let size = self.launch.parameters.len() as u64;
                    let fault = FaultKind::LocalOutOfBounds { size };
                    return Err(self.access_fault(fault, space, kind, lane, address, len));
                };
                into.copy_from_slice(bytes);
                return Ok(());
            }
            _ => {}
        }
        let Some((home, offset)) = self.locate(space, address, len) else {
            return Err(self.bad_address(space, kind, lane, address, len));
        };
        let mut first_missing = None;
        if let Some((bytes, written)) = self.parts(home) {
            into.copy_from_slice(&bytes[offset as usize..(offset + len) as usize]);
            first_missing = written.first_missing(offset..offset + len);
            if first_missing.is_some() {
                for (at, byte) in (offset..).zip(into.iter_mut()) {
                    if written.first_missing(at..at + 1).is_some() {
                        *byte = POISON;
                    }
                }
            }
        }
        if kind == Kind::Read {
            self.note(home, offset, len, kind);
        }
        if first_missing.is_some() && self.unwritten.is_none() {
            self.unwritten = Some(self.report(lane, Some((space, kind, address, len))));
        }
        Ok(())
    }

    /// `st`
    pub(super) fn store(&mut self, access: &Access, mask: &Mask) -> Result<(), Stop> {
        let unit = u64::from(access.bytes) * access.values.len() as u64;
        for chunk in 0..self.block.files.chunks {
            let lanes = mask.0[chunk];
            if lanes == 0 {
                continue;
            }
            let addresses = self.addresses(access.address, chunk);
            self.bytes_written += unit * u64::from(lanes.count_ones());
            let done = match pattern(&addresses, lanes, unit) {
                Pattern::Row => self.store_row(access, chunk, addresses.0[0], unit),
                _ => false,
            };
            if !done {
                for lane in bits(lanes) {
                    self.store_lane(access, chunk * WIDTH + lane, addresses.0[lane], unit)?;
                }
            }
        }
        Ok(())
    }

    /// A full chunk into one stretch of memory. Whether it could be done.
    fn store_row(&mut self, access: &Access, chunk: usize, address: u64, unit: u64) -> bool {
        let len = unit * WIDTH as u64;
        if address & (unit - 1) != 0 {
            return false;
        }
        let Some((home, offset)) = self.locate(access.space, address, len) else { return false };
        // At most sixteen lanes of four elements of eight bytes.
        let mut row = [0; WIDTH * 32];
        let row = &mut row[..len as usize];
        let size = usize::from(access.bytes);
        let count = access.values.len();
        for (element, value) in access.values.iter().enumerate() {
            let files = &self.block.files;
            match *value {
                Some(Value::Word(slot)) => {
                    let from = &files.words[files.word(slot).at(chunk)];
                    if (size, count) == (4, 1) {
                        for (bytes, word) in row.chunks_exact_mut(4).zip(from.0) {
                            bytes.copy_from_slice(&word.to_le_bytes());
                        }
                        continue;
                    }
                    for lane in 0..WIDTH {
                        let at = (lane * count + element) * size;
                        row[at..at + size].copy_from_slice(&u64::from(from.0[lane]).to_le_bytes()[..size]);
                    }
                }
                Some(Value::Long(slot)) => {
                    let from = &files.longs[files.long(slot).at(chunk)];
                    for lane in 0..WIDTH {
                        let at = (lane * count + element) * size;
                        row[at..at + size].copy_from_slice(&from.0[lane].to_le_bytes()[..size]);
                    }
                }
                None => {}
            }
        }
        let Some((bytes, written)) = self.parts_mut(home) else { return false };
        bytes[offset as usize..(offset + len) as usize].copy_from_slice(row);
        written.mark(offset..offset + len);
        self.note(home, offset, len, Kind::Write);
        true
    }

    fn store_lane(&mut self, access: &Access, lane: usize, address: u64, unit: u64) -> Result<(), Stop> {
        let mut bytes = [0; 32];
        let size = usize::from(access.bytes);
        for (element, value) in access.values.iter().enumerate() {
            let bits = value.map_or(0, |value| self.value_of(value, lane));
            bytes[element * size..(element + 1) * size].copy_from_slice(&bits.to_le_bytes()[..size]);
        }
        self.write_bytes(access.space, Kind::Write, lane, address, &bytes[..unit as usize])
    }

    /// Writes for one lane: checked, marked as written, noted.
    pub(super) fn write_bytes(
        &mut self,
        space: Space,
        kind: Kind,
        lane: usize,
        address: u64,
        from: &[u8],
    ) -> Result<(), Stop> {
        let len = from.len() as u64;
        let (space, address) = concrete(space, address);
        self.check_alignment(space, kind, lane, address, len)?;
        if space == Space::Local {
            let at = self.local_offset(kind, lane, address, len)?;
            self.block.local[at..at + from.len()].copy_from_slice(from);
            return Ok(());
        }
        let Some((home, offset)) = self.locate(space, address, len) else {
            return Err(self.bad_address(space, kind, lane, address, len));
        };
        if let Some((bytes, written)) = self.parts_mut(home) {
            bytes[offset as usize..(offset + len) as usize].copy_from_slice(from);
            written.mark(offset..offset + len);
        }
        self.note(home, offset, len, kind);
        Ok(())
    }

    /// A lane's register, zero-extended.
    pub(super) fn value_of(&self, value: Value, lane: usize) -> u64 {
        match value {
            Value::Word(slot) => u64::from(self.block.files.word_of(slot, lane)),
            Value::Long(slot) => self.block.files.long_of(slot, lane),
        }
    }

    fn check_alignment(
        &self,
        space: Space,
        kind: Kind,
        lane: usize,
        address: u64,
        len: u64,
    ) -> Result<(), Stop> {
        if address & (len - 1) == 0 {
            return Ok(());
        }
        let fault = FaultKind::Misaligned { needed: len as u32 };
        Err(self.access_fault(fault, space, kind, lane, address, len))
    }

    fn local_offset(&self, kind: Kind, lane: usize, address: u64, len: u64) -> Result<usize, Stop> {
        let size = u64::from(self.kernel.local_bytes());
        if address <= size && len <= size - address {
            return Ok(lane * size as usize + address as usize);
        }
        let fault = FaultKind::LocalOutOfBounds { size };
        Err(self.access_fault(fault, Space::Local, kind, lane, address, len))
    }

    fn bad_address(&self, space: Space, kind: Kind, lane: usize, address: u64, len: u64) -> Stop {
        let fault = match space {
            Space::Shared => FaultKind::SharedOutOfBounds { size: self.block.shared.bytes.len() as u64 },
            _ => FaultKind::BadAddress(self.memory.explain(address, len)),
        };
        self.access_fault(fault, space, kind, lane, address, len)
    }
}

/// A generic address's state space, and the address in it.
pub(super) fn concrete(space: Space, address: u64) -> (Space, u64) {
    if space != Space::Generic {
        return (space, address);
    }
    let top = address >> 48 << 48;
    match top {
        window::SHARED => (Space::Shared, address - top),
        window::LOCAL => (Space::Local, address - top),
        window::PARAM => (Space::Param, address - top),
        _ => (Space::Global, address),
    }
}

#[inline]
fn pattern(addresses: &Longs, lanes: u16, unit: u64) -> Pattern {
    let first = addresses.0[lanes.trailing_zeros() as usize % WIDTH];
    if lanes == FULL {
        let mut row = 0;
        let mut same = 0;
        for lane in 0..WIDTH {
            row |= addresses.0[lane] ^ first.wrapping_add(lane as u64 * unit);
            same |= addresses.0[lane] ^ first;
        }
        return match (row, same) {
            (0, _) => Pattern::Row,
            (_, 0) => Pattern::Same,
            _ => Pattern::Scattered,
        };
    }
    let same = bits(lanes).all(|lane| addresses.0[lane] == first);
    if same { Pattern::Same } else { Pattern::Scattered }
}

/// Up to eight bytes, little-endian.
#[inline]
fn read(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

#[inline]
fn extend(value: u64, size: usize, signed: bool) -> u64 {
    if !signed || size >= 8 {
        return value;
    }
    let shift = 64 - 8 * size as u32;
    ((value << shift) as i64 >> shift) as u64
}
