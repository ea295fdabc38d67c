//! Clusters: blocks that access each other's shared memory.

use super::memory::{AtomicOp, AtomicType};
use super::register::{Address, Value};

/// `barrier.cluster`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterBarrier {
    /// `.arrive`
    Arrive {
        /// Whether it is a release.
        releases: bool,
    },
    /// `.wait`, which is an acquire.
    Wait,
}

/// `st.async` and `red.async`: store to the shared memory of a block of the cluster. Each byte stored completes one
/// transaction of an mbarrier object there.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreAsync {
    /// The address of the first element.
    pub address: Address,
    /// An element's size in bytes.
    pub bytes: u8,
    /// One value per element.
    pub values: Box<[Value]>,
    /// The mbarrier object.
    pub mbarrier: Address,
    /// How `red.async` combines the value with the one in memory.
    pub reduction: Option<(AtomicOp, AtomicType)>,
}
