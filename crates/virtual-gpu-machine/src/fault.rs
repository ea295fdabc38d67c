//! Faults in running kernels, and their locations.

use std::fmt;

use crate::printed::Printed;
use virtual_gpu_core::memory::{BadAddress, BadFree};
use virtual_gpu_ptx::CudaLine;
use virtual_gpu_ptx::instruction::Space;

/// How memory was accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An atomic.
    Atomic,
}

/// One thread's access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAccess {
    /// The state space: global, shared, or local.
    pub space: Space,
    /// How it was accessed.
    pub access: Access,
    /// The first byte's device address, or its offset in shared or local memory.
    pub address: u64,
    /// The number of bytes.
    pub bytes: u32,
}

/// Where in a kernel, and in which thread, an event happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadReport {
    /// The kernel's name.
    pub kernel: String,
    /// `blockIdx`
    pub block: [u32; 3],
    /// `threadIdx`
    pub thread: [u32; 3],
    /// The PTX line, from 1.
    pub ptx_line: u32,
    /// The CUDA line, if the PTX records it.
    pub cuda_line: Option<CudaLine>,
    /// The memory access, if the event is a memory access.
    pub access: Option<MemoryAccess>,
}

impl fmt::Display for ThreadReport {
    /// Writes, for example, ``kernel `axpy`, block (3,0,0), thread (17,0,0): reads 4 bytes at 0x7f00 (axpy.cu:5)``.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([a, b, c], [x, y, z]) = (self.block, self.thread);
        write!(f, "kernel `{}`, block ({a},{b},{c}), thread ({x},{y},{z})", self.kernel)?;
        if let Some(MemoryAccess { space, access, address, bytes }) = self.access {
            let verb = match access {
                Access::Read => "reads",
                Access::Write => "writes",
                Access::Atomic => "atomically changes",
            };
            let unit = if bytes == 1 { "byte" } else { "bytes" };
            write!(f, ": {verb} {bytes} {unit} at ")?;
            match space {
                Space::Shared => write!(f, "offset {address} in shared memory")?,
                Space::Local => write!(f, "offset {address} in local memory")?,
                Space::Param => write!(f, "offset {address} in the parameters")?,
                _ => write!(f, "{address:#x}")?,
            }
        }
        match &self.cuda_line {
            Some(CudaLine { file, line }) => write!(f, " ({file}:{line})"),
            None => write!(f, " (PTX line {})", self.ptx_line),
        }
    }
}

/// What went wrong.
#[derive(Clone, Debug)]
pub enum FaultKind {
    /// Global memory could not be accessed for the given reason.
    BadAddress(BadAddress),
    /// An access past the end of the block's shared memory.
    SharedOutOfBounds {
        /// The size of the block's shared memory in bytes, static and dynamic.
        size: u64,
    },
    /// An access past the end of the thread's local memory or the parameters.
    LocalOutOfBounds {
        /// The number of bytes that it has.
        size: u64,
    },
    /// The address is not a multiple of the alignment that the access needs.
    Misaligned {
        /// The alignment needed, in bytes.
        needed: u32,
    },
    /// The kernel executed `trap`.
    Trap,
    /// A failed `assert`.
    Assert(Box<Assertion>),
    /// Threads are waiting at a barrier that other threads of the block can no longer reach.
    DivergentBarrier {
        /// The number of waiting threads.
        waiting: u32,
        /// The number of threads that the barrier waits for.
        expected: u32,
        /// The number of threads that have ended.
        ended: u32,
    },
    /// Lanes of a warp are waiting for other lanes in the member mask that can no longer arrive.
    DivergentWarp {
        /// The mask.
        members: u32,
        /// The lanes in the mask that are present.
        present: u32,
    },
    /// The kernel executed more instructions than the launch allows.
    Endless {
        /// The number of instructions allowed.
        limit: u64,
        /// Whether the limit applies to one thread; otherwise, it applies to all threads together.
        of_thread: bool,
    },
    /// Every running block is repeating itself, and none of them writes anything that another block could be waiting
    /// for.
    WaitsForever {
        /// The number of waiting blocks.
        waiting: u64,
        /// The number of blocks that would start once one of these ends.
        unstarted: u64,
    },
    /// The active calls need more space than the thread's stack provides.
    StackOverflow {
        /// The stack's size in bytes.
        size: u64,
        /// The number of calls that have not returned.
        depth: u64,
    },
    /// A thread tests an mbarrier object again and again, and no thread can complete the phase that it waits for.
    IncompletePhase {
        /// The number of arrivals so far.
        arrived: u32,
        /// The number of arrivals that complete the phase.
        expected: u32,
        /// The number of expected transactions that are not complete.
        transactions: i64,
    },
    /// Threads are waiting at the barrier of their cluster, which others can no longer reach.
    ClusterBarrier {
        /// The number of waiting threads.
        arrived: u32,
        /// The number of threads that the barrier waits for.
        expected: u32,
        /// Where a thread is that has not arrived.
        missing: Box<ThreadReport>,
    },
    /// `free` of something that the kernel can't free.
    BadFree {
        /// What was freed.
        address: u64,
        /// Why it can't be freed.
        why: Box<BadFree>,
    },
    /// An operation that has no defined result, and why.
    Undefined(&'static str),
    /// An access outside of a surface.
    OutsideSurface(Box<OutsideSurface>),
    /// A barrier number that no GPU supports.
    NoSuchBarrier {
        /// The number.
        id: u32,
    },
}

/// An access outside of a surface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideSurface {
    /// How it was accessed.
    pub access: Access,
    /// The number of bytes.
    pub bytes: u32,
    /// The first byte in a row, the row, and the plane or layer.
    pub at: [i64; 3],
    /// The number of bytes in a row, of rows, and of planes or layers.
    pub extent: [u64; 3],
}

impl fmt::Display for OutsideSurface {
    /// Writes, for example, `reads 4 bytes at byte 64 of row 2: the surface has 16 rows of 64 bytes`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.access == Access::Read { "reads" } else { "writes" };
        let unit = if self.bytes == 1 { "byte" } else { "bytes" };
        let ([x, y, z], [width, rows, planes]) = (self.at, self.extent);
        write!(f, "{verb} {} {unit} at byte {x} of row {y}", self.bytes)?;
        if planes > 1 || z != 0 {
            return write!(
                f,
                " of plane {z}: the surface has {planes} planes of {rows} rows of {width} bytes"
            );
        }
        match rows {
            1 => write!(f, ": the surface has 1 row of {width} bytes"),
            _ => write!(f, ": the surface has {rows} rows of {width} bytes"),
        }
    }
}

/// An assertion that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assertion {
    /// The expression, as written in the source.
    pub message: String,
    /// The source file, under the name that was passed to the compiler.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The function.
    pub function: String,
    /// The `threadIdx` of each thread for which it failed at the same time.
    pub threads: Vec<[u32; 3]>,
}

/// Why a kernel can't continue. It is boxed, because it is large and rare.
pub(crate) type Stop = Box<Fault>;

/// Why a kernel was stopped.
#[derive(Debug)]
pub struct Fault {
    /// What went wrong.
    pub kind: FaultKind,
    /// Where it happened, and in which thread (the first, if it happened to several).
    pub at: ThreadReport,
    /// The `printf` output up to this point.
    pub printed: Printed,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.at)?;
        match &self.kind {
            FaultKind::BadAddress(BadAddress::OutOfBounds { size, offset, .. }) => {
                let bytes = self.at.access.map_or(0, |access| i64::from(access.bytes));
                let size = *size as i64;
                match offset {
                    ..0 => write!(f, ", {} bytes before a {size}-byte allocation", -offset),
                    _ if *offset == size => write!(f, ", just past the end of a {size}-byte allocation"),
                    _ if *offset >= size => {
                        write!(f, ", {} bytes past the end of a {size}-byte allocation", offset - size)
                    }
                    _ => write!(
                        f,
                        ", which ends {} bytes past the end of a {size}-byte allocation",
                        offset + bytes - size
                    ),
                }
            }
            FaultKind::BadAddress(BadAddress::Freed { freed, offset }) => {
                write!(f, ", byte {offset} of a {}-byte allocation that has been freed", freed.size)
            }
            FaultKind::BadAddress(BadAddress::Unallocated { size, offset, .. }) => {
                write!(f, ", byte {offset} of {size} bytes that a graph has not allocated yet")
            }
            FaultKind::BadAddress(BadAddress::OfKernels { offset, .. }) => {
                write!(f, ", byte {offset} of memory that kernels have allocated")
            }
            FaultKind::BadAddress(BadAddress::Unknown) => {
                f.write_str(", where nothing has ever been allocated")
            }
            FaultKind::BadFree { address, why } => {
                write!(f, ": frees {address:#x}, ")?;
                match &**why {
                    BadFree::BadAddress(BadAddress::Freed { offset: 0, .. }) => {
                        f.write_str("which has been freed already")
                    }
                    BadFree::NotInHeap { .. } => f.write_str("which `malloc` in this context did not return"),
                    BadFree::BadAddress(_) => f.write_str("where no allocation starts"),
                }
            }
            FaultKind::SharedOutOfBounds { size } => write!(f, ", but the block has only {size} bytes"),
            FaultKind::LocalOutOfBounds { size } => write!(f, ", but there are only {size} bytes"),
            FaultKind::Misaligned { needed } => write!(f, ", which is not a multiple of {needed}"),
            FaultKind::Trap => f.write_str(": trap"),
            FaultKind::Assert(assertion) => write!(f, ": assertion `{}` failed", assertion.message),
            FaultKind::DivergentBarrier { waiting, expected, ended } => write!(
                f,
                ": {waiting} of {expected} threads are waiting at a barrier that the others will never reach ({ended} have ended)"
            ),
            FaultKind::DivergentWarp { members, present } => write!(
                f,
                ": only lanes {present:#010x} of {members:#010x} have arrived, and the others no longer can"
            ),
            FaultKind::Endless { limit, of_thread } => {
                let whose = if *of_thread { "in this thread" } else { "across all threads" };
                write!(f, ": still running after {limit} instructions {whose}")
            }
            FaultKind::WaitsForever { waiting, unstarted } => {
                let wait = if *waiting == 1 { "this block repeats" } else { "all running blocks repeat" };
                write!(f, ": {wait} the same instructions, and nothing can change anymore")?;
                match unstarted {
                    0 => Ok(()),
                    _ => write!(
                        f,
                        " ({waiting} blocks are running, {unstarted} are waiting for one of them to end)"
                    ),
                }
            }
            FaultKind::StackOverflow { size, depth } => {
                write!(
                    f,
                    ": {depth} calls have not returned, and another call does not fit in the {size}-byte stack"
                )
            }
            FaultKind::IncompletePhase { arrived, expected, transactions } => {
                write!(
                    f,
                    ": waits for an mbarrier whose phase can no longer complete: {arrived} of {expected} arrivals"
                )?;
                match transactions {
                    0 => Ok(()),
                    _ => write!(f, ", and {transactions} transactions are pending"),
                }
            }
            FaultKind::ClusterBarrier { arrived, expected, missing } => write!(
                f,
                ": {arrived} of {expected} threads have arrived at the cluster's barrier; a thread that never arrives: {missing}"
            ),
            FaultKind::Undefined(why) => write!(f, ": {why}"),
            FaultKind::OutsideSurface(outside) => write!(f, ": {outside}"),
            FaultKind::NoSuchBarrier { id } => write!(f, ": barrier {id}; a block has 0 to 15"),
        }
    }
}

impl std::error::Error for Fault {}
