//! The allocations of one GPU.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::allocation::{Allocation, AllocationId, Bytes, HostBytes};
use super::bad_address::{BadAddress, Freed, OutOfMemory};
use super::capacity::Capacity;
use super::heap::{Heaps, first_of_heaps};
use super::lives::Lives;
use super::written::Written;
use crate::handle::OperationNumber;
use crate::source_location::CallSite;

/// The most addresses that one GPU may hand out. There are far more addresses than bytes of capacity, so a freed
/// address is not reused soon, and a stale pointer differs from a live one.
pub const ADDRESS_SPACE: u64 = 1 << 39;

/// The most addresses that all GPUs may hand out: half of those that Linux gives to a process on x86-64.
const ADDRESSES_OF_ALL: u64 = 1 << 46;

/// Returns the number of addresses that each of this many GPUs may hand out.
pub fn addresses_per_gpu(gpus: usize) -> u64 {
    ADDRESS_SPACE.min(ADDRESSES_OF_ALL / (gpus as u64).next_power_of_two())
}

/// Every allocation starts at a multiple of this, because `cuMemAlloc` promises alignment for any type (real drivers
/// use 512).
const ALIGNMENT: u64 = 512;

/// Managed allocations start at a multiple of this, so that each has its own host pages, regardless of the page size.
const PAGE: u64 = 1 << 16;

/// The number of unused addresses before the first allocation and after each one. They distinguish an overrun from an
/// access to the next allocation, and an access before an allocation from one to no memory at all.
const GAP: u64 = 1 << 16;

/// Returns where allocations start among a GPU's addresses.
fn first_of_allocations(addresses: &Range<u64>) -> u64 {
    addresses.start + GAP
}

/// For [`DeviceMemory::as_of`]: after every operation. Freed memory is gone.
pub const AFTER_ALL: OperationNumber = OperationNumber(u64::MAX);

/// For [`DeviceMemory::as_of`]: before every operation. Memory that has not been released still exists.
pub const BEFORE_ALL: OperationNumber = OperationNumber(0);

/// The memory of one GPU, or the memory that all GPUs share with the host.
#[derive(Debug)]
pub struct DeviceMemory {
    addresses: Range<u64>,
    pub(super) heaps: Heaps,
    alignment: u64,
    capacity: Arc<Capacity>,
    cursor: u64,
    next_id: u64,
    next_pinned_id: u64,
    pub(super) slots: Vec<Option<Allocation>>,
    vacant: Vec<usize>,
    pub(super) by_base: BTreeMap<u64, usize>,
    pub(super) freed: BTreeMap<u64, Freed>,
    /// The operation that accesses it: see [`Self::as_of`].
    seen_by: OperationNumber,
}

impl DeviceMemory {
    /// Creates empty memory of `capacity` bytes with these addresses.
    pub fn new(addresses: Range<u64>, capacity: u64) -> Self {
        Self {
            heaps: Heaps::new(first_of_heaps(&addresses)..addresses.end),
            alignment: ALIGNMENT,
            capacity: Arc::new(Capacity::new(capacity)),
            cursor: first_of_allocations(&addresses),
            addresses,
            next_id: 0,
            next_pinned_id: AllocationId::FIRST_PINNED.0,
            slots: Vec::new(),
            vacant: Vec::new(),
            by_base: BTreeMap::new(),
            freed: BTreeMap::new(),
            seen_by: AFTER_ALL,
        }
    }

    /// Creates managed memory in the same way as [`Self::new`]. Its bytes are host memory at the same addresses.
    pub fn managed(addresses: Range<u64>, capacity: u64) -> Self {
        let addresses = addresses.start.next_multiple_of(PAGE)..addresses.end;
        Self { alignment: PAGE, next_id: AllocationId::FIRST_MANAGED.0, ..Self::new(addresses, capacity) }
    }

    /// Returns how many bytes there are, and how many of them are taken.
    pub fn capacity(&self) -> &Arc<Capacity> {
        &self.capacity
    }

    /// Returns whether nothing is allocated.
    pub fn is_empty(&self) -> bool {
        self.by_base.is_empty()
    }

    /// Returns whether this GPU could have handed out `address`.
    pub fn owns(&self, address: u64) -> bool {
        self.addresses.contains(&address)
    }

    /// Allocates `size` bytes and returns the address of the first. All of them are considered unwritten.
    pub fn allocate(&mut self, size: u64, call_site: CallSite) -> Result<u64, OutOfMemory> {
        self.insert_own(size, call_site, false)
    }

    /// Allocates in the same way as [`Self::allocate`], for a memory pool that has taken the bytes from the capacity.
    /// The pool also gives them back.
    pub fn allocate_in_pool(&mut self, size: u64, call_site: CallSite) -> Result<u64, OutOfMemory> {
        self.insert_own(size, call_site, true)
    }

    /// Reserves an address for memory that belongs to a graph. Operations find it only while a launch has allocated it.
    /// The graph takes the bytes from the capacity.
    pub fn allocate_for_graph(
        &mut self,
        size: u64,
        call_site: CallSite,
        lives: Arc<Lives>,
    ) -> Result<u64, OutOfMemory> {
        let base = self.insert_own(size, call_site, true)?;
        if let Some(allocation) = self.by_base.get(&base).and_then(|&slot| self.slots[slot].as_mut()) {
            allocation.lives = Some(lives);
        }
        Ok(base)
    }

    /// Returns whether all of `address..address + len` is memory that belongs to a graph, allocated or not.
    pub fn is_of_graph(&self, address: u64, len: u64) -> bool {
        self.of_graph(address).is_some_and(|it| len <= it.size - (address - it.base))
    }

    /// Returns the graph's memory that contains `address`.
    fn of_graph(&self, address: u64) -> Option<&Allocation> {
        let (&base, &slot) = self.by_base.range(..=address).next_back()?;
        self.in_slot(slot).filter(|it| it.lives.is_some() && address - base < it.size)
    }

    /// Creates an allocation with bytes of its own.
    fn insert_own(&mut self, size: u64, call_site: CallSite, pooled: bool) -> Result<u64, OutOfMemory> {
        let refused = OutOfMemory { asked: size, free: self.capacity.free() };
        // First check that the host has enough memory, because `vec!` ends the process if it fails. Its zeroed pages
        // cost nothing until they are used.
        Vec::<u8>::new().try_reserve_exact(size as usize).map_err(|_| refused)?;
        let bytes = |_| Some(Bytes::Own(vec![0; size as usize]));
        self.insert_new(size, call_site, Written::none(size), pooled, bytes)
    }

    /// Allocates `size` bytes, which `map` provides at the address it is passed. All bytes are considered written,
    /// because the host's writes can't be observed.
    pub fn allocate_managed(
        &mut self,
        size: u64,
        call_site: CallSite,
        map: impl FnOnce(u64) -> Option<Box<dyn HostBytes>>,
    ) -> Result<u64, OutOfMemory> {
        let bytes = |address| map(address).map(Bytes::Host);
        self.insert_new(size, call_site, Written::all(), false, bytes)
    }

    /// Adds pinned host memory, which has its own address and takes nothing from the capacity. All bytes are considered
    /// written.
    pub fn insert_host(&mut self, base: u64, size: u64, bytes: Box<dyn HostBytes>, call_site: CallSite) {
        // Memory that was unpinned may still be waiting for its release at this address.
        self.release(base);
        let id = AllocationId(self.next_pinned_id);
        self.next_pinned_id += 1;
        let (bytes, written) = (Bytes::Host(bytes), Written::all());
        let allocation = Allocation::new(id, (base, size), (bytes, written), call_site);
        self.insert_at(base, allocation);
    }

    /// Creates an allocation with the result of `bytes`, a function that receives the address.
    pub(super) fn insert_new(
        &mut self,
        size: u64,
        call_site: CallSite,
        written: Written,
        pooled: bool,
        bytes: impl FnOnce(u64) -> Option<Bytes>,
    ) -> Result<u64, OutOfMemory> {
        let refused = OutOfMemory { asked: size, free: self.capacity.free() };
        let base = self.find_gap(size).ok_or(refused)?;
        if !pooled {
            self.capacity.take(size)?;
        }
        let Some(bytes) = bytes(base) else {
            if !pooled {
                self.capacity.give_back(size);
            }
            return Err(refused);
        };
        let id = self.new_id();
        let allocation =
            Allocation { pooled, ..Allocation::new(id, (base, size), (bytes, written), call_site) };
        let end = base + size + GAP;
        self.insert_at(base, allocation);
        self.reuse(base..end);
        self.cursor = end.next_multiple_of(self.alignment);
        Ok(base)
    }

    /// Forgets the freed allocations whose addresses are used again.
    pub(super) fn reuse(&mut self, addresses: Range<u64>) {
        let Range { start, end } = addresses;
        let before = self.freed.range(..end).rev();
        let stale: Vec<u64> =
            before.map_while(|(&at, freed)| (at + freed.size > start).then_some(at)).collect();
        for at in stale {
            self.freed.remove(&at);
        }
    }

    /// Finds the next fit: the first gap of `size` bytes after the last allocation, wrapping around to the start.
    fn find_gap(&self, size: u64) -> Option<u64> {
        let addresses = first_of_allocations(&self.addresses)..first_of_heaps(&self.addresses);
        self.find_gap_in(addresses, self.cursor, size, self.alignment, GAP)
    }

    /// Finds the first gap in `addresses` after `cursor`, or after the start of `addresses`, that has room for `size`
    /// bytes and `gap` more.
    pub(super) fn find_gap_in(
        &self,
        addresses: Range<u64>,
        cursor: u64,
        size: u64,
        alignment: u64,
        gap: u64,
    ) -> Option<u64> {
        let need = size.max(1).checked_add(gap)?;
        if need > addresses.end - addresses.start {
            return None;
        }
        for from in [cursor, addresses.start] {
            let mut at = from.next_multiple_of(alignment);
            for (&base, &slot) in self.by_base.range(from..addresses.end) {
                if base.saturating_sub(at) >= need {
                    return Some(at);
                }
                let size = self.slots[slot].as_ref().map_or(0, Allocation::size);
                at = (base + size + gap).next_multiple_of(alignment);
            }
            if at + need <= addresses.end {
                return Some(at);
            }
        }
        None
    }

    /// Makes the allocations in another memory that `selects` accepts accessible through this memory, until
    /// [`Self::give_back`] is called.
    pub fn borrow(&mut self, other: &mut Self, selects: impl Fn(&Allocation) -> bool) {
        for (&base, &slot) in &other.by_base {
            let Some(allocation) = other.slots[slot].take_if(|allocation| selects(allocation)) else {
                continue;
            };
            self.insert_at(base, allocation);
        }
    }

    /// Undoes [`Self::borrow`].
    pub fn give_back(&mut self, other: &mut Self) {
        for (base, &home) in &other.by_base {
            let Some(slot) = self.by_base.remove(base) else { continue };
            other.slots[home] = self.slots[slot].take();
            self.vacant.push(slot);
        }
    }

    pub(super) fn new_id(&mut self) -> AllocationId {
        let id = AllocationId(self.next_id);
        self.next_id += 1;
        id
    }

    pub(super) fn insert_at(&mut self, base: u64, allocation: Allocation) {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(allocation);
        self.by_base.insert(base, slot);
    }

    pub(super) fn remove_at(&mut self, base: u64) -> Option<Allocation> {
        let slot = self.by_base.remove(&base)?;
        self.vacant.push(slot);
        self.slots[slot].take()
    }

    /// Frees the allocation that starts at `base`.
    pub fn free(&mut self, base: u64, call_site: CallSite) -> Result<AllocationId, BadAddress> {
        let freed = self.free_from(base, call_site, BEFORE_ALL)?;
        self.release(base);
        Ok(freed)
    }

    /// Frees the allocation that starts at `base` for the operation with this sequence number and for later operations.
    /// Earlier operations still find it until [`Self::release`] is called.
    pub fn free_from(
        &mut self,
        base: u64,
        call_site: CallSite,
        sequence: OperationNumber,
    ) -> Result<AllocationId, BadAddress> {
        let known = self.by_base.get(&base).and_then(|&slot| self.slots[slot].as_mut());
        let Some(allocation) = known.filter(|known| known.freed_by.is_none()) else {
            return Err(self.explain(base));
        };
        if allocation.id.is_of_kernels() {
            return Err(allocation.of_kernels(0));
        }
        allocation.freed_by = Some(sequence);
        let Allocation { id, size, pooled, .. } = *allocation;
        if !pooled {
            self.capacity.give_back(size);
        }
        let freed = Freed { id, size, allocated: allocation.call_site.clone(), freed: call_site };
        // The host may use the addresses of unpinned memory for something else.
        if self.owns(base) {
            self.freed.insert(base, freed);
        }
        Ok(id)
    }

    /// Releases the bytes of a freed allocation.
    pub fn release(&mut self, base: u64) {
        self.remove_at(base);
    }

    /// Like [`Self::release`], but does nothing if another allocation is at this address by now.
    pub fn release_allocation(&mut self, base: u64, id: AllocationId) {
        let known = self.by_base.get(&base).and_then(|&slot| self.in_slot(slot));
        if known.is_some_and(|known| known.id == id) {
            self.release(base);
        }
    }

    /// Returns a view of the memory as the operation with this sequence number sees it: allocations freed by a later
    /// call still exist.
    pub fn as_of(&mut self, sequence: OperationNumber) -> &mut Self {
        self.seen_by = sequence;
        self
    }

    /// Returns the slot of the allocation that contains `address`, for [`Self::in_slot`]. The slot is valid until
    /// something is freed.
    pub fn slot_of(&self, address: u64) -> Option<usize> {
        let (&base, &slot) = self.by_base.range(..=address).next_back()?;
        let allocation = self.slots[slot].as_ref()?;
        (address - base < allocation.size() && self.sees(allocation)).then_some(slot)
    }

    fn sees(&self, allocation: &Allocation) -> bool {
        allocation.freed_by.is_none_or(|freed_by| self.seen_by < freed_by)
            && allocation.lives.as_ref().is_none_or(|lives| lives.include(self.seen_by))
    }

    /// Returns the allocation in a slot.
    #[inline]
    pub fn in_slot(&self, slot: usize) -> Option<&Allocation> {
        self.slots.get(slot)?.as_ref()
    }

    /// Returns a mutable reference to the allocation in a slot.
    #[inline]
    pub fn in_slot_mut(&mut self, slot: usize) -> Option<&mut Allocation> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Returns mutable references to the allocations in several slots, in ascending order. Each slot must be taken.
    pub fn in_slots_mut(
        &mut self,
        slots: impl Iterator<Item = usize>,
    ) -> impl Iterator<Item = &mut Allocation> {
        let (mut rest, mut passed) = (&mut self.slots[..], 0);
        slots.map_while(move |slot| {
            let (slots, behind) = std::mem::take(&mut rest).split_at_mut_checked(slot + 1 - passed)?;
            (rest, passed) = (behind, slot + 1);
            slots.last_mut()?.as_mut()
        })
    }

    /// Returns the allocation that contains all of `address..address + len`, and the offset of `address` in it.
    ///
    /// # Errors
    /// Returns an error for memory that kernels have allocated, too, because the host can't use it.
    pub fn range(&self, address: u64, len: u64) -> Result<(&Allocation, u64), BadAddress> {
        match self.range_of_kernel(address, len)? {
            (allocation, offset) if allocation.id.is_of_kernels() => Err(allocation.of_kernels(offset)),
            found => Ok(found),
        }
    }

    /// Like [`Self::range`], but for memory that a kernel uses, which kernels may have allocated.
    pub fn range_of_kernel(&self, address: u64, len: u64) -> Result<(&Allocation, u64), BadAddress> {
        let found = self.slot_of(address).and_then(|slot| self.in_slot(slot));
        match found {
            Some(allocation) if len <= allocation.size() - (address - allocation.base) => {
                Ok((allocation, address - allocation.base))
            }
            _ => Err(self.explain(address)),
        }
    }

    /// Like [`Self::range`], but returns a mutable reference.
    pub fn range_mut(&mut self, address: u64, len: u64) -> Result<(&mut Allocation, u64), BadAddress> {
        let offset = self.range(address, len)?.1;
        match self.slot_of(address) {
            Some(slot) => match &mut self.slots[slot] {
                Some(allocation) => Ok((allocation, offset)),
                None => Err(BadAddress::Unknown),
            },
            None => Err(BadAddress::Unknown),
        }
    }

    /// Like [`Self::explain`], but for an address that is not one of this memory's own.
    fn explain_borrowed(&self, address: u64) -> BadAddress {
        let before = self.by_base.range(..=address).next_back();
        let allocation = before.and_then(|(_, &slot)| self.in_slot(slot)).filter(|it| !self.owns(it.base));
        match allocation {
            Some(Allocation { id, base, size, call_site, .. }) if address - base < size + GAP => {
                let offset = (address - base) as i64;
                BadAddress::OutOfBounds { allocation: *id, size: *size, offset, call_site: call_site.clone() }
            }
            _ => BadAddress::Unknown,
        }
    }

    /// Returns why an access that starts at `address` failed.
    pub fn explain(&self, address: u64) -> BadAddress {
        if !self.owns(address) {
            return self.explain_borrowed(address);
        }
        if let Some((&base, freed)) = self.freed.range(..=address).next_back()
            && address - base < freed.size.max(1)
            && self.slot_of(base).is_none()
        {
            return BadAddress::Freed { freed: freed.clone(), offset: address - base };
        }
        if let Some(allocation) = self.of_graph(address).filter(|it| !self.sees(it)) {
            let &Allocation { id, base, size, ref call_site, ref lives, .. } = allocation;
            let freed = lives.as_ref().and_then(|lives| lives.freed_before(self.seen_by));
            let (allocated, offset) = (call_site.clone(), address - base);
            return match freed {
                Some(freed) => BadAddress::Freed { freed: Freed { id, size, allocated, freed }, offset },
                None => BadAddress::Unallocated { id, size, offset, call_site: allocated },
            };
        }
        let out_of = |allocation: &Allocation| BadAddress::OutOfBounds {
            allocation: allocation.id,
            size: allocation.size(),
            offset: address.wrapping_sub(allocation.base) as i64,
            call_site: allocation.call_site.clone(),
        };
        let live = |slot: &usize| self.slots[*slot].as_ref();
        let Range { start, end } = self.addresses;
        let before = self.by_base.range(start..=address).next_back().and_then(|(_, slot)| live(slot));
        let after = self.by_base.range(address..end).next().and_then(|(_, slot)| live(slot));
        match (before, after) {
            (Some(before), Some(after)) => {
                let behind = address - before.base - before.size().min(address - before.base);
                out_of(if behind <= after.base - address { before } else { after })
            }
            (Some(one), None) | (None, Some(one)) => out_of(one),
            (None, None) => BadAddress::Unknown,
        }
    }

    /// Returns all live allocations, ordered by address.
    pub fn allocations(&self) -> impl Iterator<Item = &Allocation> {
        let known = self.by_base.values().filter_map(|&slot| self.slots[slot].as_ref());
        known.filter(|allocation| self.sees(allocation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> DeviceMemory {
        DeviceMemory::new(1 << 44..1 << 45, 1 << 20)
    }

    #[test]
    fn the_error_of_an_overrun_names_the_allocation() {
        let mut memory = memory();
        let first = memory.allocate(100, CallSite::unknown()).unwrap();
        memory.allocate(100, CallSite::unknown()).unwrap();
        let Err(BadAddress::OutOfBounds { allocation, offset, size, .. }) = memory.range(first + 100, 4)
        else {
            panic!("100..104 of 100 bytes is out of bounds");
        };
        assert_eq!((allocation, offset, size), (AllocationId(0), 100, 100));
        assert!(matches!(memory.range(first + 98, 4), Err(BadAddress::OutOfBounds { offset: 98, .. })));
        assert!(memory.range(first + 96, 4).is_ok());
    }

    #[test]
    fn the_error_of_an_access_before_the_first_allocation_names_it() {
        let mut memory = memory();
        let first = memory.allocate(100, CallSite::unknown()).unwrap();
        assert!(memory.owns(first - 4));
        assert!(matches!(memory.range(first - 4, 4), Err(BadAddress::OutOfBounds { offset: -4, .. })));
    }

    #[test]
    fn a_freed_address_is_known_as_freed() {
        let mut memory = memory();
        let base = memory.allocate(64, CallSite::unknown()).unwrap();
        memory.free(base, CallSite::unknown()).unwrap();
        assert!(matches!(memory.range(base + 8, 4), Err(BadAddress::Freed { offset: 8, .. })));
        assert!(matches!(memory.free(base, CallSite::unknown()), Err(BadAddress::Freed { .. })));
        assert_eq!(memory.capacity().free(), 1 << 20);
    }

    #[test]
    fn unwritten_bytes_are_found_one_by_one() {
        let mut memory = memory();
        let base = memory.allocate(200, CallSite::unknown()).unwrap();
        let (allocation, _) = memory.range_mut(base, 200).unwrap();
        allocation.mark_written(0..130);
        allocation.mark_written(131..200);
        assert_eq!(allocation.first_unwritten(0..200), Some(130));
        assert_eq!(allocation.first_unwritten(131..200), None);
        allocation.mark_written(100..150);
        assert!(allocation.is_fully_written());
    }

    #[test]
    fn more_than_the_gpu_has_is_refused_with_both_figures() {
        let mut memory = memory();
        memory.allocate(1 << 19, CallSite::unknown()).unwrap();
        let refused = memory.allocate(1 << 20, CallSite::unknown());
        assert_eq!(refused, Err(OutOfMemory { asked: 1 << 20, free: 1 << 19 }));
    }
}
