//! Why memory can't be accessed or allocated.

use super::allocation::AllocationId;
use crate::source_location::CallSite;

/// What is still known about a freed allocation.
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
    /// The range starts inside or near an allocation and extends beyond it.
    OutOfBounds {
        /// The nearest allocation.
        allocation: AllocationId,
        /// Its size in bytes.
        size: u64,
        /// Where the access starts, relative to the allocation's first byte; negative before it.
        offset: i64,
        /// The call that made the allocation.
        call_site: CallSite,
    },
    /// The range is in memory that has been freed.
    Freed {
        /// The allocation.
        freed: Freed,
        /// Where the access starts, relative to the allocation's first byte.
        offset: u64,
    },
    /// The range is in memory that belongs to a graph, which has not allocated it yet.
    Unallocated {
        /// The allocation.
        id: AllocationId,
        /// Its size in bytes.
        size: u64,
        /// Where the access starts, relative to the allocation's first byte.
        offset: u64,
        /// The call that added it to the graph.
        call_site: CallSite,
    },
    /// The range is in memory that a kernel has allocated (`malloc`), and the host can't use it.
    OfKernels {
        /// The size of the allocation in bytes.
        size: u64,
        /// Where the access starts, relative to the allocation's first byte.
        offset: u64,
        /// The line in the kernel that made the allocation.
        call_site: CallSite,
    },
    /// There has never been an allocation at this address: it is a null pointer, a host pointer, or another GPU's
    /// address.
    Unknown,
}

/// Why an allocation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The number of bytes requested.
    pub asked: u64,
    /// The number of free bytes.
    pub free: u64,
}
