//! Device memory: allocations, their bytes, and which of the bytes were ever written.
//!
//! Addresses are numbers in a range of their own; the bytes lie elsewhere, so that no address can be mistaken for a
//! host pointer.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::source_location::CallSite;

/// Addresses that one GPU may hand out. Far more than its capacity, so that a freed address is not soon used again
/// and a stale pointer can be told from a live one.
pub const ADDRESS_SPACE: u64 = 1 << 39;

/// Every allocation starts at a multiple of this, as `cuMemAlloc` promises for any type (real drivers: 512).
const ALIGNMENT: u64 = 512;

/// Managed allocations start at a multiple of this, so that each has host pages of its own, of whatever size.
const PAGE: u64 = 1 << 16;

/// Managed allocations have numbers from here on.
const FIRST_MANAGED: u64 = 1 << 62;

/// Unused addresses behind each allocation, so that an overrun is told from an access to its neighbour.
const GAP: u64 = 1 << 16;

/// Value of each byte that is read before anything wrote it: a NaN as a float, −1 as an integer.
pub const POISON: u8 = 0xff;

/// For [`DeviceMemory::as_of`]: the program, which finds gone whatever it has freed.
pub const AFTER_ALL: u64 = u64::MAX;

/// For [`DeviceMemory::as_of`]: who still finds all that is not released.
pub const BEFORE_ALL: u64 = 0;

/// Identifies an allocation for as long as the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationId(pub u64);

impl AllocationId {
    /// Whether it is managed memory.
    pub fn is_managed(self) -> bool {
        self.0 >= FIRST_MANAGED
    }
}

/// One bit per byte: was it written?
#[derive(Clone, Debug, Default)]
pub struct Written {
    words: Vec<u64>,
    /// Bytes not yet written. 0 makes every check a comparison.
    missing: u64,
}

impl Written {
    fn none(len: u64) -> Self {
        Self { words: vec![0; len.div_ceil(64) as usize], missing: len }
    }

    /// Of bytes that count as written, whoever writes them.
    fn all() -> Self {
        Self { words: Vec::new(), missing: 0 }
    }

    /// Forgets everything, for `len` bytes.
    pub fn reset(&mut self, len: u64) {
        self.words.clear();
        self.words.resize(len.div_ceil(64) as usize, 0);
        self.missing = len;
    }

    /// Calls `visit` with each word index and the mask of the bits of `range` in it.
    fn masks(range: Range<u64>, mut visit: impl FnMut(usize, u64)) {
        let mut at = range.start;
        while at < range.end {
            let word_end = (at / 64 + 1) * 64;
            let end = word_end.min(range.end);
            let ones = end - at;
            let mask = if ones == 64 { u64::MAX } else { ((1 << ones) - 1) << (at % 64) };
            visit((at / 64) as usize, mask);
            at = end;
        }
    }

    /// Whether all `len` bytes from `start` were written. At least one byte, and all inside.
    #[inline(always)]
    pub fn covers(&self, start: u64, len: u64) -> bool {
        if self.missing == 0 {
            return true;
        }
        let (first, last) = ((start / 64) as usize, ((start + len - 1) / 64) as usize);
        let head = u64::MAX << (start % 64);
        let tail = u64::MAX >> (63 - (start + len - 1) % 64);
        match last - first {
            0 => !self.words[first] & head & tail == 0,
            1 => !self.words[first] & head == 0 && !self.words[last] & tail == 0,
            _ => self.first_missing(start..start + len).is_none(),
        }
    }

    /// Marks the bytes of `range` as written.
    #[inline(always)]
    pub fn mark(&mut self, range: Range<u64>) {
        if self.missing != 0 {
            self.mark_missing(range);
        }
    }

    fn mark_missing(&mut self, range: Range<u64>) {
        let (words, missing) = (&mut self.words, &mut self.missing);
        Self::masks(range, |word, mask| {
            *missing -= u64::from((mask & !words[word]).count_ones());
            words[word] |= mask;
        });
    }

    /// The first byte of `range` that was not written.
    pub fn first_missing(&self, range: Range<u64>) -> Option<u64> {
        if self.missing == 0 {
            return None;
        }
        let mut found = None;
        Self::masks(range, |word, mask| {
            let missing = mask & !self.words[word];
            if found.is_none() && missing != 0 {
                found = Some(word as u64 * 64 + u64::from(missing.trailing_zeros()));
            }
        });
        found
    }
}

/// Bytes that the host has at the very addresses of an allocation (managed memory).
pub trait HostBytes: Send + std::fmt::Debug {
    /// The bytes.
    fn bytes(&self) -> &[u8];

    /// The bytes, to be changed.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// Where an allocation's bytes lie.
#[derive(Debug)]
enum Bytes {
    /// Where no host code finds them.
    Own(Vec<u8>),
    Host(Box<dyn HostBytes>),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Host(host) => host.bytes(),
        }
    }
}

impl std::ops::DerefMut for Bytes {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Host(host) => host.bytes_mut(),
        }
    }
}

/// A live allocation.
#[derive(Debug)]
pub struct Allocation {
    id: AllocationId,
    base: u64,
    size: u64,
    bytes: Bytes,
    written: Written,
    call_site: CallSite,
    /// The place, among all operations, of the call that freed it: what was enqueued later finds it gone.
    freed_by: Option<u64>,
}

impl Allocation {
    /// Its identity.
    pub fn id(&self) -> AllocationId {
        self.id
    }

    /// Address of its first byte.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The call that made it.
    pub fn call_site(&self) -> &CallSite {
        &self.call_site
    }

    /// Whether every byte was written at some time. While it holds, [`Self::first_unwritten`] needs no look.
    pub fn is_fully_written(&self) -> bool {
        self.written.missing == 0
    }

    /// Offset of the first byte of `range` (offsets in bytes) that nothing has written.
    pub fn first_unwritten(&self, range: Range<u64>) -> Option<u64> {
        self.written.first_missing(range)
    }

    /// Marks the bytes of `range` (offsets) as written. Out-of-range bits panic: check the bounds first.
    pub fn mark_written(&mut self, range: Range<u64>) {
        self.written.mark(range);
    }

    /// The bytes and the record of which were written.
    pub fn parts(&self) -> (&[u8], &Written) {
        (&self.bytes, &self.written)
    }

    /// The bytes and the record of which were written, to be changed together.
    pub fn parts_mut(&mut self) -> (&mut [u8], &mut Written) {
        (&mut self.bytes, &mut self.written)
    }

    /// All bytes. What was never written is 0 here; whoever hands it on puts [`POISON`] in its place.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes of `range` (offsets) as a reader sees them: what was never written is [`POISON`].
    pub fn seen(&self, range: Range<u64>) -> Cow<'_, [u8]> {
        let bytes = &self.bytes[range.start as usize..range.end as usize];
        let Some(mut missing) = self.first_unwritten(range.clone()) else { return Cow::Borrowed(bytes) };
        let mut bytes = bytes.to_vec();
        loop {
            bytes[(missing - range.start) as usize] = POISON;
            match self.first_unwritten(missing + 1..range.end) {
                Some(next) => missing = next,
                None => return Cow::Owned(bytes),
            }
        }
    }

    /// All bytes, to be changed; whoever changes some calls [`Self::mark_written`] for them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// What remains known of a freed allocation.
#[derive(Clone, Debug)]
pub struct Freed {
    /// Its identity.
    pub id: AllocationId,
    /// Its size in bytes.
    pub size: u64,
    /// The call that made it.
    pub allocated: CallSite,
    /// The call that freed it.
    pub freed: CallSite,
}

/// Why a range of addresses can't be accessed.
#[derive(Clone, Debug)]
pub enum BadAddress {
    /// The range starts inside or near an allocation and leaves it.
    OutOfBounds {
        /// The nearest allocation.
        allocation: AllocationId,
        /// Its size in bytes.
        size: u64,
        /// Where the access starts, from the allocation's first byte; negative before it.
        offset: i64,
        /// The call that made the allocation.
        call_site: CallSite,
    },
    /// The range lies in memory that was freed.
    Freed {
        /// What it was.
        freed: Freed,
        /// Where the access starts, from its first byte.
        offset: u64,
    },
    /// Nothing was ever there: a null pointer, a host pointer, another GPU's address.
    Unknown,
}

/// Why an allocation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes that are free.
    pub free: u64,
}

/// The memory of one GPU, or what all GPUs share with the host.
#[derive(Debug)]
pub struct DeviceMemory {
    start: u64,
    alignment: u64,
    capacity: u64,
    used: u64,
    cursor: u64,
    next_id: u64,
    slots: Vec<Option<Allocation>>,
    vacant: Vec<usize>,
    by_base: BTreeMap<u64, usize>,
    freed: BTreeMap<u64, Freed>,
    /// Whose eyes it is seen with: see [`Self::as_of`].
    seen_by: u64,
}

impl DeviceMemory {
    /// Empty memory of `capacity` bytes whose addresses are `start..start + ADDRESS_SPACE`.
    pub fn new(start: u64, capacity: u64) -> Self {
        Self {
            start,
            alignment: ALIGNMENT,
            capacity,
            used: 0,
            cursor: start,
            next_id: 0,
            slots: Vec::new(),
            vacant: Vec::new(),
            by_base: BTreeMap::new(),
            freed: BTreeMap::new(),
            seen_by: AFTER_ALL,
        }
    }

    /// As [`Self::new`], of managed memory: its bytes are the host's, at the same addresses.
    pub fn managed(start: u64, capacity: u64) -> Self {
        let start = start.next_multiple_of(PAGE);
        Self { alignment: PAGE, next_id: FIRST_MANAGED, ..Self::new(start, capacity) }
    }

    /// Bytes in all.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes not allocated.
    pub fn free_bytes(&self) -> u64 {
        self.capacity - self.used
    }

    /// Whether nothing is allocated.
    pub fn is_empty(&self) -> bool {
        self.by_base.is_empty()
    }

    /// Whether `address` is one that this GPU could have handed out.
    pub fn owns(&self, address: u64) -> bool {
        (self.start..self.start + ADDRESS_SPACE).contains(&address)
    }

    /// Allocates `size` bytes and returns the address of the first. Nothing in them counts as written.
    pub fn allocate(&mut self, size: u64, call_site: CallSite) -> Result<u64, OutOfMemory> {
        let refused = OutOfMemory { asked: size, free: self.free_bytes() };
        // Asks the host first, since `vec!` ends the process where it fails; its zeroed pages cost nothing until used.
        Vec::<u8>::new().try_reserve_exact(size as usize).map_err(|_| refused)?;
        self.place(size, call_site, Written::none(size), |_| Some(Bytes::Own(vec![0; size as usize])))
    }

    /// Allocates `size` bytes that `map` makes at the address that it is given. All of them count as written, since the
    /// host's writes are not seen.
    pub fn allocate_managed(
        &mut self,
        size: u64,
        call_site: CallSite,
        map: impl FnOnce(u64) -> Option<Box<dyn HostBytes>>,
    ) -> Result<u64, OutOfMemory> {
        self.place(size, call_site, Written::all(), |address| map(address).map(Bytes::Host))
    }

    fn place(
        &mut self,
        size: u64,
        call_site: CallSite,
        written: Written,
        bytes: impl FnOnce(u64) -> Option<Bytes>,
    ) -> Result<u64, OutOfMemory> {
        let refused = OutOfMemory { asked: size, free: self.free_bytes() };
        if size > self.free_bytes() {
            return Err(refused);
        }
        let base = self.find_gap(size).ok_or(refused)?;
        let bytes = bytes(base).ok_or(refused)?;
        let id = AllocationId(self.next_id);
        self.next_id += 1;
        let allocation = Allocation { id, base, size, bytes, written, call_site, freed_by: None };
        let end = base + size + GAP;
        let stale: Vec<u64> = self
            .freed
            .range(..end)
            .rev()
            .map_while(|(&at, freed)| (at + freed.size > base).then_some(at))
            .collect();
        for at in stale {
            self.freed.remove(&at);
        }
        let slot = self.insert(allocation);
        self.by_base.insert(base, slot);
        self.used += size;
        self.cursor = end.next_multiple_of(self.alignment);
        Ok(base)
    }

    /// Next fit: the first gap of `size` bytes behind the last allocation, or from the start again.
    fn find_gap(&self, size: u64) -> Option<u64> {
        let need = size.max(1).checked_add(GAP)?;
        let limit = self.start + ADDRESS_SPACE;
        if need > ADDRESS_SPACE {
            return None;
        }
        for from in [self.cursor, self.start] {
            let mut at = from;
            for (&base, &slot) in self.by_base.range(from..) {
                if base.saturating_sub(at) >= need {
                    return Some(at);
                }
                let size = self.slots[slot].as_ref().map_or(0, Allocation::size);
                at = (base + size + GAP).next_multiple_of(self.alignment);
            }
            if at + need <= limit {
                return Some(at);
            }
        }
        None
    }

    /// Makes the allocations of managed memory accessible here, until [`Self::give_back`].
    pub fn borrow(&mut self, managed: &mut Self) {
        for (&base, &slot) in &managed.by_base {
            let Some(allocation) = managed.slots[slot].take() else { continue };
            let slot = self.insert(allocation);
            self.by_base.insert(base, slot);
        }
    }

    /// Undoes [`Self::borrow`].
    pub fn give_back(&mut self, managed: &mut Self) {
        for (base, &home) in &managed.by_base {
            let Some(slot) = self.by_base.remove(base) else { continue };
            managed.slots[home] = self.slots[slot].take();
            self.vacant.push(slot);
        }
    }

    fn insert(&mut self, allocation: Allocation) -> usize {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(allocation);
        slot
    }

    /// Frees the allocation that starts at `base`.
    pub fn free(&mut self, base: u64, call_site: CallSite) -> Result<AllocationId, BadAddress> {
        let freed = self.free_from(base, call_site, BEFORE_ALL)?;
        self.release(base);
        Ok(freed)
    }

    /// Frees the allocation that starts at `base` for what is enqueued at `place` among all operations or later. What was
    /// enqueued before still finds it, until [`Self::release`].
    pub fn free_from(
        &mut self,
        base: u64,
        call_site: CallSite,
        place: u64,
    ) -> Result<AllocationId, BadAddress> {
        let known = self.by_base.get(&base).and_then(|&slot| self.slots[slot].as_mut());
        let Some(allocation) = known.filter(|known| known.freed_by.is_none()) else {
            return Err(self.explain(base));
        };
        allocation.freed_by = Some(place);
        let Allocation { id, size, .. } = *allocation;
        self.used -= size;
        self.freed
            .insert(base, Freed { id, size, allocated: allocation.call_site.clone(), freed: call_site });
        Ok(id)
    }

    /// Gives the bytes back of an allocation that was freed.
    pub fn release(&mut self, base: u64) {
        if let Some(slot) = self.by_base.remove(&base) {
            self.slots[slot] = None;
            self.vacant.push(slot);
        }
    }

    /// Sees the memory with the eyes of the operation at `place` among all: what was freed by a later call is still there.
    pub fn as_of(&mut self, place: u64) -> &mut Self {
        self.seen_by = place;
        self
    }

    /// Slot of the allocation that holds `address`, for [`Self::in_slot`]. Valid until something is freed.
    pub fn slot_of(&self, address: u64) -> Option<usize> {
        let (&base, &slot) = self.by_base.range(..=address).next_back()?;
        let allocation = self.slots[slot].as_ref()?;
        (address - base < allocation.size() && self.sees(allocation)).then_some(slot)
    }

    fn sees(&self, allocation: &Allocation) -> bool {
        allocation.freed_by.is_none_or(|place| self.seen_by < place)
    }

    /// The allocation in a slot.
    pub fn in_slot(&self, slot: usize) -> Option<&Allocation> {
        self.slots.get(slot)?.as_ref()
    }

    /// The allocation in a slot, to be changed.
    pub fn in_slot_mut(&mut self, slot: usize) -> Option<&mut Allocation> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// The allocation that holds all of `address..address + len`, and the offset of `address` in it.
    pub fn range(&self, address: u64, len: u64) -> Result<(&Allocation, u64), BadAddress> {
        let found = self.slot_of(address).and_then(|slot| self.in_slot(slot));
        match found {
            Some(allocation) if len <= allocation.size() - (address - allocation.base) => {
                Ok((allocation, address - allocation.base))
            }
            _ => Err(self.explain(address)),
        }
    }

    /// As [`Self::range`], to be changed.
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

    /// As [`Self::explain`], of an address outside of this memory.
    fn explain_borrowed(&self, address: u64) -> BadAddress {
        let before = self.by_base.range(..=address).next_back();
        let allocation = before.and_then(|(_, &slot)| self.in_slot(slot)).filter(|it| it.id.is_managed());
        match allocation {
            Some(Allocation { id, base, size, call_site, .. }) if address - base < size + GAP => {
                let offset = (address - base) as i64;
                BadAddress::OutOfBounds { allocation: *id, size: *size, offset, call_site: call_site.clone() }
            }
            _ => BadAddress::Unknown,
        }
    }

    /// What is wrong with an access that starts at `address`, given that something is.
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
        let out_of = |allocation: &Allocation| BadAddress::OutOfBounds {
            allocation: allocation.id,
            size: allocation.size(),
            offset: address.wrapping_sub(allocation.base) as i64,
            call_site: allocation.call_site.clone(),
        };
        let live = |slot: &usize| self.slots[*slot].as_ref();
        let before = self.by_base.range(..=address).next_back().and_then(|(_, slot)| live(slot));
        let after = self.by_base.range(address..).next().and_then(|(_, slot)| live(slot));
        match (before, after) {
            (Some(before), Some(after)) => {
                let behind = address - before.base - before.size().min(address - before.base);
                out_of(if behind <= after.base - address { before } else { after })
            }
            (Some(one), None) | (None, Some(one)) => out_of(one),
            (None, None) => BadAddress::Unknown,
        }
    }

    /// Every live allocation, in the order of addresses.
    pub fn allocations(&self) -> impl Iterator<Item = &Allocation> {
        let known = self.by_base.values().filter_map(|&slot| self.slots[slot].as_ref());
        known.filter(|allocation| self.sees(allocation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> DeviceMemory {
        DeviceMemory::new(1 << 44, 1 << 20)
    }

    #[test]
    fn an_overrun_names_the_allocation_it_left() {
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
    fn a_freed_address_is_known_as_freed() {
        let mut memory = memory();
        let base = memory.allocate(64, CallSite::unknown()).unwrap();
        memory.free(base, CallSite::unknown()).unwrap();
        assert!(matches!(memory.range(base + 8, 4), Err(BadAddress::Freed { offset: 8, .. })));
        assert!(matches!(memory.free(base, CallSite::unknown()), Err(BadAddress::Freed { .. })));
        assert_eq!(memory.free_bytes(), 1 << 20);
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
