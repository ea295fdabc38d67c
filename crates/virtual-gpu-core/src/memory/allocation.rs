//! An allocation: its bytes, and which of them have been written.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::bad_address::BadAddress;
use super::lives::Lives;
use super::written::Written;
use crate::handle::OperationNumber;
use crate::source_location::CallSite;

/// The value of each byte that is read before it is written: a NaN as a float, −1 as an integer.
pub const POISON: u8 = 0xff;

/// The first id that memory in a heap of kernels can have.
const FIRST_OF_KERNELS: u64 = 1 << 61;

/// The first id that a managed allocation can have.
const FIRST_MANAGED: u64 = 1 << 62;

/// The first id that pinned host memory can have.
const FIRST_PINNED: u64 = 1 << 63;

/// Identifies an allocation for as long as the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationId(pub u64);

impl AllocationId {
    /// The first allocation of a kernel (`malloc`).
    pub(super) const FIRST_OF_KERNELS: Self = Self(FIRST_OF_KERNELS);

    /// The first allocation of managed memory.
    pub(super) const FIRST_MANAGED: Self = Self(FIRST_MANAGED);

    /// The first allocation of pinned host memory.
    pub(super) const FIRST_PINNED: Self = Self(FIRST_PINNED);

    /// Returns whether a kernel made the allocation (`malloc`).
    pub fn is_of_kernels(self) -> bool {
        (FIRST_OF_KERNELS..FIRST_MANAGED).contains(&self.0)
    }

    /// Returns whether the allocation is pinned host memory.
    pub fn is_pinned(self) -> bool {
        self.0 >= FIRST_PINNED
    }

    /// Returns whether the allocation is managed memory, or pinned host memory, which is kept with it.
    pub fn is_managed(self) -> bool {
        self.0 >= FIRST_MANAGED
    }
}

/// An allocation's bytes that the host can access at the same addresses (managed memory and pinned host memory).
pub trait HostBytes: Send + Sync + std::fmt::Debug {
    /// Returns the bytes.
    fn bytes(&self) -> &[u8];

    /// Returns the bytes, mutable.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Replaces 1, 2, 4, or 8 aligned bytes in one step, if they are `old`. Returns whether they were.
    fn replace(&mut self, offset: usize, old: &[u8], new: &[u8]) -> bool {
        let bytes = &mut self.bytes_mut()[offset..offset + old.len()];
        let is_old = *bytes == *old;
        if is_old {
            bytes.copy_from_slice(new);
        }
        is_old
    }
}

/// Where an allocation's bytes are.
#[derive(Debug)]
pub(super) enum Bytes {
    /// In memory that host code can't reach.
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
    pub(super) id: AllocationId,
    pub(super) base: u64,
    pub(super) size: u64,
    pub(super) bytes: Bytes,
    pub(super) written: Written,
    pub(super) call_site: CallSite,
    /// Whether something else, such as a memory pool, has taken the bytes from the GPU's capacity, or nothing has.
    pub(super) pooled: bool,
    /// The sequence number of the call that freed the allocation. Later operations no longer find the allocation.
    pub(super) freed_by: Option<OperationNumber>,
    /// When a graph that owns the allocation has allocated it; `None` for memory that does not belong to a graph.
    pub(super) lives: Option<Arc<Lives>>,
}

impl Allocation {
    /// Creates an allocation at `base` whose bytes are not taken from the GPU's capacity.
    pub(super) fn new(
        id: AllocationId,
        (base, size): (u64, u64),
        (bytes, written): (Bytes, Written),
        call_site: CallSite,
    ) -> Self {
        Self { id, base, size, bytes, written, call_site, pooled: true, freed_by: None, lives: None }
    }

    /// Returns the allocation's identity.
    #[inline]
    pub fn id(&self) -> AllocationId {
        self.id
    }

    /// Returns the address of its first byte.
    #[inline]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Returns whether it comes from a memory pool.
    pub fn is_pooled(&self) -> bool {
        self.pooled
    }

    /// Forgets all bytes, because a launch of its graph allocates it again.
    pub fn start_over(&mut self) {
        // The old bytes make room for the new ones.
        self.bytes = Bytes::Own(Vec::new());
        self.bytes = Bytes::Own(vec![0; self.size as usize]);
        self.written.reset(self.size);
    }

    /// Returns its size in bytes.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns why the host can't use memory that a kernel has allocated.
    pub(super) fn of_kernels(&self, offset: u64) -> BadAddress {
        BadAddress::OfKernels { size: self.size, offset, call_site: self.call_site.clone() }
    }

    /// Returns the call that made it.
    pub fn call_site(&self) -> &CallSite {
        &self.call_site
    }

    /// Returns whether every byte has been written. If so, [`Self::first_unwritten`] is always `None`.
    pub fn is_fully_written(&self) -> bool {
        self.written.is_full()
    }

    /// Returns the offset of the first unwritten byte of `range` (offsets in bytes).
    pub fn first_unwritten(&self, range: Range<u64>) -> Option<u64> {
        self.written.first_missing(range)
    }

    /// Marks the bytes of `range` (offsets) as written. Panics if `range` is out of bounds: check the bounds first.
    pub fn mark_written(&mut self, range: Range<u64>) {
        self.written.mark(range);
    }

    /// Returns the bytes and the record of which have been written.
    #[inline]
    pub fn parts(&self) -> (&[u8], &Written) {
        (&self.bytes, &self.written)
    }

    /// Returns mutable references to the bytes and to the record of which have been written.
    #[inline]
    pub fn parts_mut(&mut self) -> (&mut [u8], &mut Written) {
        (&mut self.bytes, &mut self.written)
    }

    /// Returns all bytes. Unwritten bytes are 0 here; [`Self::seen`] replaces them with [`POISON`].
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes of `range` (offsets) as a reader sees them: bytes that were never written are [`POISON`].
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

    /// Returns a mutable reference to all bytes. Call [`Self::mark_written`] for the bytes that you change.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
