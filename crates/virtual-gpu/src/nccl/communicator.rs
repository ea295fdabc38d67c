//! Communicators: how ranks meet, and how they part.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use super::call::{Missing, Request};
use super::collective::Call;
use super::exchange::Traffic;
use crate::config::Checks;
use crate::engine::Engine;
use crate::engine::{Failure, OpRef, State, Wait};
use crate::report::{Report, ranks};
use crate::site::Site;
use crate::status::{CudaStatus, Error, NcclResult, NcclStatus};
use crate::thread::ThreadKey;

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
}

struct Member {
    handle: CommHandle,
    device: usize,
    thread: ThreadKey,
    site: Site,
}

/// What a communicator handle stands for.
pub(super) enum Communicator {
    /// Its rank waits for the others.
    Joining(UniqueId),
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

/// All ranks of one communicator.
pub(super) struct Clique {
    pub(super) ranks: Vec<Rank>,
    /// Calls that are not done, by number from 1.
    pub(super) calls: BTreeMap<u64, Call>,
    /// Sends and receives that are not done.
    pub(super) traffic: Traffic,
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
    /// Groups of sends and receives that it has launched.
    pub(super) exchanges: u64,
    /// The last of them, with its operation in the stream.
    pub(super) last: Option<LastCall>,
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
    fn new(device: usize, owner: ThreadKey) -> Self {
        Self { device, owner, issued: 0, exchanges: 0, last: None, left: None }
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

impl Engine {
    /// `ncclGetUniqueId`.
    pub fn nccl_unique_id(&self) -> UniqueId {
        UniqueId::new()
    }

    /// `ncclCommInitAll`: a communicator with a rank on each of `devices`, all driven by the calling thread.
    pub fn nccl_init_all(&self, devices: &[i32]) -> NcclResult<Vec<CommHandle>> {
        let mut gpus = Vec::new();
        for &device in devices {
            let gpu =
                self.check_device(device).map_err(|e| Error::new(NcclStatus::InvalidArgument, e.message))?;
            if gpus.contains(&gpu) {
                let message = format!("GPU {gpu} is in the list twice: each rank needs a GPU of its own");
                return Err(Error::new(NcclStatus::InvalidUsage, message));
            }
            gpus.push(gpu);
        }
        let mut state = self.state();
        let thread = state.current_thread();
        let handles: Vec<_> = gpus.iter().map(|_| CommHandle(state.new_handle())).collect();
        let ranks = gpus.into_iter().map(|gpu| Rank::new(gpu, thread)).collect();
        state.add_clique(ranks, &handles, Site::here());
        Ok(handles)
    }

    /// `ncclCommInitRank`: returns once all ranks have come. Inside a group, the group's end waits instead, and
    /// the handle is not usable before.
    pub fn nccl_init_rank(&self, world_size: i32, id: UniqueId, rank: i32) -> NcclResult<CommHandle> {
        let bad = |message: String| Error::new(NcclStatus::InvalidArgument, message);
        let size = usize::try_from(world_size).ok().filter(|&size| size > 0);
        let size =
            size.ok_or_else(|| bad(format!("a communicator of {world_size} ranks: at least 1 is needed")))?;
        let number = usize::try_from(rank).ok().filter(|&rank| rank < size);
        let number =
            number.ok_or_else(|| bad(format!("rank {rank} of {size}: ranks go from 0 to {}", size - 1)))?;
        let device = self.current_device()?;

        let mut state = self.state();
        let handle = CommHandle(state.new_handle());
        let member = Member { handle, device, thread: state.current_thread(), site: Site::here() };
        state.join(id, size, number, member);
        if state.thread().group.is_open() {
            state.thread().group.joining.push(handle);
            return Ok(handle);
        }
        self.finish_joining(vec![handle], state)?;
        Ok(handle)
    }

    /// Blocks until communicators are made, or can't be.
    pub(super) fn finish_joining(
        &self,
        handles: Vec<CommHandle>,
        state: std::sync::MutexGuard<'_, State>,
    ) -> NcclResult<()> {
        let mut state = self.block_on(Wait::Communicators(handles.clone()), "ncclCommInitRank", state);
        let mut result = Ok(());
        for handle in handles {
            if let Some(Communicator::Failed(error)) = state.nccl.communicators.get(&handle) {
                result = result.and(Err(error.clone()));
                state.nccl.communicators.remove(&handle);
            }
        }
        drop(state);
        // Others wait for the same ranks.
        self.wake_all();
        result
    }

    /// `ncclCommCount`, `ncclCommUserRank` and `ncclCommCuDevice`: world size, rank and GPU.
    pub fn nccl_identity(&self, comm: CommHandle) -> NcclResult<(usize, usize, usize)> {
        let state = self.state();
        let (clique, rank) = state.nccl.member(comm)?;
        let ranks = &state.nccl.cliques[&clique].ranks;
        Ok((ranks.len(), rank, ranks[rank].device))
    }

    /// `ncclCommGetAsyncError`: what went wrong in the background, if anything did.
    pub fn nccl_async_error(&self, comm: CommHandle) -> NcclResult<Option<Error<NcclStatus>>> {
        let state = self.state();
        let (clique, _) = state.nccl.member(comm)?;
        Ok(state.nccl.cliques[&clique].failed.clone())
    }

    /// `ncclCommAbort`: ends the rank's part in the communicator and in whatever is under way. Always succeeds.
    pub fn nccl_abort(&self, comm: CommHandle) {
        let mut state = self.state();
        if let Ok((clique, rank)) = state.nccl.member(comm) {
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
        let (clique, rank) = state.nccl.member(comm)?;
        state.leave(comm, clique, rank, "has destroyed its communicator");
        drop(state);
        self.wake_all();
        Ok(())
    }
}

impl super::Nccl {
    /// Whether a communicator that is being made is ready or has failed.
    pub(crate) fn is_settled(&self, handle: CommHandle) -> bool {
        !matches!(self.communicators.get(&handle), Some(Communicator::Joining(_)))
    }

    /// The clique and rank of a usable communicator.
    pub(super) fn member(&self, comm: CommHandle) -> NcclResult<(u64, usize)> {
        let message = match self.communicators.get(&comm) {
            Some(&Communicator::Member { clique, rank }) => return Ok((clique, rank)),
            Some(Communicator::Joining(_)) => {
                "the communicator is not ready before its group ends".to_owned()
            }
            Some(Communicator::Failed(error)) => return Err(error.clone()),
            None if comm.0 == 0 => "the communicator is NULL".to_owned(),
            None => format!("{:#x} is not a communicator, or no longer one", comm.0),
        };
        Err(Error::new(NcclStatus::InvalidArgument, message))
    }
}

impl State {
    fn add_clique(&mut self, ranks: Vec<Rank>, handles: &[CommHandle], site: Site) {
        self.nccl.made += 1;
        let clique = self.nccl.made;
        for (rank, &handle) in handles.iter().enumerate() {
            self.nccl.communicators.insert(handle, Communicator::Member { clique, rank });
        }
        let (calls, traffic) = (BTreeMap::new(), Traffic::default());
        self.nccl.cliques.insert(clique, Clique { ranks, calls, traffic, failed: None, site });
    }

    /// One rank comes to a meeting; the last one makes the communicator.
    fn join(&mut self, id: UniqueId, world_size: usize, rank: usize, member: Member) {
        let handle = member.handle;
        let meeting = self.nccl.meetings.entry(id).or_insert_with(|| Meeting {
            world_size,
            members: BTreeMap::new(),
            failed: None,
        });
        if let Some(error) = &meeting.failed {
            self.nccl.communicators.insert(handle, Communicator::Failed(error.clone()));
            return;
        }
        self.nccl.communicators.insert(handle, Communicator::Joining(id));
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
        for (&rank, member) in &meeting.members {
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
        let ranks =
            meeting.members.into_values().map(|member| Rank::new(member.device, member.thread)).collect();
        self.add_clique(ranks, &handles, site);
    }

    /// Ends a meeting: everyone who has come or will come gets the same error.
    fn fail_meeting(&mut self, id: UniqueId, status: NcclStatus, report: &Report, also: Option<CommHandle>) {
        let report: Arc<str> = report.to_string().into();
        eprintln!("{report}");
        let error = Error::new(status, report);
        let Some(meeting) = self.nccl.meetings.get_mut(&id) else { return };
        meeting.failed = Some(error.clone());
        let handles: Vec<_> = meeting.members.values().map(|member| member.handle).chain(also).collect();
        for handle in handles {
            self.nccl.communicators.insert(handle, Communicator::Failed(error.clone()));
        }
    }

    /// Ends the meetings of communicators whose other ranks have not come for too long.
    pub(crate) fn give_up_joining(&mut self, handles: &[CommHandle], given_up: &str) {
        let ids: Vec<UniqueId> = handles
            .iter()
            .filter_map(|handle| match self.nccl.communicators.get(handle) {
                Some(Communicator::Joining(id)) => Some(*id),
                _ => None,
            })
            .collect();
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

    /// Takes communicators that a failed group was making out of their meetings; the other ranks get the same error.
    pub(super) fn leave_meetings(&mut self, handles: &[CommHandle], error: &Error<NcclStatus>) {
        for handle in handles {
            let Some(Communicator::Joining(id)) = self.nccl.communicators.remove(handle) else { continue };
            let Some(meeting) = self.nccl.meetings.get_mut(&id) else { continue };
            meeting.failed = Some(error.clone());
            let others = std::mem::take(&mut meeting.members).into_values().map(|member| member.handle);
            for other in others.filter(|other| !handles.contains(other)) {
                self.nccl.communicators.insert(other, Communicator::Failed(error.clone()));
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
