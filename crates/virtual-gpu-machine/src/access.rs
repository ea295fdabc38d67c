//! Loads and stores: first the fast way of [`super::stretch`]; what that leaves, lane by lane, so that the first lane
//! with a fault is the one that is named.

use super::block::{Block, Machine, Shared, Stop};
use super::fault::{Access as Kind, FaultKind};
use super::file::{Mask, WIDTH};
use super::stretch::{self, Source, Target, Watched};
use virtual_gpu_core::memory::{POISON, Written};
use virtual_gpu_ptx::instruction::{Access, Address, Space, Value};
use virtual_gpu_ptx::window;

/// Memory that an access falls into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// The allocation in this slot.
    Device(usize),
    Shared,
}

impl Machine<'_> {
    /// `ld`
    pub(super) fn load(&mut self, access: &Access, mask: &Mask) -> Result<(), Stop> {
        self.looks += 1;
        let unit = u64::from(access.bytes) * access.values.len() as u64;
        let mut left = *mask;
        match self.home_of_first(access, mask) {
            Some((Home::Device(slot), _)) => {
                if let Some(allocation) = self.memory.in_slot(slot) {
                    let (bytes, written) = allocation.parts();
                    let touched = Some(self.record.bits(slot, Kind::Read));
                    let mut source = Source { base: allocation.base(), bytes, written, touched };
                    stretch::load(&mut self.block.files, access, &mut source, &mut left);
                    self.bytes_read += unit * (mask.count() - left.count());
                }
            }
            Some((Home::Shared, base)) => {
                self.load_shared(access, base, &mut left);
            }
            None => {}
        }
        if left.is_empty() {
            return Ok(());
        }
        for lane in left.lanes() {
            let address = self.address_of(access.address, lane);
            self.load_lane(access, lane, address, unit)?;
        }
        Ok(())
    }

    /// Loads from shared memory what can be loaded the fast way, and clears it in `left`.
    fn load_shared(&mut self, access: &Access, base: u64, left: &mut Mask) {
        let (pc, Block { files, shared, shadow, .. }) = (self.pc, &mut *self.block);
        if shadow.is_on && !access.is_atomic {
            let Shared { bytes, written } = &*shared;
            let mut watched = Watched { shadow, base, size: bytes.len(), pc, is_write: false };
            let source = Source { base, bytes, written, touched: None };
            stretch::load_watched(files, access, &source, &mut watched, left);
        }
        if left.is_empty() {
            return;
        }
        let asked = *left;
        let watched = self.watched_lanes(access, left, base, false);
        let Block { files, shared: Shared { bytes, written }, .. } = &mut *self.block;
        let mut source = Source { base, bytes, written, touched: None };
        *left = watched;
        stretch::load(files, access, &mut source, left);
        *left = left.or(&asked.without(&watched));
    }

    /// `st`
    pub(super) fn store(&mut self, access: &Access, mask: &Mask) -> Result<(), Stop> {
        self.changes += 1;
        let unit = u64::from(access.bytes) * access.values.len() as u64;
        let mut left = *mask;
        match self.home_of_first(access, mask) {
            Some((Home::Device(slot), _)) => {
                if let Some(allocation) = self.memory.in_slot_mut(slot) {
                    let base = allocation.base();
                    let (bytes, written) = allocation.parts_mut();
                    let touched = Some(self.record.bits(slot, Kind::Write));
                    let mut target = Target { base, bytes, written, touched };
                    stretch::store(&self.block.files, access, &mut target, &mut left);
                    self.bytes_written += unit * (mask.count() - left.count());
                }
            }
            Some((Home::Shared, base)) => {
                self.store_shared(access, base, &mut left);
            }
            None => {}
        }
        if left.is_empty() {
            return Ok(());
        }
        for lane in left.lanes() {
            let address = self.address_of(access.address, lane);
            self.store_lane(access, lane, address, unit)?;
        }
        Ok(())
    }

    /// As [`Self::load_shared`], of stores.
    fn store_shared(&mut self, access: &Access, base: u64, left: &mut Mask) {
        let (pc, Block { files, shared, shadow, .. }) = (self.pc, &mut *self.block);
        if shadow.is_on && !access.is_atomic {
            let mut watched = Watched { shadow, base, size: shared.bytes.len(), pc, is_write: true };
            let Shared { bytes, written } = shared;
            let mut target = Target { base, bytes, written, touched: None };
            stretch::store_watched(files, access, &mut target, &mut watched, left);
        }
        if left.is_empty() {
            return;
        }
        let asked = *left;
        let watched = self.watched_lanes(access, left, base, true);
        let Block { files, shared: Shared { bytes, written }, .. } = &mut *self.block;
        let mut target = Target { base, bytes, written, touched: None };
        *left = watched;
        stretch::store(files, access, &mut target, left);
        *left = left.or(&asked.without(&watched));
    }

    /// Of the lanes that access shared memory, those that race with nothing; what they do is noted.
    fn watched_lanes(&mut self, access: &Access, mask: &Mask, base: u64, is_write: bool) -> Mask {
        let (pc, Block { files, shared, shadow, .. }) = (self.pc, &mut *self.block);
        if !shadow.is_on {
            return *mask;
        }
        if access.is_atomic {
            return Mask::NONE;
        }
        let mut lanes = *mask;
        let mut watched = Watched { shadow, base, size: shared.bytes.len(), pc, is_write };
        stretch::watch(files, access, &mut watched, &mut lanes);
        lanes
    }

    /// The address that one lane accesses.
    pub(super) fn address_of(&self, address: Address, lane: usize) -> u64 {
        self.value_of(address.base, lane).wrapping_add(address.offset as u64)
    }

    /// What the first lane accesses, and the address of its first byte. Most often it is what all lanes access.
    fn home_of_first(&mut self, access: &Access, mask: &Mask) -> Option<(Home, u64)> {
        let chunk = mask.0.iter().position(|&lanes| lanes != 0)?;
        let lane = chunk * WIDTH + mask.0[chunk].trailing_zeros() as usize;
        let address = self.address_of(access.address, lane);
        let (home, offset) = self.locate(access.space, address, 1)?;
        Some((home, address.wrapping_sub(offset)))
    }

    /// Where `address..address + len` lies, if all of it is in one piece, and its offset there.
    #[inline]
    pub(super) fn locate(&mut self, space: Space, address: u64, len: u64) -> Option<(Home, u64)> {
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

    /// One lane, whatever is wrong with it.
    fn load_lane(&mut self, access: &Access, lane: usize, address: u64, unit: u64) -> Result<(), Stop> {
        let mut bytes = [0; 32];
        let size = usize::from(access.bytes);
        self.watch_read(access.space, lane, address, unit, access.is_atomic);
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
        if home != Home::Shared {
            self.bytes_read += len;
        }
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

    fn store_lane(&mut self, access: &Access, lane: usize, address: u64, unit: u64) -> Result<(), Stop> {
        let mut bytes = [0; 32];
        let size = usize::from(access.bytes);
        for (element, value) in access.values.iter().enumerate() {
            let bits = value.map_or(0, |value| self.value_of(value, lane));
            bytes[element * size..(element + 1) * size].copy_from_slice(&bits.to_le_bytes()[..size]);
        }
        self.watch_write(access.space, lane, address, &bytes[..unit as usize], access.is_atomic);
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
        if home != Home::Shared {
            self.bytes_written += len;
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

    pub(super) fn check_alignment(
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

    pub(super) fn local_offset(
        &self,
        kind: Kind,
        lane: usize,
        address: u64,
        len: u64,
    ) -> Result<usize, Stop> {
        let size = self.local_bytes;
        if address <= size && len <= size - address {
            return Ok(lane * size as usize + address as usize);
        }
        let fault = FaultKind::LocalOutOfBounds { size };
        Err(self.access_fault(fault, Space::Local, kind, lane, address, len))
    }

    pub(super) fn bad_address(&self, space: Space, kind: Kind, lane: usize, address: u64, len: u64) -> Stop {
        let fault = match space {
            Space::Shared => FaultKind::SharedOutOfBounds { size: self.block.shared.bytes.len() as u64 },
            _ => FaultKind::BadAddress(self.memory.explain(address)),
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
