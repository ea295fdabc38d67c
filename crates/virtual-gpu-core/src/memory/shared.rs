//! Memory that several processes share.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::allocation::{Allocation, AllocationId, Bytes, HostBytes};
use super::device::DeviceMemory;
use super::written::Written;
use crate::source_location::CallSite;

/// The file that holds shared memory, as handles for other processes name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileKey {
    /// The file's descriptor in the process that made it.
    pub descriptor: u32,
    /// A secret number in the file. A process needs it to open the file.
    pub secret: u64,
}

/// The record of which bytes of shared memory have been written, by any process. It has one bit per byte.
pub trait SharedRecord: Send + Sync + Debug {
    /// Returns the record's words.
    fn words(&self) -> &[AtomicU64];

    /// Returns the file, or `None` if another process has made it.
    fn key(&self) -> Option<FileKey>;

    /// Returns a number that no other file has.
    fn secret(&self) -> u64;

    /// Returns a new descriptor for the file, to pass to another process; `None` if the file is not open, or if the
    /// descriptor can't be duplicated.
    fn descriptor(&self) -> Option<OwnedFd>;

    /// Returns whether the process that made the memory has freed it.
    fn is_gone(&self) -> bool;
}

/// New shared memory.
#[derive(Debug)]
pub struct Shared {
    /// The bytes.
    pub bytes: Box<dyn HostBytes>,
    /// Which of them have been written.
    pub written: Arc<dyn SharedRecord>,
}

impl Shared {
    /// Returns the number of bytes.
    pub fn size(&self) -> u64 {
        self.bytes.bytes().len() as u64
    }
}

/// Bytes are moved in pieces of this size. Pieces that have never been written take no memory.
const PIECE: usize = 4096;

impl DeviceMemory {
    /// Moves an allocation's bytes to memory from `make` that other processes can share. If they have been moved
    /// before, returns that memory's file. `make` receives the number of bytes.
    pub fn share<E>(
        &mut self,
        base: u64,
        make: impl FnOnce(u64) -> Result<Shared, E>,
    ) -> Result<Option<FileKey>, E> {
        let slot = self.by_base.get(&base).copied();
        let Some(allocation) = slot.and_then(|slot| self.in_slot_mut(slot)) else { return Ok(None) };
        if let Some(shared) = allocation.written.shared() {
            return Ok(shared.key());
        }
        let mut shared = make(allocation.size)?;
        let to = shared.bytes.bytes_mut();
        for (number, (to, from)) in to.chunks_mut(PIECE).zip(allocation.bytes.chunks(PIECE)).enumerate() {
            let start = (number * PIECE) as u64;
            if allocation.written.has_any(start..start + from.len() as u64) {
                to.copy_from_slice(from);
            }
        }
        allocation.written.copy_to(shared.written.words());
        let key = shared.written.key();
        allocation.bytes = Bytes::Host(shared.bytes);
        allocation.written = Written::shared_by(shared.written);
        Ok(key)
    }

    /// Adds memory of another process at a new address. Returns `None` if no address is left.
    pub fn insert_shared(&mut self, shared: Shared, call_site: CallSite) -> Option<(u64, AllocationId)> {
        let size = shared.size();
        let (bytes, written) = (Bytes::Host(shared.bytes), Written::shared_by(shared.written));
        // The other process has taken its bytes from the GPU's capacity.
        let base = self.insert_new(size, call_site, written, true, |_| Some(bytes)).ok()?;
        let id = self.range(base, 0).ok()?.0.id();
        Some((base, id))
    }
}

impl Allocation {
    /// Replaces 1, 2, 4, or 8 aligned bytes in one step, if they are `old`, and marks them as written. Returns whether
    /// they were `old`.
    pub fn replace(&mut self, offset: u64, old: &[u8], new: &[u8]) -> bool {
        let is_replaced = match &mut self.bytes {
            Bytes::Host(host) => host.replace(offset as usize, old, new),
            Bytes::Own(_) => return false,
        };
        if is_replaced {
            self.written.mark(offset..offset + old.len() as u64);
        }
        is_replaced
    }

    /// Returns whether it is memory of another process that has freed it.
    pub fn is_gone(&self) -> bool {
        self.written.shared().is_some_and(|shared| shared.is_gone())
    }

    /// Returns whether other processes may access it.
    pub fn is_shared_with_processes(&self) -> bool {
        self.written.shared().is_some()
    }
}
