//! The attributes that each virtual GPU reports, as plain data. They are the attributes of an NVIDIA H100 SXM5 80 GB.

use std::ops::RangeInclusive;

/// The device's name.
pub const NAME: &str = "Virtual H100 80GB HBM3";

/// The number of bytes of memory on each GPU.
pub const TOTAL_MEMORY: u64 = 80 << 30;

/// The CUDA version that `cuDriverGetVersion` reports: 1000 × major + 10 × minor.
pub const DRIVER_VERSION: i32 = 12_090;

/// The maximum number of threads in a block (compute capability 9.0).
pub const MAX_THREADS_PER_BLOCK: u32 = 1024;

/// The most blocks in a cluster that every GPU with clusters supports.
pub const LARGEST_PORTABLE_CLUSTER: u32 = 8;

/// The most blocks in a cluster if the program asks for a size that is not portable.
pub const LARGEST_CLUSTER: u32 = 16;

/// The maximum number of threads in a block, by dimension.
pub const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];

/// The maximum number of blocks in a grid, by dimension.
pub const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

/// The number of bytes of shared memory available to a block unless it opts in to more.
pub const SHARED_PER_BLOCK: u32 = 48 << 10;

/// The number of bytes of shared memory that a block can have once `cuFuncSetAttribute` has requested them.
pub const SHARED_PER_BLOCK_OPT_IN: u32 = 227 << 10;

/// The number of bytes of shared memory on a multiprocessor, for all its blocks together.
pub const SHARED_PER_MULTIPROCESSOR: u32 = 228 << 10;

/// The number of bytes of shared memory that the driver reserves for itself in each block.
pub const SHARED_RESERVED_PER_BLOCK: u32 = 1 << 10;

/// The number of threads in a warp.
pub const WARP: u32 = 32;

/// The number of multiprocessors on a GPU.
pub const MULTIPROCESSORS: u32 = 132;

/// The number of threads resident on a multiprocessor at the same time.
pub const MAX_THREADS_PER_MULTIPROCESSOR: u32 = 2048;

/// The number of blocks resident on a multiprocessor at the same time.
pub const MAX_BLOCKS_PER_MULTIPROCESSOR: u32 = 32;

/// The number of 32-bit registers on a multiprocessor, all of which a single block may use.
pub const REGISTERS: u32 = 65_536;

/// The number of registers that each thread is assumed to use, in every kernel. The virtual GPU runs PTX, which has an
/// unlimited number of registers, so it allocates none. This is the largest number for which registers never limit how
/// many threads are resident.
pub const REGISTERS_PER_THREAD: u32 = 32;

/// The architecture that kernels are considered to be compiled for: 10 × major + minor.
pub const BINARY_VERSION: i32 = 90;

/// The range of stream priorities, least urgent first; lower numbers are more urgent (an H100's range).
pub const PRIORITIES: (i32, i32) = (0, -5);

/// `CU_DEVICE_ATTRIBUTE_MAX`: device attributes have the numbers from 1 to just below this one (CUDA 12.9).
pub const ATTRIBUTES: i32 = 144;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`
pub const COMPUTE_CAPABILITY_MAJOR: i32 = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`
pub const COMPUTE_CAPABILITY_MINOR: i32 = 76;

/// Returns a GPU's UUID, by its index in the node.
pub fn uuid(gpu: usize) -> [u8; 16] {
    let mut uuid = *b"virtual GPU     ";
    uuid[12..].copy_from_slice(&(gpu as u32).to_be_bytes());
    uuid
}

/// Returns the number of a GPU's PCI bus, by the GPU's index in the node.
pub fn pci_bus(gpu: usize) -> u8 {
    gpu as u8 + 1
}

/// The attributes that all GPUs share: each `CUdevice_attribute`'s number and value.
const VALUES: &[(RangeInclusive<i32>, i32)] = &[
    (1..=1, MAX_THREADS_PER_BLOCK as i32),
    (8..=8, SHARED_PER_BLOCK as i32),
    (9..=9, 64 << 10), // constant memory, bytes
    (10..=10, WARP as i32),
    (11..=11, i32::MAX), // pitch for 2D copies, bytes
    (12..=12, REGISTERS as i32),
    (13..=13, 1_980_000), // clock, kHz
    (14..=14, 512),       // texture alignment, bytes
    (15..=15, 1),         // copies overlap kernels
    (16..=16, MULTIPROCESSORS as i32),
    (17..=17, 0),         // no run-time limit on kernels
    (18..=18, 0),         // not integrated
    (19..=19, 1),         // host memory in the device's address space
    (20..=20, 0),         // compute mode: default
    (21..=22, 131_072),   // 1D texture: width; 2D texture: width
    (23..=23, 65_536),    // 2D texture: height
    (24..=26, 16_384),    // 3D texture: width, height, depth
    (27..=28, 32_768),    // layered 2D texture: width, height
    (29..=29, 2048),      // layered 2D texture: layers
    (30..=30, 512),       // surface alignment, bytes
    (31..=31, 1),         // concurrent kernels
    (32..=32, 1),         // ECC
    (34..=34, 0),         // PCI device
    (35..=35, 0),         // not a TCC driver
    (36..=36, 2_619_000), // memory clock, kHz
    (37..=37, 5_120),     // memory bus, bits
    (38..=38, 50 << 20),  // L2 cache, bytes
    (39..=39, MAX_THREADS_PER_MULTIPROCESSOR as i32),
    (40..=40, 3),         // copy engines
    (41..=41, 1),         // unified addressing
    (42..=42, 32_768),    // layered 1D texture: width
    (43..=43, 2048),      // layered 1D texture: layers
    (44..=44, 1),         // 2D textures can be gathered
    (45..=46, 32_768),    // gathered 2D texture: width, height
    (47..=48, 8192),      // 3D texture, alternate: width, height
    (49..=49, 32_768),    // 3D texture, alternate: depth
    (50..=50, 0),         // PCI domain
    (51..=51, 32),        // pitch alignment of textures, bytes
    (52..=53, 32_768),    // cubemap texture: width; layered cubemap texture: width
    (54..=54, 2046),      // layered cubemap texture: layers
    (55..=55, 32_768),    // 1D surface: width
    (56..=56, 131_072),   // 2D surface: width
    (57..=57, 65_536),    // 2D surface: height
    (58..=60, 16_384),    // 3D surface: width, height, depth
    (61..=61, 32_768),    // layered 1D surface: width
    (62..=62, 2048),      // layered 1D surface: layers
    (63..=64, 32_768),    // layered 2D surface: width, height
    (65..=65, 2048),      // layered 2D surface: layers
    (66..=67, 32_768),    // cubemap surface: width; layered cubemap surface: width
    (68..=68, 2046),      // layered cubemap surface: layers
    (69..=69, 1 << 28),   // 1D texture in linear memory: width
    (70..=70, 131_072),   // 2D texture in linear memory: width
    (71..=71, 65_000),    // 2D texture in linear memory: height
    (72..=72, 2_097_120), // 2D texture in linear memory: pitch, bytes
    (73..=74, 32_768),    // mipmapped 2D texture: width, height
    (COMPUTE_CAPABILITY_MAJOR..=COMPUTE_CAPABILITY_MAJOR, BINARY_VERSION / 10),
    (COMPUTE_CAPABILITY_MINOR..=COMPUTE_CAPABILITY_MINOR, BINARY_VERSION % 10),
    (77..=77, 32_768), // mipmapped 1D texture: width
    (78..=78, 1),      // stream priorities
    (79..=79, 1),      // global memory is cached in L1
    (80..=80, 1),      // local memory is cached in L1
    (81..=81, SHARED_PER_MULTIPROCESSOR as i32),
    (82..=82, REGISTERS as i32),
    (83..=83, 1), // managed memory
    (84..=84, 0), // not a multi-GPU board
    (86..=86, 0), // no native host atomics
    (87..=87, 2), // ratio of single to double precision
    (88..=88, 0), // no coherent pageable access
    (89..=89, 1), // host and GPUs can use managed memory at the same time
    (90..=90, 1), // compute preemption
    (91..=91, 1), // registered host memory at the same address
    (92..=94, 0), // stream memory operations, version 1
    (95..=95, 1), // cooperative launch
    (96..=96, 0), // cooperative launch on several devices
    (97..=97, SHARED_PER_BLOCK_OPT_IN as i32),
    (98..=98, 0),   // flush of remote writes
    (99..=99, 1),   // registered host memory
    (100..=100, 0), // no access through the host's page tables
    (101..=101, 0), // no direct host access to managed memory
    (102..=102, 1), // virtual memory management
    (103..=103, 1), // file descriptors to share it
    (104..=105, 0), // other handles to share it
    (106..=106, MAX_BLOCKS_PER_MULTIPROCESSOR as i32),
    (107..=107, 0), // compressible memory
    (108..=108, 0), // persisting lines in L2, and windows of them
    (109..=109, 0), // persisting lines in L2, and windows of them
    (110..=110, 0), // GPUDirect RDMA with virtual memory management
    (111..=111, SHARED_RESERVED_PER_BLOCK as i32),
    (112..=112, 0),           // sparse arrays
    (113..=113, 0),           // read-only registered host memory
    (114..=114, 0),           // timeline semaphores
    (115..=115, 1),           // memory pools
    (116..=118, 0),           // GPUDirect RDMA, its flushes and its ordering
    (119..=119, 1),           // file descriptors to share memory pools
    (120..=120, 1),           // cluster launch
    (121..=121, 0),           // deferred array mapping
    (122..=122, 1),           // 64-bit stream memory operations
    (123..=123, 1),           // waits for a bit that two numbers lack
    (124..=124, 0),           // dma_buf
    (125..=125, 1),           // events between processes
    (126..=126, 1),           // memory synchronization domains
    (127..=127, 1),           // tensor maps
    (128..=128, 0),           // fabric handles
    (129..=129, 0),           // unified function pointers
    (130..=130, 0),           // no NUMA node of its own
    (131..=131, -1),          // and so no number for it
    (132..=132, 0),           // multicast
    (133..=133, 0),           // not shared through MPS
    (134..=134, -1),          // the host's NUMA node is not known
    (135..=135, 0),           // contexts shared with graphics
    (138..=138, 0),           // contexts shared with graphics
    (136..=136, 0),           // hardware decompression
    (137..=137, 0),           // hardware decompression
    (139..=139, 0x2330_10de), // PCI device and vendor: H100 SXM5 80 GB, NVIDIA
    (140..=140, 0x16c1_10de), // PCI subsystem: that of an H100 SXM5 80 GB
    (141..=143, 0),           // host NUMA memory: virtual, pools, between nodes
];

/// Returns the value of the `CUdevice_attribute` with this number, for the device with index `ordinal` in the node.
/// Returns `None` for a number that CUDA 12.9 does not have.
///
/// The numbers come from `cuda.h`. The values are what `deviceQuery` prints on an H100 SXM5, compute capability 9.0
/// ("CUDA C++ Programming Guide", table of technical specifications, which includes the limits of textures and
/// surfaces). The limits of mipmapped and alternate 3D textures and the pitch alignment are not in that table, and are what
/// drivers report for recent GPUs; the PCI numbers are those that `nvidia-smi -q` prints. Attributes for features that an
/// H100 has but the virtual GPU lacks are 0.
pub fn attribute(number: i32, ordinal: usize) -> Option<i32> {
    match number {
        2..=4 => return Some(MAX_BLOCK[number as usize - 2] as i32),
        5..=7 => return Some(MAX_GRID[number as usize - 5] as i32),
        33 => return Some(i32::from(pci_bus(ordinal))),
        85 => return Some(ordinal as i32), // its own multi-GPU board group
        _ => {}
    }
    VALUES.iter().find(|(numbers, _)| numbers.contains(&number)).map(|&(_, value)| value)
}

/// Returns the value of an attribute that limits a size; 0 if there is no such attribute.
pub(crate) fn limit(number: i32) -> u64 {
    attribute(number, 0).and_then(|value| u64::try_from(value).ok()).unwrap_or(0)
}
