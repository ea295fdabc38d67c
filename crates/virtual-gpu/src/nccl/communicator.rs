//! Communicators: how ranks meet, and how they part.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use super::assembly::{Assembly, AssemblyKey, Awaiting};
use super::call::{Missing, Request};
use super::collective::Call;
use super::config::CommConfig;
use super::exchange::Traffic;
use super::log;
use super::scale::Scales;
use crate::config::Checks;
use crate::engine::Engine;
use crate::engine::{Failure, OpRef, State, Wait};
use crate::report::{Report, ranks};
use crate::site::Site;
use crate::status::{CudaStatus, Error, NcclResult, NcclStatus};
use crate::thread::ThreadKey;
use crate::time::choice::Enabled;

/// An `ncclComm_t`: one rank's end of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommHandle(pub u64);

/// The first bytes of every id made here; the last two are the form's version.
const MAGIC: [u8; 8] = *b"vgpuid01";

/// An `ncclUniqueId`: what the ranks of one communicator have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; 128]);

impl UniqueId {
    fn new() -> Self {
        let mut bytes = [0; 128];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        // Each `RandomState` has keys of its own.
        for word in bytes[16..48].chunks_exact_mut(8) {
            word.copy_from_slice(&RandomState::new().build_hasher().finish().to_le_bytes());
        }
        Self(bytes)
    }

    /// Takes an id as it came from the caller.
    ///
    /// # Errors
    /// `InvalidArgument` where `ncclGetUniqueId` never made such an id, `InvalidUsage` where another process did.
    pub fn from_bytes(bytes: [u8; 128]) -> NcclResult<Self> {
        if bytes[..8] != MAGIC {
            let message = "these 128 bytes are no id of ncclGetUniqueId: pass on the whole id, unchanged";
            return Err(Error::new(NcclStatus::InvalidArgument, message));
        }
        let maker = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        if maker != std::process::id() {
            let message = format!(
                "virtual GPU: ranks in several processes are not supported (the id was made in process {maker})"
            );
            return Err(Error::new(NcclStatus::InvalidUsage, message));
        }
        Ok(Self(bytes))
    }

    /// The id's bytes, as C code keeps them.
    pub fn bytes(&self) -> &[u8; 128] {
        &self.0
    }
}

/// Ranks that have come with the same id, until all are there.
pub(super) struct Meeting {
    world_size: usize,
    members: BTreeMap<usize, Member>,
    failed: Option<Error<NcclStatus>>,
    since: Instant,
}

struct Member {
    handle: CommHandle,
    config: CommConfig,
    device: usize,
    thread: ThreadKey,
    site: Site,
}

/// What a communicator handle stands for.
pub(super) enum Communicator {
    /// Its rank waits for the others.
    Joining(Gathering, CommConfig),
    /// It could not be made.
    Failed(Error<NcclStatus>),
    /// Its rank can communicate.
    Member {
        /// Key of the clique.
        clique: u64,
        /// Number of the rank in it.
        rank: usize,
    },
}

/// Where the ranks of a communicator that is being made come together.
#[derive(Clone, Copy)]
pub(super) enum Gathering {
    /// At an id.
    Id(UniqueId),
    /// In a split of another communicator.
    Assembly(AssemblyKey),
}

/// All ranks of one communicator.
pub(super) struct Clique {
    pub(super) ranks: Vec<Rank>,
    /// Calls that are not done, by number from 1.
    pub(super) calls: BTreeMap<u64, Call>,
    /// Sends and receives that are not done.
    pub(super) traffic: Traffic,
    /// Splits and the like to which not all ranks have come, by number from 1.
    pub(super) assemblies: BTreeMap<u64, Assembly>,
    /// What went wrong in the background.
    pub(super) failed: Option<Error<NcclStatus>>,
    /// Where rank 0's end was made.
    pub(super) site: Site,
}

pub(super) struct Rank {
    pub(super) device: usize,
    /// The thread that last used it: who will make its next call.
    pub(super) owner: ThreadKey,
    /// Collective calls that it has made.
    pub(super) issued: u64,
    /// Collectives, and groups of sends and receives, of which it has captured graphs.
    pub(super) captured: u64,
    /// Groups of sends and receives that it has launched.
    pub(super) exchanges: u64,
    /// Its last call that moves data, with its operation in the stream.
    pub(super) last: Option<LastCall>,
    /// Assemblies that it has come to.
    pub(super) assemblies: u64,
    pub(super) config: CommConfig,
    /// Reduction operators that it has made.
    pub(super) scales: Scales,
    pub(super) finalized: bool,
    /// Where it is not blocking: how often it has still to say that it is in progress, and the assembly that it is in.
    pub(super) polls: u32,
    pub(super) awaits: Option<u64>,
    /// How and where it left.
    pub(super) left: Option<(&'static str, Site)>,
}

/// A rank's last call.
pub(super) struct LastCall {
    pub(super) request: Request,
    pub(super) op: OpRef,
    pub(super) site: Site,
}

impl Rank {
    pub(super) fn new(device: usize, owner: ThreadKey, config: CommConfig) -> Self {
        Self {
            device,
            owner,
            issued: 0,
            captured: 0,
            exchanges: 0,
            last: None,
            assemblies: 0,
            config,
            scales: Scales::default(),
            finalized: false,
            polls: 0,
            awaits: None,
            left: None,
        }
    }

    /// Why it has not made a call.
    pub(super) fn absence(&self) -> Missing {
        match self.left {
            Some(_) => Missing::Gone,
            None => Missing::NotCalled(self.owner),
        }
    }
}

impl Clique {
    /// Remembers what went wrong in the background; the first failure stays.
    pub(super) fn note_failure(&mut self, failure: &Failure) {
        self.failed.get_or_insert_with(|| Error::new(NcclStatus::InvalidUsage, failure.report.clone()));
    }
}

/// Refuses what `NCCL_ALGO` and `NCCL_PROTO` say that NCCL does not know, as it does when a communicator is made.
fn check_choice() -> NcclResult<()> {
    Enabled::from_env().map(drop).map_err(|message| Error::new(NcclStatus::InvalidUsage, message))
}

impl Engine {
    /// `ncclGetUniqueId`.
    pub fn nccl_unique_id(&self) -> UniqueId {
        UniqueId::new()
    }

    /// `ncclCommInitAll`: a communicator with a rank on each of `devices`, all driven by the calling thread.
    pub fn nccl_init_all(&self, devices: &[i32]) -> NcclResult<Vec<CommHandle>> {
        check_choice()?;
        let mut gpus = Vec::new();
        for &device in devices {
            let gpu =
                self.check_device(device).map_err(|e| Error::new(NcclStatus::InvalidArgument, e.message))?;
            if gpus.contains(&gpu) && !ranks_share_gpus() {
                let message = format!(
                    "GPU {gpu} is in the list twice: each rank needs a GPU of its own (or NCCL_MULTI_RANK_GPU_ENABLE=1)"
                );
                return Err(Error::new(NcclStatus::InvalidUsage, message));
            }
            gpus.push(gpu);
        }
        let mut state = self.state();
        let thread = state.current_thread();
        let handles: Vec<_> = gpus.iter().map(|_| CommHandle(state.new_handle())).collect();
        let ranks = gpus.into_iter().map(|gpu| Rank::new(gpu, thread, CommConfig::default())).collect();
        state.add_clique("ncclCommInitAll", ranks, &handles, Site::here());
        Ok(handles)
    }

    /// `ncclCommInitRank`: returns once all ranks have come. Inside a group, the group's end waits instead, and
    /// the handle is not usable before. One that is not blocking is not usable before it says so.
    pub fn nccl_init_rank(
        &self,
        world_size: i32,
        id: UniqueId,
        rank: i32,
        config: CommConfig,
    ) -> NcclResult<CommHandle> {
        let bad = |message: String| Error::new(NcclStatus::InvalidArgument, message);
        let size = usize::try_from(world_size).ok().filter(|&size| size > 0);
        let size =
            size.ok_or_else(|| bad(format!("a communicator of {world_size} ranks: at least 1 is needed")))?;
        let number = usize::try_from(rank).ok().filter(|&rank| rank < size);
        let number =
            number.ok_or_else(|| bad(format!("rank {rank} of {size}: ranks go from 0 to {}", size - 1)))?;
        let device = self.current_device()?;
        check_choice()?;

        let mut state = self.state();
        let handle = CommHandle(state.new_handle());
        let member = Member { handle, config, device, thread: state.current_thread(), site: Site::here() };
        state.join(id, size, number, member);
        let awaiting = Awaiting::Communicator(handle);
        if state.thread().group.is_open() {
            state.thread().group.joining.push(awaiting);
        } else if config.blocking {
            self.finish_joining(vec![awaiting], "ncclCommInitRank", state)?;
        } else {
            drop(state);
            self.wake_all();
        }
        Ok(handle)
    }

    /// Blocks until communicators are made, or can't be; the same for assemblies.
    pub(super) fn finish_joining(
        &self,
        awaiting: Vec<Awaiting>,
        caller: &'static str,
        state: std::sync::MutexGuard<'_, State>,
    ) -> NcclResult<()> {
        // Others wait for the same ranks.
        self.wake_all();
        let mut state = self.block_on(Wait::Nccl(awaiting.clone()), caller, state);
        let mut result = Ok(());
        for awaiting in awaiting {
            let failed = match awaiting {
                Awaiting::Communicator(handle) => match state.nccl.communicators.get(&handle) {
                    Some(Communicator::Failed(error)) => {
                        let error = error.clone();
                        state.nccl.communicators.remove(&handle);
                        Some(error)
                    }
                    _ => None,
                },
                Awaiting::Assembly { clique, number } => state.nccl.assembly_failure((clique, number)),
            };
            result = result.and(failed.map_or(Ok(()), Err));
        }
        drop(state);
        self.wake_all();
        result
    }

    /// `ncclCommCount`, `ncclCommUserRank` and `ncclCommCuDevice`: world size, rank and GPU.
    pub fn nccl_identity(&self, comm: CommHandle) -> NcclResult<(usize, usize, usize)> {
        let state = self.state();
        let (clique, rank) = state.nccl.ready_member(comm)?;
        let ranks = &state.nccl.cliques[&clique].ranks;
        Ok((ranks.len(), rank, ranks[rank].device))
    }

    /// `ncclCommGetAsyncError`: `None` where all is well, `InProgress` while a communicator that is not blocking can't be
    /// used, or what went wrong in the background.
    ///
    /// A call on such a communicator is in progress until this has said so once, so that a program that does not ask in a
    /// loop is found out on every run.
    pub fn nccl_async_error(&self, comm: CommHandle) -> NcclResult<Option<Error<NcclStatus>>> {
        let in_progress = Ok(Some(NcclStatus::InProgress.into()));
        let mut state = self.run_ready(self.state());
        match state.nccl.communicators.get(&comm) {
            Some(Communicator::Joining(..)) => {
                state.poll_joining(comm, self.config().patience);
                return in_progress;
            }
            Some(Communicator::Failed(error)) => return Ok(Some(error.clone())),
            _ => {}
        }
        let (clique, rank) = state.nccl.member(comm)?;
        let awaited = state.nccl.cliques[&clique].ranks[rank].awaits;
        if let Some(number) = awaited {
            if !state.nccl.is_held((clique, number)) {
                return in_progress;
            }
            if let Some(error) = state.nccl.assembly_failure((clique, number)) {
                return Ok(Some(error));
            }
        }
        let Some(entry) = state.nccl.cliques.get_mut(&clique) else { return Ok(None) };
        entry.ranks[rank].awaits = None;
        if entry.ranks[rank].polls > 0 {
            entry.ranks[rank].polls -= 1;
            return in_progress;
        }
        Ok(entry.failed.clone())
    }

    /// `ncclCommAbort`: ends the rank's part in the communicator and in whatever is under way. Always succeeds.
    pub fn nccl_abort(&self, comm: CommHandle) {
        let mut state = self.state();
        if let Some(Communicator::Joining(..)) = state.nccl.communicators.get(&comm) {
            let message = "a rank aborted the communicator while it was being made";
            let error = Error::new(NcclStatus::RemoteError, message);
            state.leave_meetings(&[Awaiting::Communicator(comm)], &error);
        }
        if let Ok((clique, rank)) = state.nccl.member(comm) {
            log::ended("Abort", &state, comm, clique, rank);
            if let Some((op, report)) = state.aborted_in_flight(clique, rank)
                && self.config().checks != Checks::Off
            {
                let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
                if self.config().checks == Checks::Error {
                    state.fail_stream(op.stream, &failure);
                }
            }
            state.cancel_calls(clique, rank);
            state.cancel_exchanges(clique, rank);
            state.leave(comm, clique, rank, "has aborted its communicator");
        }
        drop(self.run_ready(state));
        self.wake_all();
    }

    /// `ncclCommDestroy`: what the rank has enqueued is still done.
    pub fn nccl_destroy(&self, comm: CommHandle) -> NcclResult<()> {
        let mut state = self.state();
        let (clique, rank) = state.nccl.unfinished_member(comm)?;
        log::ended("Destroy", &state, comm, clique, rank);
        state.leave(comm, clique, rank, "has destroyed its communicator");
        drop(state);
        self.wake_all();
        Ok(())
    }
}

impl super::Nccl {
    /// Whether a communicator that is being made is ready or has failed.
    pub(crate) fn is_settled(&self, awaiting: Awaiting) -> bool {
        match awaiting {
            Awaiting::Communicator(handle) => {
                !matches!(self.communicators.get(&handle), Some(Communicator::Joining(..)))
            }
            Awaiting::Assembly { clique, number } => self.is_held((clique, number)),
        }
    }

    /// As [`Self::member`], of a communicator that nothing is in progress on.
    fn unfinished_member(&self, comm: CommHandle) -> NcclResult<(u64, usize)> {
        let (clique, rank) = self.member(comm)?;
        let entry = &self.cliques[&clique].ranks[rank];
        if entry.polls > 0 || entry.awaits.is_some() {
            let message =
                "the communicator is in progress (blocking = 0): call ncclCommGetAsyncError until it is not";
            return Err(Error::new(NcclStatus::InvalidArgument, message));
        }
        Ok((clique, rank))
    }

    /// As [`Self::member`], of a communicator that can be used now.
    pub(super) fn ready_member(&self, comm: CommHandle) -> NcclResult<(u64, usize)> {
        let (clique, rank) = self.unfinished_member(comm)?;
        match self.cliques[&clique].ranks[rank].finalized {
            true => Err(Error::new(NcclStatus::InvalidArgument, "the communicator has been finalized")),
            false => Ok((clique, rank)),
        }
    }

    /// The clique and rank of a usable communicator.
    pub(super) fn member(&self, comm: CommHandle) -> NcclResult<(u64, usize)> {
        let message = match self.communicators.get(&comm) {
            Some(&Communicator::Member { clique, rank }) => return Ok((clique, rank)),
            Some(Communicator::Joining(_, CommConfig { blocking: true })) => {
                "the communicator is not ready before its group ends".to_owned()
            }
            Some(Communicator::Joining(..)) => {
                "the communicator is in progress (blocking = 0): call ncclCommGetAsyncError until it is not"
                    .to_owned()
            }
            Some(Communicator::Failed(error)) => return Err(error.clone()),
            None if comm.0 == 0 => "the communicator is NULL".to_owned(),
            None => format!("{:#x} is not a communicator, or no longer one", comm.0),
        };
        Err(Error::new(NcclStatus::InvalidArgument, message))
    }
}

impl State {
    /// Makes a communicator of ranks that have come together; `function` is the call that they wait in.
    pub(super) fn add_clique(
        &mut self,
        function: &str,
        ranks: Vec<Rank>,
        handles: &[CommHandle],
        site: Site,
    ) {
        self.nccl.made += 1;
        let clique = self.nccl.made;
        for (rank, &handle) in handles.iter().enumerate() {
            self.nccl.communicators.insert(handle, Communicator::Member { clique, rank });
        }
        let (calls, traffic, assemblies) = (BTreeMap::new(), Traffic::default(), BTreeMap::new());
        let entry = Clique { ranks, calls, traffic, assemblies, failed: None, site };
        log::made(function, clique, &entry, handles);
        self.nccl.cliques.insert(clique, entry);
    }

    /// One rank comes to a meeting; the last one makes the communicator.
    fn join(&mut self, id: UniqueId, world_size: usize, rank: usize, member: Member) {
        let (handle, config) = (member.handle, member.config);
        let meeting = self.nccl.meetings.entry(id).or_insert_with(|| Meeting {
            world_size,
            members: BTreeMap::new(),
            failed: None,
            since: Instant::now(),
        });
        if let Some(error) = &meeting.failed {
            self.nccl.communicators.insert(handle, Communicator::Failed(error.clone()));
            return;
        }
        self.nccl.communicators.insert(handle, Communicator::Joining(Gathering::Id(id), config));
        if meeting.world_size != world_size {
            let report = disagreement_about_size(meeting, world_size, rank, &member);
            self.fail_meeting(id, NcclStatus::InvalidArgument, &report, Some(handle));
            return;
        }
        if let Some(first) = meeting.members.get(&rank) {
            let report = Report::new(format!("two ranks of one communicator are both rank {rank}"))
                .at("ncclCommInitRank", &first.site)
                .at("ncclCommInitRank", &member.site)
                .help(format!(
                    "give each of the {world_size} ranks a number of its own, 0 to {}",
                    world_size - 1
                ));
            self.fail_meeting(id, NcclStatus::InvalidUsage, &report, Some(handle));
            return;
        }
        meeting.members.insert(rank, member);
        if meeting.members.len() == world_size {
            self.complete_meeting(id);
        }
    }

    fn complete_meeting(&mut self, id: UniqueId) {
        let Some(meeting) = self.nccl.meetings.get(&id) else { return };
        let mut seen = BTreeMap::new();
        for (&rank, member) in meeting.members.iter().filter(|_| !ranks_share_gpus()) {
            let Some((first, site)) = seen.insert(member.device, (rank, member.site.clone())) else {
                continue;
            };
            let gpu = member.device;
            let report = Report::new(format!("ranks {first} and {rank} are both on GPU {gpu}"))
                .at(format!("rank {first}: ncclCommInitRank with GPU {gpu} current"), &site)
                .at(format!("rank {rank}: ncclCommInitRank with GPU {gpu} current"), &member.site)
                .help("bind each rank's own context first: stream.context().bind_to_thread()?");
            self.fail_meeting(id, NcclStatus::InvalidUsage, &report, None);
            return;
        }
        let Some(meeting) = self.nccl.meetings.remove(&id) else { return };
        let handles: Vec<_> = meeting.members.values().map(|member| member.handle).collect();
        let site = meeting.members[&0].site.clone();
        let members = meeting.members.into_values();
        let ranks = members.map(|member| Rank::new(member.device, member.thread, member.config)).collect();
        self.add_clique("ncclCommInitRank", ranks, &handles, site);
    }

    /// Ends a meeting: everyone who has come or will come gets the same error.
    fn fail_meeting(&mut self, id: UniqueId, status: NcclStatus, report: &Report, also: Option<CommHandle>) {
        report.print();
        let error = Error::new(status, report.to_string());
        let Some(meeting) = self.nccl.meetings.get_mut(&id) else { return };
        meeting.failed = Some(error.clone());
        let handles: Vec<_> = meeting.members.values().map(|member| member.handle).chain(also).collect();
        for handle in handles {
            self.nccl.communicators.insert(handle, Communicator::Failed(error.clone()));
        }
    }

    /// Ends what others have not come to for too long: meetings of communicators, and assemblies.
    pub(crate) fn give_up_joining(&mut self, awaited: &[Awaiting], given_up: &str) {
        let mut ids = Vec::new();
        for awaiting in awaited {
            match *awaiting {
                Awaiting::Communicator(handle) => match self.nccl.communicators.get(&handle) {
                    Some(Communicator::Joining(Gathering::Id(id), _)) => ids.push(*id),
                    Some(&Communicator::Joining(Gathering::Assembly(key), _)) => {
                        self.give_up_assembly(key, given_up);
                    }
                    _ => {}
                },
                Awaiting::Assembly { clique, number } if !self.nccl.is_settled(*awaiting) => {
                    self.give_up_assembly((clique, number), given_up);
                }
                Awaiting::Assembly { .. } => {}
            }
        }
        for id in ids {
            let Some(meeting) = self.nccl.meetings.get(&id) else { continue };
            let missing: Vec<usize> =
                (0..meeting.world_size).filter(|rank| !meeting.members.contains_key(rank)).collect();
            let mut report = Report::new(format!(
                "{} of {} never came to the communicator",
                ranks(&missing),
                meeting.world_size
            ));
            for (rank, member) in &meeting.members {
                report = report.at(format!("rank {rank} waits in ncclCommInitRank"), &member.site);
            }
            let others = self.nccl.meetings.len() - 1;
            let report = report.fact(given_up).help(match others {
                0 => "every rank must call ncclCommInitRank with the same id, each in its own thread or in one group",
                _ => "ranks came with different ids: make the id once, and give the same one to every rank",
            });
            self.fail_meeting(id, NcclStatus::Timeout, &report, None);
        }
    }

    /// A thread asks for a communicator that is being made, and has done so for too long.
    fn poll_joining(&mut self, comm: CommHandle, patience: Duration) {
        if let Some(Communicator::Joining(Gathering::Id(id), _)) = self.nccl.communicators.get(&comm)
            && self.nccl.meetings.get(id).is_some_and(|meeting| meeting.since.elapsed() > patience)
        {
            self.give_up_joining(&[Awaiting::Communicator(comm)], &given_up(patience));
        }
    }

    /// Takes a thread that gives up out of what it was joining; the other ranks get the same error.
    pub(super) fn leave_meetings(&mut self, joining: &[Awaiting], error: &Error<NcclStatus>) {
        for awaiting in joining {
            let handle = match *awaiting {
                Awaiting::Communicator(handle) => handle,
                Awaiting::Assembly { clique, number } => {
                    let failure = Failure { status: CudaStatus::LaunchFailed, report: error.message.clone() };
                    self.fail_assembly((clique, number), error.status, &failure);
                    continue;
                }
            };
            let Some(Communicator::Joining(Gathering::Id(id), _)) = self.nccl.communicators.remove(&handle)
            else {
                continue;
            };
            let Some(meeting) = self.nccl.meetings.get_mut(&id) else { continue };
            meeting.failed = Some(error.clone());
            for member in std::mem::take(&mut meeting.members).into_values() {
                if self.nccl.communicators.contains_key(&member.handle) {
                    self.nccl.communicators.insert(member.handle, Communicator::Failed(error.clone()));
                }
            }
        }
    }

    /// Takes a rank's end of a communicator away.
    fn leave(&mut self, comm: CommHandle, clique: u64, rank: usize, how: &'static str) {
        self.nccl.communicators.remove(&comm);
        let Some(entry) = self.nccl.cliques.get_mut(&clique) else { return };
        entry.ranks[rank].left = Some((how, Site::here()));
        if entry.ranks.iter().all(|rank| rank.left.is_some())
            && entry.calls.is_empty()
            && entry.traffic.is_empty()
        {
            self.nccl.cliques.remove(&clique);
        }
    }

    /// A rank that aborts before its thread has seen its last call done: whether the call still works is a matter of luck.
    fn aborted_in_flight(&mut self, clique: u64, rank: usize) -> Option<(OpRef, Report)> {
        let thread = self.current_thread();
        let view = self.order.view_of(thread);
        let entry = self.nccl.cliques.get(&clique).filter(|clique| clique.failed.is_none())?;
        let LastCall { request, op, site } = entry.ranks[rank].last.as_ref()?;
        let context = self.streams.get(&op.stream)?.context;
        if view.own.covers(op.stream, op.number) || self.failure_of(context).is_some() {
            return None;
        }
        let report =
            Report::new(format!("rank {rank} aborts its communicator while a collective may be in flight"))
                .at(request.to_string(), site)
                .at("ncclCommAbort (dropping a Comm calls it)", &Site::here())
                .help("wait for the communicator's stream first: comm.stream().synchronize()?");
        Some((*op, report))
    }

    /// Takes a rank's part out of every call that is not running yet.
    fn cancel_calls(&mut self, clique: u64, rank: usize) {
        let Some(entry) = self.nccl.cliques.get_mut(&clique) else { return };
        let mut arrived = Vec::new();
        for call in entry.calls.values_mut().filter(|call| !call.running) {
            if let Some(part) = call.parts[rank].as_mut() {
                part.cancelled = true;
                arrived.extend(part.arrived.then_some(part.op.stream));
            }
        }
        for stream in arrived {
            self.finish(stream);
        }
    }
}

/// Whether ranks of one communicator may share a GPU. As NCCL reads its switches: when a communicator is made, and what is
/// no number counts as not set.
fn ranks_share_gpus() -> bool {
    let value = std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").ok();
    value.and_then(|value| value.trim().parse::<i64>().ok()).is_some_and(|value| value != 0)
}

/// Why a wait that can't be decided has ended.
pub(crate) fn given_up(patience: Duration) -> String {
    format!("(not proved: given up after {} s, VIRTUAL_GPU_PATIENCE)", patience.as_secs_f64())
}

fn disagreement_about_size(meeting: &Meeting, world_size: usize, rank: usize, member: &Member) -> Report {
    let mut sides: BTreeSet<(usize, usize)> =
        meeting.members.keys().map(|&rank| (rank, meeting.world_size)).collect();
    sides.insert((rank, world_size));
    let mut report = Report::new("ranks with the same id disagree about the world size");
    for (rank, size) in sides {
        let site = match meeting.members.get(&rank) {
            Some(known) if size == meeting.world_size => &known.site,
            _ => &member.site,
        };
        report = report.at(format!("rank {rank} of {size}: ncclCommInitRank"), site);
    }
    report.help("every rank must give the same number of ranks")
}

/// How an engine's CUDA error comes out of an NCCL call.
impl From<Error<CudaStatus>> for Error<NcclStatus> {
    fn from(error: Error<CudaStatus>) -> Self {
        let message = match error.message.is_empty() {
            true => format!("{} ({})", error.status.c_name(), error.status.meaning()).into(),
            false => error.message,
        };
        Self { status: NcclStatus::UnhandledCudaError, message }
    }
}
