//! Asynchronous copies to shared memory that are under way in a block.

/// A copy under way. Its source was read when it began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) thread: usize,
    /// The instruction.
    pub(crate) pc: usize,
    /// The number of its group among the thread's.
    pub(crate) group: u64,
    /// The first byte in shared memory.
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) bytes: [u8; 16],
}

/// A block's copies.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// In the order in which they began.
    pub(crate) under_way: Vec<Copy>,
    /// Groups that each thread has committed.
    pub(crate) committed: Vec<u64>,
}

impl Copies {
    /// Begins a block.
    pub(crate) fn start(&mut self, threads: usize) {
        self.under_way.clear();
        self.committed.clear();
        self.committed.resize(threads, 0);
    }
}
