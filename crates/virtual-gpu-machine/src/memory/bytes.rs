//! Reads and writes one thread's bytes, with all checks.

use super::address::concrete;
use crate::block::SharedMemory;
use crate::fault::{Access as Kind, FaultKind, Stop};
use crate::machine::Machine;
use virtual_gpu_core::memory::{POISON, Written};
use virtual_gpu_ptx::instruction::{Address, Space, Value};
use virtual_gpu_ptx::window;

/// The memory that contains an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// The allocation in this slot.
    Device(usize),
    /// The shared memory of the running block.
    Shared,
    /// The shared memory of the block with this rank in the cluster.
    Other(usize),
}

impl Machine<'_> {
    /// Returns the address that a thread accesses.
    pub(crate) fn address_of(&self, address: Address, thread: usize) -> u64 {
        self.value_of(address.base, thread).wrapping_add(address.offset as u64)
    }

    /// Returns the value of a thread's register, zero-extended.
    pub(crate) fn value_of(&self, value: Value, thread: usize) -> u64 {
        match value {
            Value::Word(slot) => u64::from(self.block.files.word_of(slot, thread)),
            Value::Long(slot) => self.block.files.long_of(slot, thread),
        }
    }

    /// Returns the memory that contains all of `address..address + len`, and the offset of `address` in it.
    #[inline]
    pub(crate) fn locate(&mut self, space: Space, address: u64, len: u64) -> Option<(Location, u64)> {
        let address = match space {
            Space::Shared => address,
            Space::Generic if address >> 48 == window::SHARED >> 48 => address - window::SHARED,
            Space::Global | Space::Const | Space::Generic => return self.locate_device(address, len),
            Space::Local | Space::Param => return None,
        };
        let (rank, offset) = self.owner(address)?;
        let size = self.block.shared.bytes.len() as u64;
        let location = if rank == self.cluster.rank { Location::Shared } else { Location::Other(rank) };
        (offset <= size && len <= size - offset).then_some((location, offset))
    }

    #[inline]
    fn locate_device(&mut self, address: u64, len: u64) -> Option<(Location, u64)> {
        for _ in 0..2 {
            if let Some(slot) = self.last_slot
                && let Some(allocation) = self.memory.in_slot(slot)
            {
                let offset = address.wrapping_sub(allocation.base());
                let size = allocation.size();
                if offset < size && len <= size - offset {
                    return Some((Location::Device(slot), offset));
                }
            }
            self.last_slot = Some(self.memory.slot_of(address)?);
        }
        None
    }

    fn parts(&self, location: Location) -> Option<(&[u8], &Written)> {
        match location {
            Location::Device(slot) => self.memory.in_slot(slot).map(|allocation| allocation.parts()),
            Location::Shared => Some((&self.block.shared.bytes, &self.block.shared.written)),
            Location::Other(rank) => {
                let SharedMemory { bytes, written } = &self.block_at(rank).shared;
                Some((bytes, written))
            }
        }
    }

    /// Writes bytes and marks them as written.
    fn put(&mut self, location: Location, offset: u64, from: &[u8]) {
        let len = from.len() as u64;
        let (bytes, written) = match location {
            Location::Device(slot) => {
                let Some(place) = self.memory.place(slot, offset, len) else { return };
                let at = (offset - place.start) as usize;
                place.bytes[at..at + from.len()].copy_from_slice(from);
                return place.written.mark(offset..offset + len);
            }
            Location::Shared => (&mut self.block.shared.bytes, &mut self.block.shared.written),
            Location::Other(rank) => {
                let SharedMemory { bytes, written } = &mut self.block_at_mut(rank).shared;
                (bytes, written)
            }
        };
        bytes[offset as usize..(offset + len) as usize].copy_from_slice(from);
        written.mark(offset..offset + len);
    }

    #[inline]
    fn note(&mut self, location: Location, offset: u64, len: u64, kind: Kind) {
        if let Location::Device(slot) = location {
            self.record.mark(slot, offset, len, kind);
        }
    }

    /// Records a change in one step of bytes in device memory.
    pub(crate) fn note_atomic(&mut self, slot: usize, offset: u64, len: u64) {
        self.bytes_written += len;
        self.bytes_of_blocks += len;
        self.record.mark(slot, offset, len, Kind::Atomic);
    }

    /// Copies bytes that an access is about to change.
    pub(crate) fn peek(&self, location: Location, offset: u64, into: &mut [u8]) {
        if let Some((bytes, _)) = self.parts(location) {
            into.copy_from_slice(&bytes[offset as usize..][..into.len()]);
        }
    }

    /// Records the first access beyond the block's shared memory, and returns whether this is one.
    pub(crate) fn note_overrun(
        &mut self,
        location: Location,
        offset: u64,
        kind: Kind,
        thread: usize,
        len: u64,
    ) -> bool {
        let is_shared = !matches!(location, Location::Device(_));
        let is_overrun = is_shared && offset + len > self.shared_size as u64;
        if is_overrun && self.unnoticed.is_none() {
            self.unnoticed = Some(self.bad_address(Space::Shared, kind, thread, offset, len));
        }
        is_overrun
    }

    /// Reads what a thread sees at an address. The access is checked and recorded, and unwritten bytes are poisoned.
    pub(crate) fn read_bytes(
        &mut self,
        space: Space,
        kind: Kind,
        thread: usize,
        address: u64,
        into: &mut [u8],
    ) -> Result<(), Stop> {
        let len = into.len() as u64;
        let (space, address) = concrete(space, address);
        self.check_alignment(space, kind, thread, address, len)?;
        match space {
            Space::Local => {
                let at = self.local_offset(kind, thread, address, len)?;
                into.copy_from_slice(&self.block.local[at..at + into.len()]);
                return Ok(());
            }
            Space::Param => {
                let start = address as usize;
                let Some(bytes) = self.launch.parameters.get(start..start.saturating_add(into.len())) else {
                    let size = self.launch.parameters.len() as u64;
                    let fault = FaultKind::LocalOutOfBounds { size };
                    return Err(self.access_fault(fault, space, kind, thread, address, len));
                };
                into.copy_from_slice(bytes);
                return Ok(());
            }
            _ => {}
        }
        self.read_located(space, kind, thread, address, into)
    }

    /// Reads from shared or device memory, at any alignment.
    pub(crate) fn read_located(
        &mut self,
        space: Space,
        kind: Kind,
        thread: usize,
        address: u64,
        into: &mut [u8],
    ) -> Result<(), Stop> {
        let len = into.len() as u64;
        let Some((location, offset)) = self.locate(space, address, len) else {
            return Err(self.bad_address(space, kind, thread, address, len));
        };
        match location {
            Location::Device(_) => self.bytes_read += len,
            Location::Shared | Location::Other(_) => self.shared_bytes += len,
        }
        let is_overrun = self.note_overrun(location, offset, kind, thread, len);
        let mut has_missing = false;
        if let Some((bytes, written)) = self.parts(location) {
            into.copy_from_slice(&bytes[offset as usize..(offset + len) as usize]);
            let copy = match location {
                Location::Device(slot) => self.memory.copy_of(slot).map(|copy| (copy, slot)),
                Location::Shared | Location::Other(_) => None,
            };
            if copy.is_some() || written.first_missing(offset..offset + len).is_some() {
                for (at, byte) in (offset..).zip(into.iter_mut()) {
                    if let Some((copy, slot)) = copy
                        && self.record.has_written(slot, at)
                    {
                        *byte = copy.written(at..at + 1)[0];
                    } else if written.first_missing(at..at + 1).is_some() {
                        *byte = POISON;
                        has_missing = true;
                    }
                }
            }
        }
        if kind == Kind::Read {
            self.note(location, offset, len, kind);
            self.observe(location, (offset, len), kind, thread, false);
        }
        if has_missing && !is_overrun && self.unwritten.is_none() {
            self.unwritten = Some(self.report(thread, Some((space, kind, address, len))));
        }
        Ok(())
    }

    /// Writes for one thread. The access is checked and recorded, and the bytes are marked as written.
    pub(crate) fn write_bytes(
        &mut self,
        space: Space,
        kind: Kind,
        thread: usize,
        address: u64,
        from: &[u8],
    ) -> Result<(), Stop> {
        let len = from.len() as u64;
        let (space, address) = concrete(space, address);
        self.check_alignment(space, kind, thread, address, len)?;
        if space == Space::Local {
            let at = self.local_offset(kind, thread, address, len)?;
            self.block.local[at..at + from.len()].copy_from_slice(from);
            return Ok(());
        }
        self.write_located(space, kind, thread, address, from)
    }

    /// Writes to shared or device memory, at any alignment.
    pub(crate) fn write_located(
        &mut self,
        space: Space,
        kind: Kind,
        thread: usize,
        address: u64,
        from: &[u8],
    ) -> Result<(), Stop> {
        let len = from.len() as u64;
        let Some((location, offset)) = self.locate(space, address, len) else {
            return Err(self.bad_address(space, kind, thread, address, len));
        };
        if self.is_observed() {
            let changes = self.parts(location).is_some_and(|(bytes, written)| {
                bytes[offset as usize..(offset + len) as usize] != *from
                    || written.first_missing(offset..offset + len).is_some()
            });
            self.observe(location, (offset, len), kind, thread, changes);
        }
        self.put(location, offset, from);
        match location {
            Location::Device(_) => {
                self.bytes_written += len;
                self.bytes_of_blocks += if kind == Kind::Atomic { len } else { 0 };
            }
            Location::Shared | Location::Other(_) => self.shared_bytes += len,
        }
        self.note_overrun(location, offset, kind, thread, len);
        self.note(location, offset, len, kind);
        Ok(())
    }

    /// Returns up to eight bytes from a variable in local memory.
    pub(crate) fn local_value(&self, thread: usize, address: Address, len: usize) -> Result<u64, Stop> {
        let at = self.local_offset(Kind::Read, thread, self.address_of(address, thread), len as u64)?;
        let mut value = [0; 8];
        value[..len].copy_from_slice(&self.block.local[at..at + len]);
        Ok(u64::from_le_bytes(value))
    }

    pub(crate) fn check_alignment(
        &self,
        space: Space,
        kind: Kind,
        thread: usize,
        address: u64,
        len: u64,
    ) -> Result<(), Stop> {
        if address & (len - 1) == 0 {
            return Ok(());
        }
        let fault = FaultKind::Misaligned { needed: len as u32 };
        Err(self.access_fault(fault, space, kind, thread, address, len))
    }

    pub(crate) fn local_offset(
        &self,
        kind: Kind,
        thread: usize,
        address: u64,
        len: u64,
    ) -> Result<usize, Stop> {
        let size = self.local_bytes;
        if address <= size && len <= size - address {
            return Ok(thread * size as usize + address as usize);
        }
        let fault = FaultKind::LocalOutOfBounds { size };
        Err(self.access_fault(fault, Space::Local, kind, thread, address, len))
    }

    pub(crate) fn bad_address(
        &self,
        space: Space,
        kind: Kind,
        thread: usize,
        address: u64,
        len: u64,
    ) -> Stop {
        let fault = match space {
            Space::Shared => FaultKind::SharedOutOfBounds { size: self.shared_size as u64 },
            _ => FaultKind::BadAddress(self.memory.explain(address)),
        };
        self.access_fault(fault, space, kind, thread, address, len)
    }
}
