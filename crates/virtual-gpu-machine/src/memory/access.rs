//! Loads and stores: first in whole chunks of threads, then thread by thread for the rest, so that a fault names the
//! first affected thread.

use std::sync::atomic::{Ordering, fence};

use super::bytes::Location;
use super::load::{self, Source};
use super::store::{self, Target};
use super::view::{Own, Place};
use super::watched::{self, Watched};
use crate::block::{Block, SharedMemory};
use crate::consistency::LARGEST;
use crate::fault::{Access as Kind, Stop};
use crate::machine::Machine;
use crate::mask::{Mask, WIDTH};
use virtual_gpu_ptx::instruction::{Access, Value};

/// What the first of some threads accesses.
struct First {
    /// The memory.
    location: Location,
    /// The offset in that memory.
    offset: u64,
    /// The address of the memory's first byte.
    base: u64,
}

impl Machine<'_> {
    /// Executes `ld`.
    pub(crate) fn load(&mut self, access: &Access, mask: &Mask) -> Result<(), Stop> {
        self.looks += 1;
        self.order_on_host(access);
        let unit = u64::from(access.bytes) * access.values.len() as u64;
        let mut left = *mask;
        match self.location_of_first(access, mask) {
            Some(_) if access.scope.is_some() && self.is_observed() => {}
            Some(First { location: Location::Device(slot), .. }) => {
                let observed = self.observe_chunks(access, slot, mask, Kind::Read);
                if let Some(allocation) = self.memory.in_slot(slot) {
                    let (bytes, written) = allocation.parts();
                    let (touched, own) = self.record.reading(slot);
                    let own = self.memory.copy_of(slot).map(|copy| Own { copy, written: own });
                    let mut source =
                        Source { base: allocation.base(), bytes, written, own, touched: Some(touched) };
                    left = observed.unwrap_or(left);
                    let is_same =
                        self.is_whole && observed.is_none() && self.block.files.is_same(access.address.base);
                    load::load(&mut self.block.files, access, &mut source, &mut left, is_same);
                    if let Some(observed) = observed {
                        left = left.or(&mask.without(&observed));
                    }
                    self.bytes_read += unit * self.count_done(mask, &left);
                }
            }
            Some(First { location: Location::Shared, base, .. }) => {
                self.load_shared(access, base, &mut left);
                self.shared_bytes += unit * self.count_done(mask, &left);
            }
            Some(First { location: Location::Other(_), .. }) | None => {}
        }
        if left.is_empty() {
            return Ok(());
        }
        for thread in left.threads() {
            let address = self.address_of(access.address, thread);
            self.load_thread(access, thread, address, unit)?;
        }
        Ok(())
    }

    /// Returns the number of threads in `mask` that are not in `left`.
    fn count_done(&self, mask: &Mask, left: &Mask) -> u64 {
        let all = if self.is_whole { self.threads as u64 } else { mask.count() };
        if left.is_empty() { all } else { all - left.count() }
    }

    /// Loads whole chunks from shared memory and removes them from `left`.
    fn load_shared(&mut self, access: &Access, base: u64, left: &mut Mask) {
        if self.block.shadow.is_on && self.has_visits() {
            return;
        }
        let (pc, Block { files, shared, shadow, .. }) = (self.pc, &mut *self.block);
        if shadow.is_on && !access.is_atomic {
            let SharedMemory { bytes, written } = &*shared;
            let bytes = &bytes[..self.shared_size];
            let mut watched = Watched { shadow, base, size: bytes.len(), pc, is_write: false };
            let source = Source { base, bytes, written, own: None, touched: None };
            watched::load(files, access, &source, &mut watched, left);
        }
        if left.is_empty() {
            return;
        }
        let asked = *left;
        let watched = self.watched_threads(access, left, base, false);
        let Block { files, shared: SharedMemory { bytes, written }, .. } = &mut *self.block;
        let bytes = &bytes[..self.shared_size];
        let mut source = Source { base, bytes, written, own: None, touched: None };
        *left = watched;
        load::load(files, access, &mut source, left, false);
        *left = left.or(&asked.without(&watched));
    }

    /// Orders a strong access on the host, too: another process may access the same memory.
    fn order_on_host(&self, access: &Access) {
        if access.scope.is_some() && self.together.is_some() {
            fence(Ordering::SeqCst);
        }
    }

    /// Executes `st`.
    pub(crate) fn store(&mut self, access: &Access, mask: &Mask) -> Result<(), Stop> {
        self.changes += 1;
        self.order_on_host(access);
        let unit = u64::from(access.bytes) * access.values.len() as u64;
        let mut left = *mask;
        match self.location_of_first(access, mask) {
            Some(_) if access.scope.is_some() && self.is_observed() => {}
            Some(First { location: Location::Device(slot), offset, .. }) => {
                let observed = self.observe_chunks(access, slot, mask, Kind::Write);
                let len = unit * self.threads as u64;
                if let Some(place) = self.memory.place(slot, offset, len) {
                    let touched = Some(self.record.bits(slot, Kind::Write));
                    let mut target = Target { place, touched };
                    left = observed.unwrap_or(left);
                    store::store(&mut self.block.files, access, &mut target, &mut left);
                    if let Some(observed) = observed {
                        left = left.or(&mask.without(&observed));
                    }
                    self.bytes_written += unit * self.count_done(mask, &left);
                }
            }
            Some(First { location: Location::Shared, base, .. }) => {
                self.store_shared(access, base, &mut left);
                self.shared_bytes += unit * self.count_done(mask, &left);
            }
            Some(First { location: Location::Other(_), .. }) | None => {}
        }
        if left.is_empty() {
            return Ok(());
        }
        for thread in left.threads() {
            let address = self.address_of(access.address, thread);
            self.store_thread(access, thread, address, unit)?;
        }
        Ok(())
    }

    /// Stores whole chunks to shared memory and removes them from `left`.
    fn store_shared(&mut self, access: &Access, base: u64, left: &mut Mask) {
        if self.block.shadow.is_on && self.has_visits() {
            return;
        }
        let (pc, Block { files, shared, shadow, .. }) = (self.pc, &mut *self.block);
        if shadow.is_on && !access.is_atomic {
            let mut watched = Watched { shadow, base, size: self.shared_size, pc, is_write: true };
            let SharedMemory { bytes, written } = shared;
            let place = Place { base, start: 0, bytes: &mut bytes[..self.shared_size], written };
            let mut target = Target { place, touched: None };
            watched::store(files, access, &mut target, &mut watched, left);
        }
        if left.is_empty() {
            return;
        }
        let asked = *left;
        let watched = self.watched_threads(access, left, base, true);
        let Block { files, shared: SharedMemory { bytes, written }, .. } = &mut *self.block;
        let place = Place { base, start: 0, bytes: &mut bytes[..self.shared_size], written };
        let mut target = Target { place, touched: None };
        *left = watched;
        store::store(files, access, &mut target, left);
        *left = left.or(&asked.without(&watched));
    }

    /// Returns the threads whose accesses to shared memory don't race, and records these accesses.
    fn watched_threads(&mut self, access: &Access, mask: &Mask, base: u64, is_write: bool) -> Mask {
        let (pc, Block { files, shadow, .. }) = (self.pc, &mut *self.block);
        if !shadow.is_on {
            return *mask;
        }
        if access.is_atomic {
            return Mask::NONE;
        }
        let mut harmless = *mask;
        let mut watched = Watched { shadow, base, size: self.shared_size, pc, is_write };
        watched::watch(files, access, &mut watched, &mut harmless);
        harmless
    }

    /// Returns what the first thread accesses. All threads nearly always access the same memory.
    fn location_of_first(&mut self, access: &Access, mask: &Mask) -> Option<First> {
        let chunk = mask.0.iter().position(|&active| active != 0)?;
        let thread = chunk * WIDTH + mask.0[chunk].trailing_zeros() as usize;
        let address = self.address_of(access.address, thread);
        let (location, offset) = self.locate(access.space, address, 1)?;
        Some(First { location, offset, base: address.wrapping_sub(offset) })
    }

    /// Loads for one thread and reports any fault.
    fn load_thread(&mut self, access: &Access, thread: usize, address: u64, unit: u64) -> Result<(), Stop> {
        let mut bytes = [0; 32];
        let size = usize::from(access.bytes);
        self.watch_read(access.space, thread, address, unit, access.is_atomic);
        self.scope = access.scope;
        let outcome = self.read_bytes(access.space, Kind::Read, thread, address, &mut bytes[..unit as usize]);
        if outcome.is_ok()
            && self.is_observed()
            && access.scope.is_some()
            && let Some(at) = self.locate(access.space, address, unit)
        {
            let whole = whole(unit as usize, size);
            for (part, bytes) in (0..).zip(bytes[..unit as usize].chunks_exact_mut(whole)) {
                let at = (at.0, at.1 + part * whole as u64);
                self.observe_strong_read(at, thread, bytes, false);
            }
        }
        self.scope = None;
        outcome?;
        for (element, value) in access.values.iter().enumerate() {
            let bits = extend(read(&bytes[element * size..(element + 1) * size]), size, access.signed);
            match *value {
                Some(Value::Word(slot)) => self.block.files.set_word(slot, thread, bits as u32),
                Some(Value::Long(slot)) => self.block.files.set_long(slot, thread, bits),
                None => {}
            }
        }
        Ok(())
    }

    /// Stores for one thread and reports any fault.
    fn store_thread(&mut self, access: &Access, thread: usize, address: u64, unit: u64) -> Result<(), Stop> {
        let mut bytes = [0; 32];
        let size = usize::from(access.bytes);
        for (element, value) in access.values.iter().enumerate() {
            let bits = value.map_or(0, |value| self.value_of(value, thread));
            bytes[element * size..(element + 1) * size].copy_from_slice(&bits.to_le_bytes()[..size]);
        }
        self.watch_write(access.space, thread, address, &bytes[..unit as usize], access.is_atomic);
        if !self.is_observed() || access.scope.is_none() {
            return self.write_bytes(access.space, Kind::Write, thread, address, &bytes[..unit as usize]);
        }
        self.store_strongly(access, thread, address, &bytes[..unit as usize])
    }

    /// Stores for one thread with a strong instruction that other launches may observe.
    fn store_strongly(
        &mut self,
        access: &Access,
        thread: usize,
        address: u64,
        bytes: &[u8],
    ) -> Result<(), Stop> {
        self.scope = access.scope;
        let size = usize::from(access.bytes);
        if let Some((location, offset)) = self.locate(access.space, address, bytes.len() as u64) {
            let mut old = [0; 32];
            let old = &mut old[..bytes.len()];
            self.peek(location, offset, old);
            let whole = whole(bytes.len(), size);
            for (part, values) in (0..).zip(old.chunks_exact(whole).zip(bytes.chunks_exact(whole))) {
                let at = (location, offset + part * whole as u64);
                self.observe_strong_write(at, thread, values.into(), false);
            }
        }
        let stored = self.write_bytes(access.space, Kind::Write, thread, address, bytes);
        self.block.observer.end_write(thread);
        self.scope = None;
        stored
    }
}

/// Returns the number of bytes that a strong access of `unit` bytes reads or writes at once. The manual promises no more than
/// an element, but hardware does not split a vector, and the LL protocol of NCCL relies on it.
fn whole(unit: usize, element: usize) -> usize {
    if unit <= LARGEST { unit } else { element }
}

/// Reads up to eight bytes, little-endian.
#[inline]
pub(super) fn read(bytes: &[u8]) -> u64 {
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
