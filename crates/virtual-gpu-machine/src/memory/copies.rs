//! A block's pending asynchronous copies to shared memory.

use virtual_gpu_ptx::instruction::{AtomicOp, AtomicType};

/// The group of the pieces of a bulk copy, which no thread commits.
pub(crate) const BULK: u64 = u64::MAX >> 1;

/// A pending copy. Its source was read when the copy began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) thread: usize,
    /// The rank of the thread's block in the cluster.
    pub(crate) rank: usize,
    /// Its number among the block's copies.
    pub(crate) number: u64,
    /// The program counter of the instruction that began it.
    pub(crate) pc: usize,
    /// The number of the copy's group among the thread's groups.
    pub(crate) group: u64,
    /// The offset of the first byte in shared memory.
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) bytes: [u8; 16],
    /// How the bytes are combined with those in memory; without, they replace them.
    pub(crate) reduction: Option<(AtomicOp, AtomicType)>,
}

/// A block's copies.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// The pending copies, in the order in which they began.
    pub(crate) under_way: Vec<Copy>,
    /// The number of copies begun so far.
    pub(crate) begun: u64,
    /// The number of groups that each thread has committed.
    pub(crate) committed: Vec<u64>,
}

impl Copies {
    /// Clears the copies at the start of a block.
    pub(crate) fn start(&mut self, threads: usize) {
        self.under_way.clear();
        self.committed.clear();
        self.committed.resize(threads, 0);
    }
}
