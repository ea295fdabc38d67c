//! What each virtual GPU says of itself: the figures of an NVIDIA H100 SXM5 80 GB, as plain data.

/// The device's name.
pub const NAME: &str = "Virtual H100 80GB HBM3";

/// Bytes of memory on each GPU.
pub const TOTAL_MEMORY: u64 = 80 << 30;

/// CUDA version that `cuDriverGetVersion` reports: 1000 × major + 10 × minor.
pub const DRIVER_VERSION: i32 = 12_090;

/// Threads in a block at most (compute capability 9.0).
pub const MAX_THREADS_PER_BLOCK: u32 = 1024;

/// Threads in a block at most, by dimension.
pub const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];

/// Blocks in a grid at most, by dimension.
pub const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

/// Bytes of shared memory that a block has without opting in to more.
pub const SHARED_PER_BLOCK: u32 = 48 << 10;

/// Bytes of shared memory that a block can have once `cuFuncSetAttribute` asks for them.
pub const SHARED_PER_BLOCK_OPT_IN: u32 = 227 << 10;

/// Value of the `CUdevice_attribute` with this number, for the device at `ordinal`.
///
/// The numbers are those of `cuda.h`; the figures those that `deviceQuery` prints on an H100 SXM5, compute
/// capability 9.0 ("CUDA C++ Programming Guide", table of technical specifications).
pub fn attribute(number: i32, ordinal: usize) -> Option<i32> {
    Some(match number {
        1 => MAX_THREADS_PER_BLOCK as i32,
        2..=4 => MAX_BLOCK[number as usize - 2] as i32,
        5..=7 => MAX_GRID[number as usize - 5] as i32,
        8 => SHARED_PER_BLOCK as i32,
        9 => 64 << 10,            // constant memory, bytes
        10 => 32,                 // warp size
        11 => i32::MAX,           // pitch of 2D copies, bytes
        12 => 65_536,             // registers per block
        13 => 1_980_000,          // clock, kHz
        14 => 512,                // alignment of textures, bytes
        15 => 1,                  // copies overlap kernels
        16 => 132,                // multiprocessors
        17 => 0,                  // no run-time limit on kernels
        18 => 0,                  // not integrated
        19 => 1,                  // can map host memory
        20 => 0,                  // compute mode: default
        31 => 1,                  // concurrent kernels
        32 => 1,                  // ECC
        33 => ordinal as i32 + 1, // PCI bus
        34 => 0,                  // PCI device
        35 => 0,                  // not a TCC driver
        36 => 2_619_000,          // memory clock, kHz
        37 => 5_120,              // memory bus, bits
        38 => 50 << 20,           // L2 cache, bytes
        39 => 2_048,              // threads per multiprocessor
        40 => 3,                  // copy engines
        41 => 1,                  // unified addressing
        50 => 0,                  // PCI domain
        75 => 9,                  // compute capability, major
        76 => 0,                  // compute capability, minor
        78 => 1,                  // stream priorities
        81 => 228 << 10,          // shared memory per multiprocessor, bytes
        82 => 65_536,             // registers per multiprocessor
        83 => 0,                  // managed memory: not there yet
        84 => 0,                  // not a multi-GPU board
        86 => 0,                  // no native host atomics
        87 => 2,                  // ratio of single to double precision
        88 => 0,                  // no coherent pageable access
        89 => 0,                  // no concurrent managed access
        90 => 1,                  // compute preemption
        95 => 0,                  // cooperative launch: not there yet
        97 => SHARED_PER_BLOCK_OPT_IN as i32,
        106 => 32, // blocks per multiprocessor
        115 => 1,  // memory pools
        _ => return None,
    })
}
