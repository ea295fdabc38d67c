//! What makes threads wait for each other.

use crate::mask::Mask;

/// An event that makes some threads wait for others.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// The threads in `to` have waited for the threads in `from`.
    Barrier { from: Mask, to: Mask },
    /// In each warp, these lanes have waited for each other.
    Warps(Mask),
    /// In each warp, these lanes have exchanged values (`shfl`, `vote`, `match`, `redux`, `elect`). Each of them now knows
    /// what another of them knew about other warps. No access of theirs is ordered, except atomic ones: an atomic access
    /// is done when its lane goes on.
    Exchange(Mask),
    /// The threads have arrived at this phase.
    Arrival(Mask, Phase),
    /// The threads have arrived at this phase with `.relaxed`: only what came before a fence of theirs is ordered.
    RelaxedArrival(Mask, Phase),
    /// The threads have waited for this phase.
    Wait(Mask, Phase),
    /// These threads have passed a fence. Threads that pass a fence later may see what these threads did before theirs, also
    /// those of other blocks if the fence is for more than the threads of a block.
    Fence(Mask, bool),
}

/// A phase of an mbarrier object, or of a cluster's barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Of an object in the shared memory of the block with this rank in its cluster; phases of a block's objects have
    /// different numbers.
    Object(usize, u32),
    /// Of the cluster's barrier.
    Cluster(u32),
}
