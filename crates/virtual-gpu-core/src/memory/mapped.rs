//! Memory that a program maps at addresses that it has reserved: `cuMemCreate` and `cuMemMap`.

use super::allocation::{Allocation, AllocationId, Bytes};
use super::device::DeviceMemory;
use super::shared::Shared;
use super::written::Written;
use crate::source_location::CallSite;

/// The bytes of memory that is not accessible at any address, and which of them have been written. Sizes are multiples of
/// 64 bytes.
#[derive(Debug)]
pub struct Content {
    bytes: Vec<u8>,
    written: Written,
}

impl From<Shared> for SharedContent {
    fn from(Shared { bytes, written }: Shared) -> Self {
        Self { bytes: Bytes::Host(bytes), written: Written::shared_by(written) }
    }
}

/// Like [`Content`], for memory that processes share. It can't be divided.
#[derive(Debug)]
pub struct SharedContent {
    bytes: Bytes,
    written: Written,
}

impl Content {
    /// Creates `size` unwritten bytes. Returns `None` if the host doesn't have enough memory.
    pub fn new(size: u64) -> Option<Self> {
        // `vec!` ends the process if it fails. Its zeroed pages cost nothing until they are used.
        Vec::<u8>::new().try_reserve_exact(size as usize).ok()?;
        Some(Self { bytes: vec![0; size as usize], written: Written::none(size) })
    }

    /// Appends the content of memory that is mapped right behind.
    pub fn append(&mut self, mut next: Self) {
        self.written.append(self.bytes.len() as u64, next.written, next.bytes.len() as u64);
        self.bytes.append(&mut next.bytes);
    }

    /// Splits the content after `size` bytes, and returns the second part.
    pub fn split_off(&mut self, size: u64) -> Self {
        let len = self.bytes.len() as u64;
        Self { bytes: self.bytes.split_off(size as usize), written: self.written.split_off(size, len) }
    }
}

impl DeviceMemory {
    /// Makes content accessible at `base`, an address outside of this memory's own. It gets a new identity, unless it
    /// keeps the one that it had.
    pub fn insert_mapped(
        &mut self,
        base: u64,
        content: Content,
        call_site: CallSite,
        id: Option<AllocationId>,
    ) -> AllocationId {
        let id = id.unwrap_or_else(|| self.new_id());
        let Content { bytes, written } = content;
        let (size, bytes) = (bytes.len() as u64, Bytes::Own(bytes));
        // Who created the content has taken its bytes from the capacity.
        let allocation = Allocation::new(id, (base, size), (bytes, written), call_site);
        self.insert_at(base, allocation);
        id
    }

    /// Makes the content at `base` inaccessible, and returns it with its identity. Content that processes share stays.
    pub fn take_mapped(&mut self, base: u64) -> Option<(AllocationId, CallSite, Content)> {
        let slot = *self.by_base.get(&base)?;
        if self.in_slot(slot)?.is_shared_with_processes() {
            return None;
        }
        let Allocation { id, bytes, written, call_site, .. } = self.remove_at(base)?;
        let Bytes::Own(bytes) = bytes else { return None };
        Some((id, call_site, Content { bytes, written }))
    }

    /// Like [`Self::insert_mapped`], for content that processes share. It always has a new identity.
    pub fn insert_shared_mapped(&mut self, base: u64, content: SharedContent, call_site: CallSite) {
        let SharedContent { bytes, written } = content;
        let (id, size) = (self.new_id(), bytes.len() as u64);
        let allocation = Allocation::new(id, (base, size), (bytes, written), call_site);
        self.insert_at(base, allocation);
    }

    /// Like [`Self::take_mapped`], for content that processes share.
    pub fn take_shared_mapped(&mut self, base: u64) -> Option<(AllocationId, SharedContent)> {
        let slot = *self.by_base.get(&base)?;
        if !self.in_slot(slot)?.is_shared_with_processes() {
            return None;
        }
        let Allocation { id, bytes, written, .. } = self.remove_at(base)?;
        Some((id, SharedContent { bytes, written }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_keeps_its_bytes_and_their_record_when_it_moves() {
        let mut memory = DeviceMemory::new(1 << 44..1 << 45, 1 << 20);
        let (here, there) = (1 << 50, 1 << 51);
        let mut first = Content::new(128).unwrap();
        first.append(Content::new(64).unwrap());
        let id = memory.insert_mapped(here, first, CallSite::unknown(), None);
        let (allocation, offset) = memory.range_mut(here + 100, 60).unwrap();
        assert_eq!((allocation.id(), allocation.size(), offset), (id, 192, 100));
        allocation.bytes_mut()[100..160].fill(7);
        allocation.mark_written(100..160);

        let (known, _, mut left) = memory.take_mapped(here).unwrap();
        assert!(known == id && memory.range(here, 1).is_err());
        let right = left.split_off(128);
        memory.insert_mapped(there, right, CallSite::unknown(), None);
        memory.insert_mapped(here, left, CallSite::unknown(), Some(id));
        let (right, _) = memory.range(there, 64).unwrap();
        assert_eq!((right.seen(31..33).as_ref(), right.first_unwritten(0..64)), (&[7, 255][..], Some(32)));
        let (left, _) = memory.range(here, 128).unwrap();
        assert_eq!((left.seen(99..101).as_ref(), left.first_unwritten(100..128)), (&[255, 7][..], None));
        assert_ne!(left.id(), right.id());
    }

    #[test]
    fn content_that_is_all_written_stays_so() {
        let mut memory = DeviceMemory::new(1 << 44..1 << 45, 1 << 20);
        memory.insert_mapped(1 << 50, Content::new(64).unwrap(), CallSite::unknown(), None);
        memory.range_mut(1 << 50, 64).unwrap().0.mark_written(0..64);
        let (.., mut content) = memory.take_mapped(1 << 50).unwrap();
        content.append(Content::new(64).unwrap());
        memory.insert_mapped(1 << 50, content, CallSite::unknown(), None);
        let allocation = memory.range(1 << 50, 128).unwrap().0;
        assert_eq!((allocation.first_unwritten(0..64), allocation.first_unwritten(0..128)), (None, Some(64)));
    }
}
