//! The arguments of a kernel launch, and what the kernel did.

use crate::consistency::DeviceRace;
use crate::division::Division;
use crate::fault::{Fault, ThreadReport};
use crate::memory::touched::Touched;
use crate::printed::Printed;
use crate::race::Race;
use virtual_gpu_core::memory::HeapOwner;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::texture::{NO_OBJECTS, Objects};

/// The unit in bytes in which hardware allocates shared memory, from the CUDA occupancy calculator for compute capability
/// 9.0.
pub(crate) const SHARED_UNIT: usize = 128;

/// The arguments of a kernel launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The number of blocks along each axis.
    pub grid: [u32; 3],
    /// The number of threads in a block along each axis; at most 1024 in total.
    pub block: [u32; 3],
    /// The number of blocks in a cluster along each axis, which divides the grid; at most 16 in total.
    pub cluster: [u32; 3],
    /// Whether the launch or the kernel states the size of a cluster.
    pub is_explicit_cluster: bool,
    /// The number of bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// The parameters' bytes, laid out as in [`virtual_gpu_ptx::Kernel::parameters`].
    pub parameters: &'a [u8],
    /// The device address of each of [`virtual_gpu_ptx::Module::variables`], in the same order.
    pub globals: &'a [u64],
    /// The texture and surface objects that the kernel may use.
    pub objects: &'a Objects,
    /// `%globaltimer` when the kernel starts; it then advances by 1 for each instruction that the reading thread
    /// executes.
    pub start_ns: u64,
    /// Whether several threads run the blocks.
    pub division: Division,
    /// The number of blocks resident on the GPU at the same time, at least 1. These blocks may wait for each other.
    pub resident: u64,
    /// `%envreg1` and `%envreg2`: the address of a cooperative launch's barrier; 0 for any other launch.
    pub workspace: u64,
    /// The size in bytes of each thread's stack, for functions that call themselves.
    pub stack: u64,
    /// The heap from which the kernel allocates.
    pub heap: KernelHeap<'a>,
    /// The number of bytes of `printf` output that are kept. If a kernel writes more, the newest output is kept.
    pub print_buffer: u64,
    /// Whether races in shared memory are detected.
    pub watch_shared: bool,
    /// Whether a kernel continues where hardware does, although it does what the documentation forbids. The first such
    /// access is reported in [`Execution::unnoticed`]. It is beyond the block's shared memory, but within its last unit of
    /// 128 bytes, or a `wmma` access whose matrix is not aligned as the manual requires.
    pub is_lenient: bool,
    /// The number of instructions across all threads after which the kernel is considered endless.
    pub instruction_limit: u64,
    /// The number of instructions in one thread, plus the nanoseconds that it sleeps, after which the kernel is
    /// considered endless: a thread that runs alone takes as long per instruction as a full block.
    pub thread_limit: u64,
}

/// The heap from which a kernel allocates (`malloc`).
#[derive(Clone, Copy, Debug)]
pub struct KernelHeap<'a> {
    /// The context that it belongs to.
    pub owner: HeapOwner,
    /// Its size in bytes.
    pub limit: u64,
    /// The call that launched the kernel, for allocations at an unknown line.
    pub launched: Option<&'a CallSite>,
}

impl Default for KernelHeap<'_> {
    /// Returns a heap of the size that a context starts with.
    fn default() -> Self {
        Self { owner: HeapOwner::default(), limit: 8 << 20, launched: None }
    }
}

impl Default for Launch<'_> {
    /// Returns a launch of one thread with no parameters or limits, alone on the GPU.
    fn default() -> Self {
        Self {
            grid: [1; 3],
            block: [1; 3],
            cluster: [1; 3],
            is_explicit_cluster: false,
            dynamic_shared: 0,
            parameters: &[],
            globals: &[],
            objects: &NO_OBJECTS,
            start_ns: 0,
            division: Division::NONE,
            resident: 1,
            workspace: 0,
            stack: 1 << 10,
            heap: KernelHeap::default(),
            print_buffer: 1 << 20,
            watch_shared: true,
            is_lenient: false,
            instruction_limit: u64::MAX,
            thread_limit: u64::MAX,
        }
    }
}

/// The result of a kernel launch.
#[derive(Debug)]
pub struct Execution {
    /// The number of instructions, counted once per thread.
    pub instructions: u64,
    /// The number of bytes of device memory that loads and atomics read, counted once per access.
    pub bytes_read: u64,
    /// The number of bytes of device memory that stores and atomics wrote, counted once per access.
    pub bytes_written: u64,
    /// The same bytes, counted once per block, because a cache in the multiprocessor can hold what a block repeats. Atomics
    /// are counted each time: the L2 cache executes them.
    pub bytes_of_blocks: u64,
    /// The number of bytes of shared memory that were read and written, counted once per access.
    pub shared_bytes: u64,
    /// The number of instructions that the longest-running thread executed, plus the nanoseconds that it slept.
    pub longest_thread: u64,
    /// The bytes of device memory that were accessed, by allocation.
    pub touched: Vec<Touched>,
    /// The first read of bytes that had never been written. The read returned
    /// [`POISON`](virtual_gpu_core::memory::POISON), and the kernel continued.
    pub unwritten: Option<ThreadReport>,
    /// The first fault that hardware would not notice, or a read through a texture or surface of bytes that the kernel has
    /// written. The kernel continued.
    pub unnoticed: Option<Box<Fault>>,
    /// The first race in shared memory. The kernel continued.
    pub race: Option<Box<Race>>,
    /// The first race in device memory, if launches on other GPUs access the same memory. The kernel continued.
    pub device_race: Option<Box<DeviceRace>>,
    /// The `printf` output.
    pub printed: Printed,
    /// Whether the blocks were divided among several threads. Nothing else depends on it.
    pub is_divided: bool,
}
