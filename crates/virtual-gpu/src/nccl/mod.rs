//! NCCL: communicators, groups and collectives over the engine's streams.

mod assembly;
mod call;
mod capture;
mod collective;
mod communicator;
mod config;
mod deadlock;
mod event;
mod exchange;
mod group;
mod id;
mod launch;
mod link;
pub mod log;
mod meeting;
mod operation;
mod reduce;
mod run;
mod scale;
mod session;
mod transfer;
mod wire;

use std::collections::{BTreeMap, HashMap, HashSet};

use virtual_gpu_core::source_location::Site;

pub use assembly::{Deliver, NO_COLOR};
pub use call::Request;
pub use communicator::CommHandle;
pub use config::CommConfig;
pub use id::UniqueId;
pub use link::Interface;
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
pub(crate) use link::Listeners;
pub(crate) use run::Job;

/// NCCL version that is reported, as `ncclGetVersion` encodes it: 2.30.7.
pub const VERSION: i32 = 23_007;

/// NCCL's share of the engine's state.
#[derive(Default)]
pub(crate) struct Nccl {
    /// Ids that this process made, and so listens for.
    hosted: HashSet<UniqueId>,
    meetings: HashMap<UniqueId, meeting::Meeting>,
    /// Ids that have made their communicator, and where its rank 0 came.
    spent: HashMap<UniqueId, Site>,
    communicators: HashMap<CommHandle, communicator::Communicator>,
    cliques: BTreeMap<u64, communicator::Clique>,
    made: u64,
    sessions: BTreeMap<u64, session::Session>,
    made_sessions: u64,
    /// The process ends: what others do matters no more.
    is_leaving: bool,
    /// Sessions whose first communicator is not made yet.
    gathering: HashMap<UniqueId, u64>,
    foreign: event::Foreign,
}
