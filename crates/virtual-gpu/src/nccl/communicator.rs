//! Communicators: how ranks meet, and how they part.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::assembly::{Assembly, AssemblyKey, Awaiting};
use super::call::{Missing, Request};
use super::collective::Call;
use super::config::CommConfig;
use super::event::Event;
use super::exchange::Traffic;
use super::id::UniqueId;
use super::log;
use super::operation::Operation;
use super::scale::Scales;
use super::session::{Control, HOST, Link};
use crate::config::Checks;
use crate::engine::Engine;
use crate::engine::{Failure, OpRef, State, Wait};
use crate::report::Report;
use crate::time::choice::Enabled;
use virtual_gpu_core::source_location::Site;
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};
use virtual_gpu_core::sync::MutexGuard;
use virtual_gpu_core::thread::ThreadKey;

/// An `ncclComm_t`: one rank's end of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommHandle(pub u64);

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
    /// At an id that this process made.
    Id(UniqueId),
    /// At an id that another one made, in this session.
    Guest(u64),
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
    /// Where the ranks of other processes are reached.
    pub(super) link: Option<Link>,
}

/// Another process of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    /// Its number there.
    pub(super) number: u16,
    /// Its number as the system counts it.
    pub(super) pid: u32,
}

pub(super) struct Rank {
    /// The process that it is in, if that is another.
    pub(super) process: Option<Process>,
    pub(super) device: usize,
    /// The thread that last used it: who will make its next call, unless it is handed on.
    pub(super) owner: ThreadKey,
    /// The thread that made it, and whether a call was made for it since.
    maker: ThreadKey,
    is_used: bool,
    /// A rank of its communicator was used by another thread than its maker.
    is_handed_on: bool,
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
    /// Its last collective of no elements, with the number of the next that counts.
    pub(super) dropped: Option<(u64, Operation, Site)>,
    /// How its GPU has failed, once a thread was told.
    pub(super) gpu_failure: Option<String>,
    /// How and where it left.
    pub(super) left: Option<(Cow<'static, str>, Site)>,
}

/// A rank's last call.
pub(super) struct LastCall {
    pub(super) request: Request,
    pub(super) op: OpRef,
    pub(super) site: Site,
    /// Its thread was told by a query that it isn't done: who aborts it now knows what it breaks off.
    pub(super) told_not_yet: bool,
}

impl Rank {
    pub(super) fn new(device: usize, owner: ThreadKey, config: CommConfig) -> Self {
        Self {
            process: None,
            device,
            owner,
            maker: owner,
            is_used: false,
            is_handed_on: false,
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
            dropped: None,
            gpu_failure: None,
            left: None,
        }
    }

    /// A rank of another process.
    pub(super) fn elsewhere(process: Process, device: usize, config: CommConfig) -> Self {
        Self { process: Some(process), ..Self::new(device, ThreadKey::ELSEWHERE, config) }
    }

    /// Whether this thread, and no other, makes its calls.
    pub(super) fn is_driven_by(&self, thread: ThreadKey) -> bool {
        self.owner == thread && !self.is_handed_on && self.left.is_none()
    }

    /// Why it has not made a call.
    pub(super) fn absence(&self) -> Missing {
        match self.left {
            Some(_) => Missing::Gone,
            None if self.is_handed_on => Missing::Handed { thread: self.owner, has_used: self.is_used },
            None => Missing::NotCalled(self.owner),
        }
    }
}

impl Clique {
    /// Whether no process of another rank has ended.
    pub(super) fn check_all_there(&self) -> NcclResult<()> {
        match &self.failed {
            Some(error) if error.status == NcclStatus::RemoteError => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// A thread calls for a rank.
    pub(super) fn used_by(&mut self, rank: usize, thread: ThreadKey) {
        let own = &mut self.ranks[rank];
        (own.owner, own.is_used) = (thread, true);
        if own.maker != thread {
            self.ranks.iter_mut().for_each(|rank| rank.is_handed_on = true);
        }
    }

    /// Remembers what went wrong in the background; the first failure stays.
    pub(super) fn note_failure(&mut self, failure: &Failure) {
        self.failed.get_or_insert_with(|| Error::new(NcclStatus::InvalidUsage, failure.report.clone()));
    }
}

/// Refuses what `NCCL_ALGO` and `NCCL_PROTO` say that NCCL does not know, as it does when a communicator is made.
pub(super) fn check_choice() -> NcclResult<()> {
    Enabled::from_env().map(drop).map_err(|message| Error::new(NcclStatus::InvalidUsage, message))
}

impl Engine {
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
        let handles: Vec<_> = gpus.iter().map(|_| Some(CommHandle(state.new_handle()))).collect();
        let ranks = gpus.into_iter().map(|gpu| Rank::new(gpu, thread, CommConfig::default())).collect();
        state.add_clique("ncclCommInitAll", ranks, &handles, Site::here(), None);
        Ok(handles.into_iter().flatten().collect())
    }

    /// Blocks until communicators are made, or can't be; the same for assemblies.
    pub(super) fn finish_joining(
        &self,
        awaiting: Vec<Awaiting>,
        caller: &'static str,
        state: MutexGuard<'_, State>,
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
                state.poll_joining(comm);
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
            state.leave(comm, clique, rank, true);
        }
        drop(self.run_ready(state));
        self.wake_all();
    }

    /// `ncclCommDestroy`: what the rank has enqueued is still done.
    pub fn nccl_destroy(&self, comm: CommHandle) -> NcclResult<()> {
        let mut state = self.state();
        let (clique, rank) = state.nccl.unfinished_member(comm)?;
        log::ended("Destroy", &state, comm, clique, rank);
        state.leave(comm, clique, rank, false);
        drop(state);
        self.wake_all();
        Ok(())
    }
}

impl super::Nccl {
    /// The threads that drive ranks, of communicators that are there.
    pub(crate) fn owners(&self) -> HashSet<ThreadKey> {
        self.cliques.values().flat_map(|clique| clique.ranks.iter().map(|rank| rank.owner)).collect()
    }

    /// A thread was told that a GPU has failed. Of what comes of it, the first failure is the cause.
    pub(crate) fn note_gpu_failure(&mut self, device: usize, failure: &Failure) {
        let ranks = self.cliques.values_mut().flat_map(|clique| &mut clique.ranks);
        for rank in ranks.filter(|rank| rank.process.is_none() && rank.device == device) {
            rank.gpu_failure.get_or_insert_with(|| failure.headline().to_owned());
        }
    }

    /// A query has told a thread that an operation isn't done: nor, for all it knows, the last call of a rank in front of it.
    pub(crate) fn told_not_yet(&mut self, thread: ThreadKey, op: OpRef) {
        let ranks = self.cliques.values_mut().flat_map(|clique| &mut clique.ranks);
        for rank in ranks.filter(|rank| rank.owner == thread) {
            if let Some(last) = &mut rank.last
                && last.op.stream == op.stream
                && last.op.number <= op.number
            {
                last.told_not_yet = true;
            }
        }
    }

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
        let entry = &self.cliques[&clique];
        match entry.ranks[rank].finalized {
            true => Err(Error::new(NcclStatus::InvalidArgument, "the communicator has been finalized")),
            false => entry.check_all_there().map(|()| (clique, rank)),
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
    /// Makes a communicator of ranks that have come together; `function` is the call that they wait in. A rank of another
    /// process has no handle here.
    pub(super) fn add_clique(
        &mut self,
        function: &str,
        ranks: Vec<Rank>,
        handles: &[Option<CommHandle>],
        site: Site,
        link: Option<Link>,
    ) {
        self.nccl.made += 1;
        let clique = self.nccl.made;
        for (rank, &handle) in handles.iter().enumerate() {
            if let Some(handle) = handle {
                self.nccl.communicators.insert(handle, Communicator::Member { clique, rank });
            }
        }
        let (calls, traffic, assemblies) = (BTreeMap::new(), Traffic::default(), BTreeMap::new());
        let entry = Clique { ranks, calls, traffic, assemblies, failed: None, site, link: link.clone() };
        log::made(function, clique, &entry, handles);
        self.nccl.cliques.insert(clique, entry);
        if let Some(Link { session, tag, .. }) = link {
            if let Some(entry) = self.nccl.sessions.get_mut(&session) {
                entry.cliques.insert(tag, clique);
            }
            self.take_in_early(session, tag, clique);
        }
    }

    /// Ends what others have not come to for too long: meetings of communicators, and assemblies. `false` where the answer
    /// of another process has still to come.
    pub(crate) fn give_up_joining(&mut self, awaited: &[Awaiting]) -> bool {
        let mut ended = false;
        for awaiting in awaited {
            match *awaiting {
                Awaiting::Communicator(handle) => match self.nccl.communicators.get(&handle) {
                    Some(&Communicator::Joining(Gathering::Id(id), _)) => {
                        self.give_up_meeting(id);
                        ended = true;
                    }
                    Some(&Communicator::Joining(Gathering::Guest(session), _)) => {
                        ended |= self.give_up_guests(session);
                    }
                    Some(&Communicator::Joining(Gathering::Assembly(key), _)) => {
                        self.give_up_assembly(key);
                        ended = true;
                    }
                    _ => {}
                },
                Awaiting::Assembly { clique, number } if !self.nccl.is_settled(*awaiting) => {
                    self.give_up_assembly((clique, number));
                    ended = true;
                }
                Awaiting::Assembly { .. } => {}
            }
        }
        ended
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
            match self.nccl.communicators.remove(&handle) {
                Some(Communicator::Joining(Gathering::Id(id), _)) => self.leave_meeting(id, error),
                Some(Communicator::Joining(Gathering::Guest(number), _)) => {
                    if let Some(session) = self.nccl.session(number) {
                        let (status, report) = (error.status, error.message.to_string());
                        session.tell(HOST, &Control::Withdraw { status, report });
                    }
                }
                _ => {}
            }
        }
    }

    /// Takes a rank's end of a communicator away.
    fn leave(&mut self, comm: CommHandle, clique: u64, rank: usize, aborts: bool) {
        self.nccl.communicators.remove(&comm);
        let site = Site::here();
        let entry = self.nccl.cliques.get(&clique);
        let gpu_failure = entry.and_then(|entry| entry.ranks[rank].gpu_failure.clone());
        self.publish(clique, &Event::Leaves { rank, aborts, gpu_failure, site: site.clone() });
        let Some(entry) = self.nccl.cliques.get_mut(&clique) else { return };
        entry.ranks[rank].left = Some((departure(aborts).into(), site));
        self.forget_clique_if_over(clique);
    }

    /// Forgets a clique whose ranks here have all left, once nothing of it is under way.
    pub(super) fn forget_clique_if_over(&mut self, clique: u64) {
        let Some(entry) = self.nccl.cliques.get(&clique) else { return };
        let is_here = |rank: &&Rank| rank.process.is_none();
        if entry.ranks.iter().filter(is_here).all(|rank| rank.left.is_some())
            && entry.calls.is_empty()
            && entry.traffic.is_empty()
        {
            let link = self.nccl.cliques.remove(&clique).and_then(|entry| entry.link);
            if let Some(Link { session, tag, .. }) = link {
                if let Some(session) = self.nccl.sessions.get_mut(&session) {
                    session.cliques.remove(&tag);
                }
                self.nccl.close_session_if_over(session);
            }
        }
    }

    /// A rank that aborts before its thread has seen its last call done: whether the call still works is a matter of luck.
    /// Where a query has told the thread that it isn't, it aborts on purpose: that is how one leaves ranks that never come.
    fn aborted_in_flight(&mut self, clique: u64, rank: usize) -> Option<(OpRef, Report)> {
        let thread = self.current_thread();
        let view = self.order.view_of(thread);
        let entry = self.nccl.cliques.get(&clique).filter(|clique| clique.failed.is_none())?;
        let LastCall { request, op, site, told_not_yet } = entry.ranks[rank].last.as_ref()?;
        let context = self.streams.get(&op.stream)?.context;
        if *told_not_yet || view.own.covers(op.stream, op.number) || self.failure_of(context).is_some() {
            return None;
        }
        let call = match request {
            Request::Collective(..) => "collective",
            Request::Transfer(..) => "send or receive",
        };
        let report =
            Report::new(format!("rank {rank} aborts its communicator while a {call} may be in flight"))
                .at(request.to_string(), site)
                .at("ncclCommAbort (dropping a Comm calls it)", &Site::here())
                .help("wait for the communicator's stream first: comm.stream().synchronize()?");
        Some((*op, report))
    }

    /// Takes a rank's part out of every call that is not running yet. What a rank of another process has given stays: it may
    /// have left because all was done.
    pub(super) fn cancel_calls(&mut self, clique: u64, rank: usize) {
        let Some(entry) = self.nccl.cliques.get_mut(&clique) else { return };
        let mut arrived = Vec::new();
        for call in entry.calls.values_mut().filter(|call| !call.running) {
            if let Some(part) = call.parts[rank].as_mut()
                && (part.op().is_some() || !part.arrived)
            {
                part.cancelled = true;
                arrived.extend(part.op().filter(|_| part.arrived).map(|op| op.stream));
            }
        }
        for stream in arrived {
            self.finish(stream);
        }
    }
}

/// How a rank leaves, in words.
pub(super) fn departure(aborts: bool) -> &'static str {
    if aborts { "has aborted its communicator" } else { "has destroyed its communicator" }
}

/// Whether ranks of one communicator may share a GPU. As NCCL reads its switches: when a communicator is made, and what is
/// no number counts as not set.
pub(super) fn ranks_share_gpus() -> bool {
    let value = std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").ok();
    value.and_then(|value| value.trim().parse::<i64>().ok()).is_some_and(|value| value != 0)
}

/// Why a wait that can't be decided has ended.
pub(crate) fn given_up(patience: Duration) -> String {
    format!("(not proved: given up after {} s, VIRTUAL_GPU_PATIENCE)", patience.as_secs_f64())
}
