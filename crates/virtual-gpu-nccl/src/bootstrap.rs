//! Bootstraps: how ranks that were given the same id find each other, in one process or in several.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use super::bootstrap_failure::{disagreement_about_size, shared_gpu};
use super::communicator::{Process, RankState, check_choice};
use super::config::CommConfig;
use super::id::UniqueId;
use super::internal::vanished;
use super::membership::{Gathering, Membership};
use super::session::{FIRST_TAG, Link, ProcessNumber, SessionId};
use super::wire::structure;
use super::{Locked, Nccl};
use virtual_gpu::engine::Awaiting;
use virtual_gpu::report::Report;
use virtual_gpu_core::handle::{CommHandle, Rank};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};
use virtual_gpu_core::thread::ThreadKey;

/// A bootstrap: the ranks that have joined with the same id, kept until all of them have joined.
pub(crate) struct Bootstrap {
    pub(crate) world_size: usize,
    pub(crate) members: BTreeMap<Rank, Member>,
    pub(crate) failed: Option<Error<NcclStatus>>,
    pub(crate) since: Instant,
}

/// A rank that has joined a bootstrap.
pub(crate) struct Member {
    pub(crate) location: RankLocation,
    pub(crate) config: CommConfig,
    /// The GPU's number in the rank's process.
    pub(crate) device: usize,
    pub(crate) gpu: Gpu,
    pub(crate) call_site: CallSite,
}

/// Where a rank runs: in this process or in another.
#[derive(Clone, Copy)]
pub(crate) enum RankLocation {
    Here { handle: CommHandle, thread: ThreadKey },
    Elsewhere(Process),
}

/// A GPU, identified across machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Gpu {
    pub(crate) machine: u64,
    pub(crate) index: usize,
}

structure! { Gpu { machine, index } }

/// Returns a key for this machine. Like NCCL, distinguishes machines by `NCCL_HOSTID` or, if it is not set, by host
/// name and boot ID.
fn machine() -> u64 {
    static KEY: OnceLock<u64> = OnceLock::new();
    *KEY.get_or_init(|| {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        match std::env::var("NCCL_HOSTID") {
            Ok(id) if !id.is_empty() => id.hash(&mut hasher),
            _ => {
                read("/proc/sys/kernel/hostname").hash(&mut hasher);
                read("/proc/sys/kernel/random/boot_id").hash(&mut hasher);
            }
        }
        hasher.finish()
    })
}

impl Nccl {
    /// Implements `ncclCommInitRank`, which returns once all ranks have joined. Inside a group, the call returns
    /// immediately, and the end of the group waits instead; the handle can't be used before then. A nonblocking
    /// communicator can't be used until [`Self::async_error`] has reported that it is ready.
    /// # Errors
    /// Returns `InvalidArgument` if a number is out of range or the ranks disagree about the world size, `InvalidUsage`
    /// if two ranks have the same number or the same GPU, `RemoteError` if a process can't be reached or ends, and
    /// `Timeout` if a rank does not join.
    pub fn init_rank(
        &'static self,
        world_size: i32,
        id: UniqueId,
        rank: i32,
        config: CommConfig,
    ) -> NcclResult<CommHandle> {
        let device = self.engine.current_device()?;
        self.join_ranks("ncclCommInitRank", world_size, id, rank, device, config)
    }

    /// Like [`Self::init_rank`], for a given GPU; `function` is what the caller has called.
    pub(crate) fn join_ranks(
        &'static self,
        function: &'static str,
        world_size: i32,
        id: UniqueId,
        rank: i32,
        device: usize,
        config: CommConfig,
    ) -> NcclResult<CommHandle> {
        let bad = |message: String| Error::new(NcclStatus::InvalidArgument, message);
        let size = usize::try_from(world_size).ok().filter(|&size| size > 0);
        let size =
            size.ok_or_else(|| bad(format!("a communicator of {world_size} ranks: at least 1 is needed")))?;
        let rank = Rank::checked(rank, size)
            .ok_or_else(|| bad(format!("rank {rank} of {size}: ranks go from 0 to {}", size - 1)))?;
        check_choice()?;
        let session = self.session_for(id, rank)?;

        let mut guard = self.lock();
        let mut state = guard.locked();
        let handle = CommHandle(state.engine.new_handle());
        let location = RankLocation::Here { handle, thread: state.engine.current_thread() };
        let gpu = Gpu { machine: machine(), index: self.engine.physical(device) };
        let member = Member { location, config, device, gpu, call_site: CallSite::here() };
        match session {
            None => state.join(id, size, rank, member)?,
            Some(session) => state.nccl.join_elsewhere(session, size, rank, member),
        }
        let awaiting = Awaiting::Communicator(handle);
        if let Some(group) = state.nccl.open_group() {
            group.joining.push(awaiting);
        } else if config.blocking {
            let guard = self.create_slowly(guard);
            self.finish_joining(vec![awaiting], function, guard)?;
        } else {
            self.unlock_and_wake(guard);
        }
        Ok(handle)
    }

    /// Returns the session for an id that another process created, or `None` if this process is the root.
    fn session_for(&'static self, id: UniqueId, rank: Rank) -> NcclResult<Option<SessionId>> {
        // One thread connects; the others use its connection.
        static CONNECTING: Mutex<()> = Mutex::new(());
        if id.is_of_address() && rank == Rank(0) {
            self.listen_as_root(id)?;
        }
        let is_here = || id.is_own() || self.lock().nccl.own_ids.contains(&id);
        if is_here() {
            return Ok(None);
        }
        let _one = CONNECTING.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.lock().nccl.gathering.get(&id).copied();
        match known.map_or_else(|| self.connect(id), Ok) {
            Err(_) if is_here() => Ok(None),
            session => session.map(Some),
        }
    }
}

impl Locked<'_> {
    /// Adds a rank to a bootstrap; the last rank creates the communicator.
    ///
    /// # Errors
    /// Returns `InternalError` if the session for the id's ranks is gone.
    pub(crate) fn join(
        &mut self,
        id: UniqueId,
        world_size: usize,
        rank: Rank,
        member: Member,
    ) -> NcclResult<()> {
        if let Some(first) = self.nccl.spent.get(&id) {
            let report = Report::new("this id has already been used to create a communicator")
                .at("ncclCommInitRank", first)
                .at(format!("again: ncclCommInitRank{}", in_process(member.location)), &member.call_site)
                .help("an id is for one communicator: give each communicator its own id");
            report.print();
            let error = Error::new(NcclStatus::InvalidUsage, report.to_string());
            self.nccl.refuse(id, vec![member.location], &error);
            return Ok(());
        }
        let bootstrap = self.nccl.bootstraps.entry(id).or_insert_with(|| Bootstrap {
            world_size,
            members: BTreeMap::new(),
            failed: None,
            since: Instant::now(),
        });
        if let Some(error) = bootstrap.failed.clone() {
            self.nccl.refuse(id, vec![member.location], &error);
            return Ok(());
        }
        let (size, location) = (bootstrap.world_size, member.location);
        if size != world_size {
            let report = disagreement_about_size(bootstrap, world_size, rank, &member);
            self.nccl.fail_bootstrap(id, NcclStatus::InvalidArgument, &report, Some(location));
            return Ok(());
        }
        if let Some(first) = bootstrap.members.get(&rank).filter(|_| rank.0 < size) {
            let report = Report::new(format!("two ranks of one communicator are both rank {rank}"))
                .at(format!("ncclCommInitRank{}", in_process(first.location)), &first.call_site)
                .at(format!("ncclCommInitRank{}", in_process(location)), &member.call_site)
                .help(format!(
                    "give each of the {world_size} ranks its own number, 0 to {}; if these ranks belong to two communicators, \
                     give each communicator its own id",
                    world_size - 1
                ));
            self.nccl.fail_bootstrap(id, NcclStatus::InvalidUsage, &report, Some(location));
            return Ok(());
        }
        if let RankLocation::Here { handle, .. } = location {
            let joining = Membership::Joining(Gathering::Id(id), member.config);
            self.nccl.memberships.insert(handle, joining);
        }
        bootstrap.members.insert(rank, member);
        if bootstrap.members.len() == world_size {
            self.complete_bootstrap(id)?;
        }
        Ok(())
    }

    fn complete_bootstrap(&mut self, id: UniqueId) -> NcclResult<()> {
        let gone = || vanished("a bootstrap");
        let bootstrap = self.nccl.bootstraps.get(&id).ok_or_else(gone)?;
        if let Some(report) = shared_gpu(bootstrap) {
            self.nccl.fail_bootstrap(id, NcclStatus::InvalidUsage, &report, None);
            return Ok(());
        }
        let bootstrap = self.nccl.bootstraps.remove(&id).ok_or_else(gone)?;
        let processes: BTreeSet<ProcessNumber> =
            bootstrap.members.values().filter_map(|member| Some(member.location.process()?.number)).collect();
        let session = if processes.is_empty() { None } else { self.nccl.gathering.remove(&id) };
        let link = match session {
            Some(session) => {
                self.nccl.send_tables(session, &processes, &bootstrap)?;
                Some(Link { session, tag: FIRST_TAG, others: processes.into_iter().collect() })
            }
            None => None,
        };
        let call_site =
            bootstrap.members.values().next().map_or_else(CallSite::unknown, |first| first.call_site.clone());
        // An id from NCCL_COMM_ID is an address, so every communicator uses the same id.
        if !id.is_of_address() {
            self.nccl.spent.insert(id, call_site.clone());
        }
        let handles = bootstrap.members.values().map(|member| member.location.handle()).collect();
        let ranks = bootstrap.members.into_values().map(Member::into_state).collect();
        self.add_communicator("ncclCommInitRank", ranks, &handles, call_site, link)
    }
}

impl RankLocation {
    pub(crate) fn handle(self) -> Option<CommHandle> {
        match self {
            Self::Here { handle, .. } => Some(handle),
            Self::Elsewhere(_) => None,
        }
    }

    pub(crate) fn process(self) -> Option<Process> {
        match self {
            Self::Here { .. } => None,
            Self::Elsewhere(process) => Some(process),
        }
    }
}

impl Member {
    pub(crate) fn into_state(self) -> RankState {
        match self.location {
            RankLocation::Here { thread, .. } => {
                let mut state = RankState::new(self.device, thread, self.config);
                // The program must query a nonblocking communicator before using it.
                state.polls = u32::from(!self.config.blocking);
                state
            }
            RankLocation::Elsewhere(process) => RankState::elsewhere(process, self.device, self.config),
        }
    }
}

pub(crate) fn in_process(location: RankLocation) -> String {
    location.process().map_or_else(String::new, |process| format!(" in process {}", process.pid))
}
