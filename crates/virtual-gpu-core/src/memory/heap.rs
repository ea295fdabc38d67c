//! The heaps from which kernels allocate memory (`malloc` and `free` in device code).
//!
//! Each context has a heap on its GPU. An allocation in it is like any other, so that every access is checked. Only
//! kernels can use it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::allocation::{Allocation, AllocationId, Bytes};
use super::bad_address::{BadAddress, Freed};
use super::device::DeviceMemory;
use super::written::Written;
use crate::source_location::CallSite;

/// Returns where the addresses of heaps start among those of a GPU: the last quarter is theirs.
pub(super) fn first_of_heaps(addresses: &Range<u64>) -> u64 {
    addresses.end - (addresses.end - addresses.start) / 4
}

/// "The memory allocated by malloc() is guaranteed to be aligned to a 16-byte boundary" ("CUDA C++ Programming Guide",
/// heap memory allocation).
const ALIGNMENT: u64 = 16;

/// The number of unused addresses after each allocation. A kernel may make many small allocations, so it is smaller
/// than that between other allocations.
const GAP: u64 = 1 << 12;

/// The number of freed allocations that are remembered.
const REMEMBERED: usize = 1 << 18;

/// Identifies the context that a heap belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeapOwner(pub u64);

/// All heaps on a GPU.
#[derive(Debug)]
pub(super) struct Heaps {
    addresses: Range<u64>,
    cursor: u64,
    next_id: u64,
    /// What each context's kernels have allocated and not freed: the bytes taken, by address.
    live: BTreeMap<HeapOwner, Heap>,
    /// The freed allocations, in the order of the calls.
    freed: VecDeque<(u64, AllocationId)>,
}

#[derive(Debug, Default)]
struct Heap {
    taken: u64,
    sizes: BTreeMap<u64, u64>,
}

impl Heaps {
    pub(super) fn new(addresses: Range<u64>) -> Self {
        Self {
            cursor: addresses.start,
            addresses,
            next_id: AllocationId::FIRST_OF_KERNELS.0,
            live: BTreeMap::new(),
            freed: VecDeque::new(),
        }
    }
}

/// An allocation that a kernel has freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreedByKernel {
    /// Its identity.
    pub id: AllocationId,
    /// The slot that it was in.
    pub slot: usize,
    /// Its size in bytes.
    pub size: u64,
}

/// Why a kernel can't free an address.
#[derive(Clone, Debug)]
pub enum BadFree {
    /// There is no allocation, or it has been freed, or the address is not that of its first byte.
    BadAddress(BadAddress),
    /// The allocation is not in the heap of the kernel's context.
    NotInHeap {
        /// Its size in bytes.
        size: u64,
        /// The call that made it.
        call_site: CallSite,
    },
}

impl DeviceMemory {
    /// Returns the id that the next allocation by a kernel will have.
    pub fn next_id_of_kernels(&self) -> AllocationId {
        AllocationId(self.heaps.next_id)
    }

    /// `malloc` in a kernel: allocates from a heap of `limit` bytes. Each allocation takes a multiple of 16 bytes.
    /// Returns `None` if the heap has no room. `alignment` is a power of two.
    pub fn allocate_in_heap(
        &mut self,
        owner: HeapOwner,
        size: u64,
        alignment: u64,
        limit: u64,
        call_site: CallSite,
    ) -> Option<u64> {
        let takes = size.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let taken = self.heaps.live.get(&owner).map_or(0, |heap| heap.taken);
        let taken = taken.checked_add(takes).filter(|&taken| taken <= limit)?;
        let Heaps { addresses, cursor, .. } = &self.heaps;
        let base = self.find_gap_in(addresses.clone(), *cursor, size, alignment.max(ALIGNMENT), GAP)?;
        // `vec!` ends the process if the host doesn't have enough memory.
        Vec::<u8>::new().try_reserve_exact(size as usize).ok()?;
        let id = AllocationId(self.heaps.next_id);
        self.heaps.next_id += 1;
        let (bytes, written) = (Bytes::Own(vec![0; size as usize]), Written::none(size));
        // The heap is not part of the GPU's capacity.
        let allocation = Allocation::new(id, (base, size), (bytes, written), call_site);
        let end = base + size + GAP;
        self.reuse(base..end);
        self.insert_at(base, allocation);
        self.heaps.cursor = end;
        let heap = self.heaps.live.entry(owner).or_default();
        heap.taken = taken;
        heap.sizes.insert(base, takes);
        Some(base)
    }

    /// `free` in a kernel.
    pub fn free_in_heap(
        &mut self,
        owner: HeapOwner,
        base: u64,
        call_site: CallSite,
    ) -> Result<FreedByKernel, BadFree> {
        let heap = self.heaps.live.get_mut(&owner);
        let Some((heap, taken)) = heap.and_then(|heap| heap.sizes.remove(&base).map(|taken| (heap, taken)))
        else {
            return Err(self.why_not_freed(base));
        };
        heap.taken -= taken;
        let slot = self.by_base.get(&base).copied();
        let Some((slot, Allocation { id, size, call_site: allocated, .. })) = slot.zip(self.remove_at(base))
        else {
            return Err(BadFree::BadAddress(BadAddress::Unknown));
        };
        self.freed.insert(base, Freed { id, size, allocated, freed: call_site });
        self.heaps.freed.push_back((base, id));
        if self.heaps.freed.len() > REMEMBERED
            && let Some((oldest, id)) = self.heaps.freed.pop_front()
            && self.freed.get(&oldest).is_some_and(|freed| freed.id == id)
        {
            self.freed.remove(&oldest);
        }
        Ok(FreedByKernel { id, slot, size })
    }

    fn why_not_freed(&self, base: u64) -> BadFree {
        match self.range_of_kernel(base, 0) {
            Ok((allocation, 0)) => {
                BadFree::NotInHeap { size: allocation.size, call_site: allocation.call_site.clone() }
            }
            _ => BadFree::BadAddress(self.explain(base)),
        }
    }

    /// Releases a heap, because its context ends. Returns the allocations that were in it.
    pub fn release_heap(&mut self, owner: HeapOwner) -> Vec<AllocationId> {
        let heap = self.heaps.live.remove(&owner).unwrap_or_default();
        heap.sizes.into_keys().filter_map(|base| self.remove_at(base)).map(|it| it.id).collect()
    }

    /// Returns the size of an allocation and the call that made it, even if it has been freed.
    pub fn recall(&self, base: u64, id: AllocationId) -> Option<(u64, CallSite)> {
        let live = self.by_base.get(&base).and_then(|&slot| self.in_slot(slot)).filter(|it| it.id == id);
        let freed = || {
            let freed = self.freed.get(&base).filter(|freed| freed.id == id)?;
            Some((freed.size, freed.allocated.clone()))
        };
        live.map(|live| (live.size, live.call_site.clone())).or_else(freed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAP: HeapOwner = HeapOwner(1);

    fn memory() -> DeviceMemory {
        DeviceMemory::new(1 << 44..1 << 45, 1 << 20)
    }

    fn allocate(memory: &mut DeviceMemory, size: u64, alignment: u64) -> Option<u64> {
        memory.allocate_in_heap(HEAP, size, alignment, 64, CallSite::unknown())
    }

    #[test]
    fn a_heap_is_full_at_its_limit_and_has_room_after_a_free() {
        let mut memory = memory();
        let first = allocate(&mut memory, 20, 1).unwrap();
        let second = allocate(&mut memory, 1, 64).unwrap();
        assert!(first.is_multiple_of(16) && second.is_multiple_of(64));
        assert_eq!(allocate(&mut memory, 17, 1), None);
        assert!(memory.allocate_in_heap(HeapOwner(2), 64, 1, 64, CallSite::unknown()).is_some());
        memory.free_in_heap(HEAP, first, CallSite::unknown()).unwrap();
        assert!(allocate(&mut memory, 48, 1).is_some());
        assert_eq!(memory.capacity().free(), 1 << 20);
    }

    #[test]
    fn the_host_finds_no_memory_of_kernels() {
        let mut memory = memory();
        let base = allocate(&mut memory, 16, 1).unwrap();
        assert!(matches!(memory.range(base + 4, 4), Err(BadAddress::OfKernels { offset: 4, .. })));
        assert!(matches!(memory.free(base, CallSite::unknown()), Err(BadAddress::OfKernels { .. })));
        assert!(memory.range_of_kernel(base, 16).is_ok());
        assert_eq!(memory.release_heap(HEAP).len(), 1);
        assert!(memory.range_of_kernel(base, 16).is_err());
    }

    #[test]
    fn each_wrong_free_has_its_reason() {
        let mut memory = memory();
        let base = allocate(&mut memory, 16, 1).unwrap();
        let other = memory.allocate(16, CallSite::unknown()).unwrap();
        let mut free = |base| memory.free_in_heap(HEAP, base, CallSite::unknown());
        assert!(matches!(free(other), Err(BadFree::NotInHeap { size: 16, .. })));
        assert!(matches!(
            free(base + 8),
            Err(BadFree::BadAddress(BadAddress::OutOfBounds { offset: 8, .. }))
        ));
        assert!(free(base).is_ok());
        assert!(matches!(free(base), Err(BadFree::BadAddress(BadAddress::Freed { offset: 0, .. }))));
    }
}
