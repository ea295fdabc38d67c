//! Device memory: allocations, their bytes, and which of the bytes have ever been written.
//!
//! Addresses come from a separate range. The bytes are stored elsewhere, so no address can be mistaken for a host
//! pointer.

mod allocation;
mod bad_address;
mod capacity;
mod device;
mod heap;
mod lives;
mod mapped;
mod past_caches;
mod shared;
mod written;

pub use allocation::{Allocation, AllocationId, HostBytes, POISON};
pub use bad_address::{BadAddress, Freed, OutOfMemory};
pub use capacity::Capacity;
pub use device::{ADDRESS_SPACE, AFTER_ALL, BEFORE_ALL, DeviceMemory, addresses_per_gpu};
pub use heap::{BadFree, FreedByKernel, HeapOwner};
pub use lives::Lives;
pub use mapped::{Content, SharedContent};
pub use past_caches::PastCaches;
pub use shared::{FileKey, Shared, SharedRecord};
pub use written::Written;
