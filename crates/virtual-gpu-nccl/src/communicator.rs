//! Communicators: how ranks join and leave them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::call::Request;
use super::collective::Call;
use super::config::CommConfig;
use super::id::UniqueId;
use super::internal::vanished;
use super::log;
use super::management::ManagementCall;
use super::membership::Membership;
use super::one_sided::Signals;
use super::operation::{Operation, Plan};
use super::point_to_point::Traffic;
use super::ranks::Ranks;
use super::scale::Scales;
use super::session::{Link, ProcessNumber};
use super::strict::Connected;
use super::{Locked, Nccl, State};
use virtual_gpu::engine::{Failure, Missing};
use virtual_gpu::time::choice::Enabled;
use virtual_gpu_core::handle::{CommHandle, CommId, OpRef, Rank, SequenceNumber};
use virtual_gpu_core::sorted::{SortedMap, SortedSet};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};
use virtual_gpu_core::thread::ThreadKey;

/// All of a communicator's ranks, and the work between them.
pub(crate) struct Communicator {
    pub(crate) id: CommId,
    pub(crate) ranks: Ranks<RankState>,
    /// The calls that are not done, by sequence number, starting at 1.
    pub(crate) calls: BTreeMap<SequenceNumber, Call>,
    /// The sends and receives that are not done.
    pub(crate) traffic: Traffic,
    /// The one-sided calls that are not done, and the signals that have come.
    pub(crate) signals: Signals,
    /// The splits and finalizes that not all ranks have reached, by sequence number, starting at 1.
    pub(crate) management_calls: BTreeMap<SequenceNumber, ManagementCall>,
    /// The ids of the larger communicators that the ranks have agreed on, by the number of the call.
    pub(crate) grown: BTreeMap<SequenceNumber, UniqueId>,
    /// The asynchronous error, if any.
    pub(crate) failed: Option<Error<NcclStatus>>,
    /// The ranks whose processes have ended.
    pub(crate) lost: Option<Lost>,
    /// The call site at which rank 0's handle was created.
    pub(crate) call_site: CallSite,
    /// How to reach the ranks in other processes.
    pub(crate) link: Option<Link>,
    /// The last collective and how NCCL runs it. The other ranks' calls need the same plan, and often the next ones.
    pub(crate) planned: Option<(Operation, Plan)>,
}

/// Ranks whose processes have ended.
pub(crate) struct Lost {
    pub(crate) ranks: Vec<Rank>,
    /// Names the first process that ended, and its ranks.
    pub(crate) headline: String,
    /// The error that later calls return.
    pub(crate) error: Error<NcclStatus>,
}

/// Another process of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    /// Its number in the session.
    pub(crate) number: ProcessNumber,
    /// Its process ID.
    pub(crate) pid: u32,
}

/// One rank of a communicator, as this process knows it.
pub(crate) struct RankState {
    /// The process that the rank is in; `None` if it is this one.
    pub(crate) process: Option<Process>,
    pub(crate) device: usize,
    /// The thread that last used the rank. It will make the rank's next call, unless the rank is handed to another
    /// thread.
    pub(crate) owner: ThreadKey,
    /// The thread that created the rank, and whether a call has since been made for the rank.
    maker: ThreadKey,
    is_used: bool,
    /// Whether a thread other than its creator has used a rank of the communicator.
    is_handed_on: bool,
    /// The number of collective calls that the rank has made.
    pub(crate) issued: SequenceNumber,
    /// The number of collectives, and of groups of sends and receives, that the rank has captured into graphs.
    pub(crate) captured: SequenceNumber,
    /// The number of groups of sends and receives that the rank has launched.
    pub(crate) transfer_groups: SequenceNumber,
    /// The number of groups of one-sided calls that the rank has launched.
    pub(crate) signal_groups: SequenceNumber,
    /// The rank's last call that moves data, with its operation on the stream.
    pub(crate) last: Option<LastCall>,
    /// The number of splits and finalizes that the rank has reached.
    pub(crate) management_calls: SequenceNumber,
    pub(crate) config: CommConfig,
    /// The reduction operators that the rank has created.
    pub(crate) scales: Scales,
    /// How often the rank has excluded a set of ranks, by the set's hash.
    pub(crate) shrinks: SortedMap<u64, u64>,
    pub(crate) finalized: bool,
    pub(crate) suspended: bool,
    /// Whether the rank has revoked the communicator.
    pub(crate) revoked: bool,
    /// How and where the rank canceled its work.
    pub(crate) canceled: Option<(&'static str, CallSite)>,
    /// For a nonblocking communicator: how many more times a query reports that it is in progress, and its pending
    /// split or finalize.
    pub(crate) polls: u32,
    pub(crate) awaits: Option<SequenceNumber>,
    /// The rank's last zero-element collective, with the number of the next collective that moves data.
    pub(crate) dropped: Option<(SequenceNumber, Operation, CallSite)>,
    /// How the rank's GPU failed, once a thread has received the error.
    pub(crate) gpu_failure: Option<String>,
    /// What the rank of a strict NCCL has connected.
    pub(crate) connected: Connected,
    /// How and where the rank left.
    pub(crate) left: Option<(Cow<'static, str>, CallSite)>,
}

/// A rank's last call.
pub(crate) struct LastCall {
    pub(crate) request: Request,
    pub(crate) op: OpRef,
    pub(crate) call_site: CallSite,
    /// Whether a query has already told the thread that the call isn't done, so that aborting now is deliberate.
    pub(crate) was_polled: bool,
}

impl RankState {
    pub(crate) fn new(device: usize, owner: ThreadKey, config: CommConfig) -> Self {
        Self {
            process: None,
            device,
            owner,
            maker: owner,
            is_used: false,
            is_handed_on: false,
            issued: SequenceNumber::default(),
            captured: SequenceNumber::default(),
            transfer_groups: SequenceNumber::default(),
            signal_groups: SequenceNumber::default(),
            last: None,
            management_calls: SequenceNumber::default(),
            config,
            scales: Scales::default(),
            shrinks: SortedMap::default(),
            finalized: false,
            suspended: false,
            revoked: false,
            canceled: None,
            polls: 0,
            awaits: None,
            dropped: None,
            gpu_failure: None,
            connected: Connected::default(),
            left: None,
        }
    }

    /// Creates the state of a rank in another process.
    pub(crate) fn elsewhere(process: Process, device: usize, config: CommConfig) -> Self {
        Self { process: Some(process), ..Self::new(device, ThreadKey::ELSEWHERE, config) }
    }

    /// Returns whether this thread and no other makes the rank's calls.
    pub(crate) fn is_driven_by(&self, thread: ThreadKey) -> bool {
        self.owner == thread && !self.is_handed_on && self.left.is_none()
    }

    /// Returns why the rank has not called a collective, or one end of a message.
    pub(crate) fn silence(&self) -> Missing {
        if self.revoked { Missing::Gone } else { self.absence() }
    }

    /// Returns why the rank has not made a call.
    pub(crate) fn absence(&self) -> Missing {
        match self.left {
            Some(_) => Missing::Gone,
            None if self.is_handed_on => Missing::Handed { thread: self.owner, has_used: self.is_used },
            None => Missing::NotCalled(self.owner),
        }
    }
}

impl Communicator {
    /// Fails if a process with other ranks has ended.
    pub(crate) fn check_all_there(&self) -> NcclResult<()> {
        self.check_all_there_but(&[])
    }

    /// Fails if a process with other ranks than these has ended.
    pub(crate) fn check_all_there_but(&self, excluded: &[Rank]) -> NcclResult<()> {
        match &self.lost {
            Some(lost) if lost.ranks.iter().any(|rank| !excluded.contains(rank)) => Err(lost.error.clone()),
            _ => Ok(()),
        }
    }

    /// Records that a thread is making a call for a rank.
    pub(crate) fn used_by(&mut self, rank: Rank, thread: ThreadKey) {
        let own = &mut self.ranks[rank];
        (own.owner, own.is_used) = (thread, true);
        if own.maker != thread {
            self.ranks.values_mut().for_each(|rank| rank.is_handed_on = true);
        }
    }

    /// Returns whether all ranks in this process have left and no work is pending.
    fn is_over(&self) -> bool {
        let mut here = self.ranks.values().filter(|rank| rank.process.is_none());
        here.all(|rank| rank.left.is_some())
            && self.calls.is_empty()
            && self.traffic.is_empty()
            && self.signals.is_empty()
    }

    /// Records an asynchronous error; only the first failure is kept.
    pub(crate) fn note_failure(&mut self, failure: &Failure) {
        self.failed.get_or_insert_with(|| Error::new(NcclStatus::InvalidUsage, failure.report.clone()));
    }
}

/// Rejects unknown values of `NCCL_ALGO` and `NCCL_PROTO`, as NCCL does when it creates a communicator.
pub(crate) fn check_choice() -> NcclResult<()> {
    Enabled::from_env().map(drop).map_err(|message| Error::new(NcclStatus::InvalidUsage, message))
}

impl Nccl {
    /// Implements `ncclCommInitAll`: creates a communicator with a rank on each of `devices`, all driven by the calling
    /// thread.
    pub fn init_all(&self, devices: &[i32]) -> NcclResult<Vec<CommHandle>> {
        check_choice()?;
        let mut gpus = Vec::new();
        for &device in devices {
            let gpu = self
                .engine
                .check_device(device)
                .map_err(|e| Error::new(NcclStatus::InvalidArgument, e.message))?;
            if gpus.contains(&gpu) && !ranks_share_gpus() {
                let message = format!(
                    "GPU {gpu} is in the list twice: each rank needs its own GPU (or NCCL_MULTI_RANK_GPU_ENABLE=1)"
                );
                return Err(Error::new(NcclStatus::InvalidUsage, message));
            }
            gpus.push(gpu);
        }
        let mut guard = self.lock();
        let mut state = guard.locked();
        let thread = state.engine.current_thread();
        let handles: Ranks<_> = gpus.iter().map(|_| Some(CommHandle(state.engine.new_handle()))).collect();
        let ranks = gpus.into_iter().map(|gpu| RankState::new(gpu, thread, CommConfig::default())).collect();
        state.add_communicator("ncclCommInitAll", ranks, &handles, CallSite::here(), None)?;
        Ok(handles.into_values().flatten().collect())
    }
}

impl State {
    /// Returns a communicator that must exist, because one of its ranks is a member or its work is not done.
    ///
    /// # Errors
    /// Returns an `InternalError` that names it.
    pub(crate) fn communicator(&self, comm: CommId) -> NcclResult<&Communicator> {
        self.communicators.get(&comm).ok_or_else(|| vanished(format_args!("communicator {}", comm.0)))
    }

    /// Like [`Self::communicator`], but returns a mutable reference.
    ///
    /// # Errors
    /// Returns an `InternalError` that names it.
    pub(crate) fn communicator_mut(&mut self, comm: CommId) -> NcclResult<&mut Communicator> {
        self.communicators.get_mut(&comm).ok_or_else(|| vanished(format_args!("communicator {}", comm.0)))
    }

    /// Forgets a communicator once all its ranks in this process have left and no work is pending.
    ///
    /// # Errors
    /// Returns an `InternalError` that names the missing object.
    pub(crate) fn forget_communicator_if_over(&mut self, comm: CommId) -> NcclResult<()> {
        if !self.communicator(comm)?.is_over() {
            return Ok(());
        }
        let link = self.communicators.remove(&comm).and_then(|entry| entry.link);
        if let Some(Link { session, tag, .. }) = link {
            self.session_mut(session)?.communicators.remove(&tag);
            self.close_session_if_over(session)?;
        }
        Ok(())
    }

    /// Returns the threads that drive ranks of existing communicators.
    pub(crate) fn owners(&self) -> SortedSet<ThreadKey> {
        self.communicators.values().flat_map(|comm| comm.ranks.values().map(|rank| rank.owner)).collect()
    }

    /// Records that a thread has received an error from a failed GPU. The first failure is the cause of later ones.
    pub(crate) fn note_gpu_failure(&mut self, device: usize, failure: &Failure) {
        let ranks = self.communicators.values_mut().flat_map(|comm| comm.ranks.values_mut());
        for rank in ranks.filter(|rank| rank.process.is_none() && rank.device == device) {
            rank.gpu_failure.get_or_insert_with(|| failure.headline().to_owned());
        }
    }

    /// Records that a thread has queried an operation and found that it isn't done. As far as the thread knows, a rank's last
    /// call before that operation isn't done either.
    pub(crate) fn was_polled(&mut self, thread: ThreadKey, op: OpRef) {
        let ranks = self.communicators.values_mut().flat_map(|comm| comm.ranks.values_mut());
        for rank in ranks.filter(|rank| rank.owner == thread) {
            if let Some(last) = &mut rank.last
                && last.op.stream == op.stream
                && last.op.number <= op.number
            {
                last.was_polled = true;
            }
        }
    }
}

impl Locked<'_> {
    /// Creates a communicator for the ranks that have joined; `function` is the call they are waiting in. A rank in
    /// another process has no handle here.
    ///
    /// # Errors
    /// Returns `InternalError` if its link's session is gone.
    pub(crate) fn add_communicator(
        &mut self,
        function: &str,
        ranks: Ranks<RankState>,
        handles: &Ranks<Option<CommHandle>>,
        call_site: CallSite,
        link: Option<Link>,
    ) -> NcclResult<()> {
        self.nccl.communicators_made += 1;
        let comm = CommId(self.nccl.communicators_made);
        for (rank, &handle) in handles.iter() {
            if let Some(handle) = handle {
                self.nccl.memberships.insert(handle, Membership::Member { comm, rank });
            }
        }
        let (calls, traffic, management_calls) = (BTreeMap::new(), Traffic::default(), BTreeMap::new());
        let entry = Communicator {
            id: comm,
            ranks,
            calls,
            traffic,
            signals: Signals::default(),
            management_calls,
            grown: BTreeMap::new(),
            failed: None,
            lost: None,
            call_site,
            link: link.clone(),
            planned: None,
        };
        log::made(function, &entry, handles);
        self.nccl.communicators.insert(comm, entry);
        if let Some(Link { session, tag, .. }) = link {
            self.nccl.session_mut(session)?.communicators.insert(tag, comm);
            self.take_in_early(session, tag, comm)?;
        }
        Ok(())
    }
}

/// Returns whether ranks of one communicator may share a GPU. Like NCCL, reads the variable when a communicator is
/// created and treats a value that is not a number as unset.
pub(crate) fn ranks_share_gpus() -> bool {
    let value = std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").ok();
    value.and_then(|value| value.trim().parse::<i64>().ok()).is_some_and(|value| value != 0)
}
