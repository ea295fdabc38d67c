//! `mbarrier`: barriers that are objects in shared memory.

use super::memory::Space;
use super::register::{Address, Predicate, Slot, Value};

/// An operation on an mbarrier object.
#[derive(Clone, Debug, PartialEq)]
pub struct Mbarrier {
    /// What it does.
    pub op: MbarrierOp,
    /// Shared or generic.
    pub space: Space,
    /// The object's address.
    pub address: Address,
}

/// What an instruction does to an mbarrier object.
#[derive(Clone, Debug, PartialEq)]
pub enum MbarrierOp {
    /// `mbarrier.init`
    Init {
        /// The number of arrivals that complete a phase.
        count: Slot,
    },
    /// `mbarrier.inval`
    Invalidate,
    /// `mbarrier.arrive` and `mbarrier.arrive_drop`
    Arrive {
        /// Receives the current phase in its upper half, and the number of pending arrivals in its lower half.
        state: Option<Slot>,
        /// The number of arrivals.
        count: Slot,
        /// `.expect_tx`: the number of transactions to expect.
        transactions: Option<Slot>,
        /// Whether later phases expect `count` arrivals less.
        drops: bool,
        /// Whether it may complete the phase.
        completes: bool,
        /// Whether it is a release.
        releases: bool,
    },
    /// `mbarrier.expect_tx`
    Expect {
        /// The number of transactions.
        transactions: Slot,
    },
    /// `mbarrier.complete_tx`
    Complete {
        /// The number of transactions.
        transactions: Slot,
    },
    /// `mbarrier.test_wait` and `mbarrier.try_wait`
    Test {
        /// Whether the phase is complete.
        d: Predicate,
        /// The state that an arrival returned (64 bits), or the phase's parity (32 bits).
        phase: Value,
        /// Whether it is an acquire if the phase is complete.
        acquires: bool,
    },
    /// `cp.async.mbarrier.arrive`
    ArriveAfterCopies {
        /// Whether the phase waits for one more arrival than before.
        increments: bool,
    },
}
