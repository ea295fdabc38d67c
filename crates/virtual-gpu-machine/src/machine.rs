//! A running launch.

use crate::block::Block;
use crate::cluster::Cluster;
use crate::consistency::DeviceRace;
use crate::fault::{Access, Fault, FaultKind, MemoryAccess, Stop, ThreadReport};
use crate::launch::Launch;
use crate::mask::{FULL, MAX_THREADS, Mask, WIDTH, bits};
use crate::memory::touched::{Record, Touched};
use crate::memory::view::View;
use crate::printed::Printed;
use crate::race::Race;
use crate::together::Together;
use virtual_gpu_core::memory::AllocationId;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_ptx::Kernel;
use virtual_gpu_ptx::instruction::{Scope, Space};

/// A running launch, and its current block.
pub(crate) struct Machine<'l> {
    pub(crate) kernel: &'l Kernel,
    pub(crate) launch: &'l Launch<'l>,
    pub(crate) memory: View<'l>,
    pub(crate) block: &'l mut Block,
    /// The running block's cluster.
    pub(crate) cluster: Cluster,
    pub(crate) record: &'l mut Record,
    /// The number of threads in a block.
    pub(crate) threads: usize,
    /// The number of bytes of a thread's local memory, including its stack.
    pub(crate) local_bytes: u64,
    /// Whether the blocks were divided among several threads.
    pub(crate) is_divided: bool,
    /// The number of 32-bit values that calls have saved, in all blocks that have started.
    pub(crate) saved: usize,
    /// The instruction being executed.
    pub(crate) pc: usize,
    /// Whether the instruction is executed by all threads of the block.
    pub(crate) is_whole: bool,
    /// The number of the running group's instructions that have not yet been added to its threads' clocks.
    pub(crate) pending: u64,
    /// Counts events that may let a waiting thread continue: stores, atomics that changed something, and clock reads.
    pub(crate) changes: u64,
    /// The number of clock reads among these events.
    pub(crate) clock_reads: u64,
    /// Counts events that may observe such a change: loads and atomics.
    pub(crate) looks: u64,
    /// The slot of the most recently accessed allocation; `None` if slots may have changed since.
    pub(crate) last_slot: Option<usize>,
    pub(crate) instructions: u64,
    /// The number of atomics, each counted once per thread, except those in the shared state space.
    pub(crate) atomics: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    pub(crate) bytes_of_blocks: u64,
    pub(crate) shared_bytes: u64,
    /// The size of a block's shared memory in bytes, without what hardware adds to it.
    pub(crate) shared_size: usize,
    /// As in [`Execution`](crate::Execution).
    pub(crate) unnoticed: Option<Stop>,
    pub(crate) longest_thread: u64,
    pub(crate) unwritten: Option<ThreadReport>,
    /// The first race in shared memory. Later races are not detected.
    pub(crate) race: Option<Box<Race>>,
    pub(crate) printed: Printed,
    /// What the launch has touched before its record was last drained.
    pub(crate) touched: Vec<Touched>,
    /// The first id that an allocation by this launch can have.
    pub(crate) first_own: AllocationId,
    /// The instruction that last allocated or freed memory, and its line.
    pub(crate) last_line: Option<(usize, CallSite)>,
    /// The scope of the access being executed, if it is strong.
    pub(crate) scope: Option<Scope>,
    /// The launches on other GPUs, if they access the same memory.
    pub(crate) together: Option<Together<'l>>,
    /// The first race in device memory that was found in this launch.
    pub(crate) device_race: Option<Box<DeviceRace>>,
}

impl<'l> Machine<'l> {
    pub(crate) fn new(
        kernel: &'l Kernel,
        launch: &'l Launch<'l>,
        memory: View<'l>,
        (block, record): (&'l mut Block, &'l mut Record),
    ) -> Self {
        let threads = launch.block.iter().map(|&extent| extent as usize).product::<usize>();
        let stack = if kernel.frames().is_empty() { 0 } else { launch.stack };
        let first_own = memory.next_id_of_kernels();
        Self {
            kernel,
            launch,
            memory,
            block,
            cluster: Cluster::default(),
            record,
            threads: threads.min(MAX_THREADS),
            local_bytes: u64::from(kernel.local_bytes()) + stack,
            is_divided: false,
            saved: 0,
            pc: 0,
            is_whole: false,
            pending: 0,
            changes: 0,
            clock_reads: 0,
            looks: 0,
            last_slot: None,
            instructions: 0,
            atomics: 0,
            bytes_read: 0,
            bytes_written: 0,
            bytes_of_blocks: 0,
            shared_bytes: 0,
            shared_size: 0,
            unnoticed: None,
            longest_thread: 0,
            unwritten: None,
            race: None,
            printed: Printed::default(),
            touched: Vec::new(),
            first_own,
            last_line: None,
            scope: None,
            together: None,
            device_race: None,
        }
    }

    /// Returns `threadIdx`.
    pub(crate) fn thread_index(&self, thread: usize) -> [u32; 3] {
        let [width, height, _] = self.launch.block.map(|extent| extent.max(1));
        let thread = thread as u32;
        [thread % width, thread / width % height, thread / width / height]
    }

    /// Returns a report of the current instruction, one thread, and the access.
    pub(crate) fn report(&self, thread: usize, access: Option<(Space, Access, u64, u64)>) -> ThreadReport {
        self.report_of((self.cluster.rank, thread), self.pc, access)
    }

    /// Returns a report of an instruction, a thread of the block with the given rank in the cluster, and the access.
    pub(crate) fn report_of(
        &self,
        (rank, thread): (usize, usize),
        pc: usize,
        access: Option<(Space, Access, u64, u64)>,
    ) -> ThreadReport {
        ThreadReport {
            kernel: self.kernel.name().to_owned(),
            block: self.block_at(rank).index,
            thread: self.thread_index(thread),
            ptx_line: self.kernel.line(pc),
            cuda_line: self.kernel.cuda_line(pc).cloned(),
            access: access.map(|(space, access, address, bytes)| MemoryAccess {
                space,
                access,
                address,
                bytes: bytes as u32,
            }),
        }
    }

    pub(crate) fn fault(&self, kind: FaultKind, thread: usize) -> Stop {
        Box::new(Fault { kind, at: self.report(thread, None), printed: Printed::default() })
    }

    /// Returns a fault for an operation that has no defined result.
    pub(crate) fn undefined(&self, why: &'static str, thread: usize) -> Stop {
        self.fault(FaultKind::Undefined(why), thread)
    }

    pub(crate) fn access_fault(
        &self,
        kind: FaultKind,
        space: Space,
        access: Access,
        thread: usize,
        address: u64,
        bytes: u64,
    ) -> Stop {
        let at = self.report(thread, Some((space, access, address, bytes)));
        Box::new(Fault { kind, at, printed: Printed::default() })
    }

    /// Adds the running group's instructions to its threads' clocks.
    pub(crate) fn settle(&mut self, mask: &Mask) {
        let pending = std::mem::take(&mut self.pending);
        if pending == 0 {
            return;
        }
        for (clocks, &active) in self.block.clocks.chunks_exact_mut(WIDTH).zip(&mask.0) {
            if active == FULL {
                clocks.iter_mut().for_each(|clock| *clock += pending);
            } else {
                bits(active).for_each(|i| clocks[i] += pending);
            }
        }
        self.instructions += pending * mask.count();
    }

    /// Stops a kernel that has executed too many instructions. `active` is the number of threads that have executed the
    /// pending instructions.
    pub(crate) fn check_limit(&mut self, active: u64, mask: &Mask) -> Result<(), Stop> {
        let thread = mask.first().unwrap_or(0);
        let (all, own) = (self.launch.instruction_limit, self.launch.thread_limit);
        if self.instructions + self.pending * active > all {
            return Err(self.endless(FaultKind::Endless { limit: all, of_thread: false }, thread));
        }
        if self.block.clocks[thread] + self.pending > own {
            return Err(self.endless(FaultKind::Endless { limit: own, of_thread: true }, thread));
        }
        Ok(())
    }

    #[cold]
    fn endless(&mut self, kind: FaultKind, thread: usize) -> Stop {
        self.only_tests_at_limit().unwrap_or_else(|| self.fault(kind, thread))
    }
}
