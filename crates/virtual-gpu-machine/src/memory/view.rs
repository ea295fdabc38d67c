//! What a launch, or a thread that runs some of its blocks, sees of device memory.

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::atomic::Update;
use super::touched::{Accessed, Changed};
use crate::fault::Access;
use virtual_gpu_core::memory::{DeviceMemory, Written};

/// The fewest bytes by which a copy of a part of an allocation grows.
const GROWTH: usize = 64 << 10;

/// The most bytes that are kept for the copies of the next launch.
const KEPT: usize = 128 << 20;

/// The most bytes that all copies in this process may have together.
const MOST_COPIED: usize = 1 << 30;

/// The most changes that a thread's blocks postpone.
pub(crate) const MOST_UPDATES: usize = 1 << 20;

/// The number of bytes that all copies have.
static COPIED: AtomicUsize = AtomicUsize::new(0);

/// Device memory, as the running blocks see it.
pub(crate) enum View<'l> {
    /// The memory itself.
    Whole(&'l mut DeviceMemory),
    /// Memory that other threads read at the same time. Writes are kept apart.
    Apart(&'l DeviceMemory, &'l mut Writes),
}

impl Deref for View<'_> {
    type Target = DeviceMemory;

    #[inline]
    fn deref(&self) -> &DeviceMemory {
        match self {
            Self::Whole(memory) => memory,
            Self::Apart(memory, _) => memory,
        }
    }
}

impl View<'_> {
    /// Returns the memory itself, unless other threads use it.
    pub(crate) fn whole(&mut self) -> Option<&mut DeviceMemory> {
        match self {
            Self::Whole(memory) => Some(memory),
            Self::Apart(..) => None,
        }
    }

    /// Returns whether writes are kept apart.
    #[inline]
    pub(crate) fn is_apart(&self) -> bool {
        matches!(self, Self::Apart(..))
    }

    /// Postpones a change, if writes are kept apart. A change of bytes that were never written can't be postponed; then the
    /// writes are incomplete.
    pub(crate) fn postpone(&mut self, update: Update) {
        if let Self::Apart(memory, writes) = self {
            writes.is_incomplete |= writes.updates.len() >= MOST_UPDATES || !update.is_of_written(memory);
            writes.updates.push(update);
        }
    }

    /// Returns what the running blocks have written to the allocation in a slot, if that is kept apart.
    #[inline]
    pub(crate) fn copy_of(&self, slot: usize) -> Option<&PartialCopy> {
        match self {
            Self::Whole(_) => None,
            Self::Apart(_, writes) => writes.copy_of(slot),
        }
    }

    /// Returns where to write `len` bytes, starting at offset `start`, of the allocation in a slot.
    #[inline]
    pub(crate) fn place(&mut self, slot: usize, start: u64, len: u64) -> Option<Place<'_>> {
        match self {
            Self::Whole(memory) => {
                let allocation = memory.in_slot_mut(slot)?;
                let base = allocation.base();
                let (bytes, written) = allocation.parts_mut();
                Some(Place { base, start: 0, bytes, written })
            }
            Self::Apart(memory, writes) => {
                let allocation = memory.in_slot(slot)?;
                let (base, size) = (allocation.base(), allocation.bytes().len());
                let copy = writes.including(slot, start as usize..(start + len) as usize, size)?;
                let PartialCopy { start, bytes, everything } = copy;
                let start = *start as u64;
                Some(Place { base: base + start, start, bytes, written: everything })
            }
        }
    }
}

/// Bytes of an allocation that can be written.
pub(crate) struct Place<'m> {
    /// The address of the first of them.
    pub(crate) base: u64,
    /// Its offset in the allocation.
    pub(crate) start: u64,
    pub(crate) bytes: &'m mut [u8],
    /// Which bytes of the allocation have ever been written; a copy does not record this.
    pub(crate) written: &'m mut Written,
}

/// A copy of a part of an allocation, for the bytes that blocks have written. Their [`Record`](super::touched::Record)
/// has the ranges; all other bytes are unspecified.
#[derive(Debug, Default)]
pub(crate) struct PartialCopy {
    /// The offset of the first byte in the allocation.
    start: usize,
    bytes: Vec<u8>,
    /// Takes the place of the allocation's record of written bytes, which a copy does not need.
    everything: Written,
}

impl PartialCopy {
    /// Returns the bytes of a range of offsets, all of which have been written.
    #[inline]
    pub(crate) fn written(&self, range: Range<u64>) -> &[u8] {
        &self.bytes[range.start as usize - self.start..range.end as usize - self.start]
    }
}

/// Bytes that replace those of an allocation where the running blocks have written them.
pub(crate) struct Own<'m> {
    pub(crate) copy: &'m PartialCopy,
    /// Where they have been written.
    pub(crate) written: Changed<'m>,
}

/// What some blocks have written.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    of_slots: Vec<PartialCopy>,
    /// Changes to memory that are made only after all writes.
    updates: Vec<Update>,
    /// Bytes of earlier launches, for the next copies.
    spare: Vec<Vec<u8>>,
    /// Whether a write or a change could not be kept.
    is_incomplete: bool,
}

impl Writes {
    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.is_incomplete = false;
        self.updates.clear();
        for copy in self.of_slots.iter_mut().filter(|copy| !copy.bytes.is_empty()) {
            let bytes = std::mem::take(&mut copy.bytes);
            if COPIED.load(Ordering::Relaxed) <= KEPT {
                self.spare.push(bytes);
            } else {
                COPIED.fetch_sub(bytes.len(), Ordering::Relaxed);
            }
        }
    }

    /// Makes the writes and changes in device memory. `accessed` contains the written ranges.
    pub(crate) fn apply(&self, accessed: &[Accessed], memory: &mut DeviceMemory) {
        for Accessed { slot, ranges, .. } in accessed.iter().filter(|it| it.access == Access::Write) {
            let (Some(copy), Some(allocation)) = (self.copy_of(*slot), memory.in_slot_mut(*slot)) else {
                continue;
            };
            let (bytes, written) = allocation.parts_mut();
            for range in ranges {
                bytes[range.start as usize..range.end as usize].copy_from_slice(copy.written(range.clone()));
                written.mark(range.clone());
            }
        }
        self.updates.iter().for_each(|update| update.apply(memory));
    }

    /// Returns whether it has all writes.
    pub(crate) fn is_complete(&self) -> bool {
        !self.is_incomplete
    }

    #[inline]
    pub(crate) fn copy_of(&self, slot: usize) -> Option<&PartialCopy> {
        self.of_slots.get(slot).filter(|copy| !copy.bytes.is_empty())
    }

    /// Returns a copy that includes the part of `range` that is inside an allocation of `size` bytes.
    #[inline]
    fn including(&mut self, slot: usize, range: Range<usize>, size: usize) -> Option<&mut PartialCopy> {
        let range = range.start..range.end.min(size);
        let is_included = self
            .copy_of(slot)
            .is_some_and(|copy| copy.start <= range.start && range.end <= copy.start + copy.bytes.len());
        if !is_included && !self.extend(slot, range, size) {
            self.is_incomplete = true;
            return None;
        }
        self.of_slots.get_mut(slot)
    }

    /// Makes a copy larger so that it includes `range`. Returns false if there is no memory for it.
    #[cold]
    fn extend(&mut self, slot: usize, range: Range<usize>, size: usize) -> bool {
        if self.of_slots.len() <= slot {
            self.of_slots.resize_with(slot + 1, PartialCopy::default);
        }
        let copy = &mut self.of_slots[slot];
        if copy.bytes.is_empty() {
            copy.bytes = self.spare.pop_if(|bytes| bytes.len() <= size).unwrap_or_default();
            copy.start = range.start.min(size - copy.bytes.len());
        }
        let (start, len) = (copy.start, copy.bytes.len());
        let growth = len.max(GROWTH);
        let below = if range.start < start { range.start.min(start.saturating_sub(growth)) } else { start };
        let end = start + len;
        let above = if range.end > end { range.end.max(end + growth).min(size) } else { end };
        let more = above - below - len;
        if COPIED.fetch_add(more, Ordering::Relaxed) + more > MOST_COPIED
            || copy.bytes.try_reserve_exact(more).is_err()
        {
            COPIED.fetch_sub(more, Ordering::Relaxed);
            return false;
        }
        copy.bytes.resize(above - below, 0);
        copy.bytes.copy_within(..len, start - below);
        copy.start = below;
        true
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        let copied = self.of_slots.iter().map(|copy| &copy.bytes).chain(&self.spare).map(Vec::len).sum();
        COPIED.fetch_sub(copied, Ordering::Relaxed);
    }
}
