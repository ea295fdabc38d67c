//! NCCL: communicators, groups and collectives over the engine's streams.

mod assembly;
mod call;
mod capture;
mod collective;
mod communicator;
mod config;
mod deadlock;
mod exchange;
mod group;
mod launch;
pub mod log;
mod operation;
mod reduce;
mod run;
mod scale;
mod transfer;

use std::collections::{BTreeMap, HashMap};

pub use assembly::{Deliver, NO_COLOR};
pub use call::Request;
pub use communicator::{CommHandle, UniqueId};
pub use config::CommConfig;
pub use operation::{Buffers, Collective, Operation};
pub use reduce::{DataType, Operator};
pub use scale::Scale;
pub use transfer::{Direction, Transfer};

pub(crate) use assembly::Awaiting;
pub(crate) use call::{CallKey, Missing};
pub(crate) use capture::CapturedCalls;
pub(crate) use communicator::given_up;
pub(crate) use deadlock::deadlock_report;
pub(crate) use group::Group;
pub(crate) use run::Job;

/// NCCL version that is reported, as `ncclGetVersion` encodes it: 2.30.7.
pub const VERSION: i32 = 23_007;

/// NCCL's share of the engine's state.
#[derive(Default)]
pub(crate) struct Nccl {
    meetings: HashMap<UniqueId, communicator::Meeting>,
    communicators: HashMap<CommHandle, communicator::Communicator>,
    cliques: BTreeMap<u64, communicator::Clique>,
    made: u64,
}
