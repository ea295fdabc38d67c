//! When, where, and by which thread memory was accessed.

use crate::fault::Access;
use virtual_gpu_ptx::instruction::Scope;

/// An access by a thread of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) launch: u32,
    /// The number of the block in its launch.
    pub(crate) block: u32,
    /// The number of the block's cluster in its launch.
    pub(crate) cluster: u32,
    pub(crate) thread: u16,
    /// The GPU that the thread runs on.
    pub(crate) gpu: u16,
    /// The number of barriers of the whole block before the access.
    pub(crate) barriers: u32,
    /// The number of the thread's releases before the access.
    pub(crate) releases: u32,
    /// The instruction.
    pub(crate) pc: u32,
    pub(crate) access: Access,
    /// The scope of a strong access.
    pub(crate) scope: Option<Scope>,
}

impl Stamp {
    pub(crate) fn block(&self) -> (u32, u32) {
        (self.launch, self.block)
    }

    pub(crate) fn is_by_thread_of(&self, other: &Self) -> bool {
        (self.block(), self.thread) == (other.block(), other.thread)
    }

    /// Returns the smallest scope that contains both threads.
    pub(crate) fn scope_with(&self, other: &Self) -> Scope {
        if self.block() == other.block() {
            Scope::Block
        } else if (self.launch, self.cluster) == (other.launch, other.cluster) {
            Scope::Cluster
        } else if self.gpu == other.gpu {
            Scope::Gpu
        } else {
            Scope::System
        }
    }

    /// Returns whether both accesses are strong and the scope of each includes the other's thread. The PTX manual calls
    /// such accesses *morally strong*.
    pub(crate) fn is_strong_with(&self, other: &Self) -> bool {
        let needed = self.scope_with(other);
        [self, other].iter().all(|stamp| stamp.scope.is_some_and(|scope| scope >= needed))
    }
}
