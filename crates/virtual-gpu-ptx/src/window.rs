//! The generic addresses of shared memory, local memory, and parameters, which are above any device or host address.

/// The first generic address of a block's shared memory.
pub const SHARED: u64 = 0xfff1 << 48;

/// The first generic address of a thread's local memory.
pub const LOCAL: u64 = 0xfff2 << 48;

/// The first generic address of a kernel's parameters.
pub const PARAM: u64 = 0xfff3 << 48;

/// The first function address. No memory can be read there.
pub const CODE: u64 = 0xfff4 << 48;

/// The number of addresses in each window.
pub const SIZE: u64 = 1 << 32;

/// The number of bits of an address in shared memory that hold an offset. The bits above hold a block's rank in its
/// cluster plus 1, or 0 for the thread's own block.
pub const OFFSET_BITS: u32 = 24;

/// Returns the part of a shared address that names the block with this rank in its cluster.
pub fn of_block(rank: u64) -> u64 {
    (rank + 1) << OFFSET_BITS
}
