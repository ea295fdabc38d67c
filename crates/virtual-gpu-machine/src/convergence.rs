//! How a block's threads converge: convergence groups, and barriers that some threads have reached.

use crate::mask::Mask;

/// Threads at the same instruction, which execute it together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ConvergenceGroup {
    pub(crate) pc: usize,
    pub(crate) mask: Mask,
    pub(crate) state: Readiness,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Ready,
    /// The group has used up its turn and will run again after the other groups' turns.
    Yielded,
    /// The group is waiting for other lanes of its warp.
    Waiting,
    /// The group is waiting for threads of all blocks of its cluster.
    WaitingForCluster,
}

/// What the running group does after an instruction.
pub(crate) enum Next {
    /// It executes the following instruction.
    Follow,
    /// All threads of the group jump there.
    Jump(usize),
    /// The threads in the mask jump there, and the others continue.
    Split(usize, Mask),
    /// The threads in the mask leave the group.
    Leave(Mask),
    /// It executes the following instruction, which other groups may have reached.
    Regroup,
    /// It executes the same instruction again, together with the threads waiting there.
    Join,
}

impl Next {
    /// Returns what happens after the threads in `taken` branch to `target`.
    pub(crate) fn branch(target: usize, group: &ConvergenceGroup, taken: &Mask) -> Self {
        if *taken == group.mask {
            Self::Jump(target)
        } else if taken.is_empty() {
            Self::Follow
        } else {
            Self::Split(target, *taken)
        }
    }
}

/// A barrier that some threads have reached.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PendingBarrier {
    pub(crate) id: u32,
    pub(crate) arrived: u32,
    pub(crate) expected: u32,
    /// Whether the barrier is for all threads of the block. If so, it does not wait for threads that have ended.
    pub(crate) for_all: bool,
    /// The number of threads for which the predicate of `bar.red` was true.
    pub(crate) yes: u32,
    /// All threads that have arrived.
    pub(crate) from: Mask,
    /// Each instruction where threads are waiting for the barrier, and those threads.
    pub(crate) waiting: Vec<(usize, Mask)>,
}
