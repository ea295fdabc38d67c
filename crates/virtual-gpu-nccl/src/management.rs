//! Calls that the threads of all ranks of a communicator make together and wait in: split and finalize.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::communicator::{Process, RankState};
use super::config::CommConfig;
use super::deadlock::deadlock_report;
use super::event::Event;
use super::log;
use super::membership::{Gathering, Membership};
use super::ranks::Ranks;
use super::session::{CommTag, FIRST_SPLIT_TAG, Link, ProcessNumber};
use super::wire::structure;
use super::{Guard, Locked, Nccl, State};
use virtual_gpu::engine::{Awaiting, Failure, Missing, Wait, given_up};
use virtual_gpu::report::{Report, ranks};
use virtual_gpu_core::handle::{CallKey, CommHandle, CommId, ManagementId, Rank, SequenceNumber};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};
use virtual_gpu_core::thread::ThreadKey;

/// The colour of a rank that gets no communicator from a split (`NCCL_SPLIT_NOCOLOR`).
pub const NO_COLOR: i32 = -1;

/// Writes a new communicator where its caller wants it, once it can be used.
pub type Deliver = Box<dyn FnOnce(CommHandle) + Send>;

/// A split or finalize to which not all ranks have come.
pub(crate) struct ManagementCall {
    participants: Ranks<Option<Participant>>,
    failed: Option<Error<NcclStatus>>,
}

struct Participant {
    purpose: Purpose,
    thread: ThreadKey,
    call_site: CallSite,
}

/// What a rank comes for.
enum Purpose {
    /// A rank with a color and no child is in another process.
    Split {
        color: i32,
        key: i32,
        config: CommConfig,
        child: Option<Child>,
    },
    Finalize,
}

/// What a rank of another process comes for.
pub(crate) struct Joins {
    /// A split, and no finalize.
    splits: bool,
    color: i32,
    key: i32,
    blocking: bool,
}

structure! { Joins { splits, color, key, blocking } }

/// A rank's end of a communicator that a split makes.
struct Child {
    handle: CommHandle,
    deliver: Deliver,
}

impl Purpose {
    fn function(&self) -> &'static str {
        match self {
            Self::Split { .. } => "ncclCommSplit",
            Self::Finalize => "ncclCommFinalize",
        }
    }
}

/// A rank of a communicator that a split makes: its key, its end where that is here, and where it called.
type Joiner = (i32, RankState, Option<Child>, CallSite);

impl Nccl {
    /// `ncclCommSplit`: ranks of one colour get a communicator, in the order of their keys and then of their ranks. A rank
    /// with [`NO_COLOR`] takes part and gets none. Returns once all ranks have come; `deliver` is called then. Inside a
    /// group, the group's end waits instead.
    ///
    /// # Errors
    /// `InvalidArgument` for another negative colour, `Timeout` where a rank never comes, `InProgress` for a communicator
    /// that is not blocking.
    pub fn split(
        &self,
        handle: CommHandle,
        color: i32,
        key: i32,
        config: Option<CommConfig>,
        deliver: Deliver,
    ) -> NcclResult<()> {
        let mut guard = self.lock();
        let (comm, rank) = guard.nccl.ready_member(handle)?;
        if color < 0 && color != NO_COLOR {
            let message =
                format!("ncclCommSplit: color {color}: it is 0 or more, or NCCL_SPLIT_NOCOLOR ({NO_COLOR})");
            return Err(Error::new(NcclStatus::InvalidArgument, message));
        }
        let config = config.unwrap_or(guard.nccl.communicator(comm)?.ranks[rank].config);
        let child =
            (color != NO_COLOR).then(|| Child { handle: CommHandle(guard.engine.new_handle()), deliver });
        self.join_management_call(comm, rank, Purpose::Split { color, key, config, child }, guard)
    }

    /// `ncclCommFinalize`: returns once what the rank has enqueued is done and all ranks have come.
    ///
    /// # Errors
    /// `InvalidArgument` the second time, `Timeout` where a rank never comes, `InProgress` for a communicator that is not
    /// blocking.
    pub fn finalize(&self, handle: CommHandle) -> NcclResult<()> {
        let mut guard = self.lock();
        let (comm, rank) = guard.nccl.ready_member(handle)?;
        log::ended("Finalize", &guard.nccl, handle, (comm, rank));
        let entry = &guard.nccl.communicator(comm)?.ranks[rank];
        if let Some(last) = entry.last.as_ref().filter(|_| entry.config.blocking) {
            let ops = vec![last.op];
            guard = self.block_on(Wait::Ops(ops), "ncclCommFinalize", guard);
        }
        self.join_management_call(comm, rank, Purpose::Finalize, guard)
    }

    fn join_management_call(
        &self,
        comm: CommId,
        rank: Rank,
        purpose: Purpose,
        mut guard: Guard<'_>,
    ) -> NcclResult<()> {
        let function = purpose.function();
        let (awaiting, blocking) = guard.locked().join_management_call(comm, rank, purpose)?;
        if let Some(group) = guard.nccl.open_group() {
            group.joining.push(awaiting);
            return Ok(());
        }
        if !blocking {
            self.unlock_and_wake(guard);
            return Err(NcclStatus::InProgress.into());
        }
        self.finish_joining(vec![awaiting], function, guard)
    }
}

impl ManagementCall {
    /// Whether a rank of this process has come.
    pub(crate) fn has_participant_here(&self, ranks: &Ranks<RankState>) -> bool {
        self.participants
            .iter()
            .any(|(rank, participant)| participant.is_some() && ranks[rank].process.is_none())
    }

    fn new(world_size: usize) -> Self {
        Self { participants: Ranks::new(world_size, |_| None), failed: None }
    }
}

impl Link {
    /// That of a communicator that a split makes: every process finds the same tag. None where all its ranks are here.
    fn of_child(&self, split: SequenceNumber, color: i32, ranks: &Ranks<RankState>) -> Option<Self> {
        let mut others: Vec<ProcessNumber> =
            ranks.values().filter_map(|rank| Some(rank.process?.number)).collect();
        others.sort_unstable();
        others.dedup();
        let mut hasher = DefaultHasher::new();
        (self.tag, split, color).hash(&mut hasher);
        // Never that of the first communicator.
        let tag = CommTag(hasher.finish()).max(FIRST_SPLIT_TAG);
        (!others.is_empty()).then_some(Self { session: self.session, tag, others })
    }
}

impl State {
    /// Whether a split or finalize waits for one of these ranks.
    pub(crate) fn lacks_any(&self, id: ManagementId, ranks: &[Rank]) -> bool {
        let Some(call) = self.management_call(id).filter(|call| call.failed.is_none()) else {
            return false;
        };
        ranks.iter().any(|&rank| call.participants[rank].is_none())
    }

    pub(crate) fn management_call(&self, id: ManagementId) -> Option<&ManagementCall> {
        self.communicators.get(&id.comm)?.management_calls.get(&id.sequence)
    }

    /// Whether a thread waits until it is over.
    pub(crate) fn is_blocking(&self, awaiting: Awaiting) -> bool {
        match awaiting {
            Awaiting::Communicator(handle) => match self.memberships.get(&handle) {
                Some(Membership::Joining(_, config)) => config.blocking,
                Some(&Membership::Member { comm, rank }) => {
                    self.communicators.get(&comm).is_none_or(|comm| comm.ranks[rank].config.blocking)
                }
                _ => true,
            },
            Awaiting::Management(id) => self
                .communicators
                .get(&id.comm)
                .is_none_or(|comm| comm.ranks.values().all(|rank| rank.awaits != Some(id.sequence))),
        }
    }

    /// Whether a split or finalize is complete, or has failed.
    pub(crate) fn is_complete_or_failed(&self, id: ManagementId) -> bool {
        self.management_call(id).is_none_or(|call| call.failed.is_some())
    }

    /// Why a split or finalize failed, if it did.
    pub(crate) fn management_failure(&self, id: ManagementId) -> Option<Error<NcclStatus>> {
        self.management_call(id)?.failed.clone()
    }

    /// The ranks that have not come to a split or finalize, in the order of their numbers.
    pub(crate) fn absent(&self, id: ManagementId) -> Vec<(Rank, Missing)> {
        let (Some(comm), Some(call)) = (self.communicators.get(&id.comm), self.management_call(id)) else {
            return Vec::new();
        };
        if call.failed.is_some() {
            return Vec::new();
        }
        let absent = call.participants.iter().filter(|(_, participant)| participant.is_none());
        absent.map(|(rank, _)| (rank, comm.ranks[rank].absence())).collect()
    }
}

impl Locked<'_> {
    /// A rank comes to its next split or finalize; the last one makes it happen.
    fn join_management_call(
        &mut self,
        comm: CommId,
        rank: Rank,
        purpose: Purpose,
    ) -> NcclResult<(Awaiting, bool)> {
        let thread = self.engine.current_thread();
        let participant = Participant { purpose, thread, call_site: CallSite::here() };
        let entry = self.nccl.communicator_mut(comm)?;
        let size = entry.ranks.len();
        entry.used_by(rank, thread);
        let own = &mut entry.ranks[rank];
        own.management_calls = own.management_calls.next();
        own.finalized |= matches!(participant.purpose, Purpose::Finalize);
        let (sequence, blocking) = (own.management_calls, own.config.blocking);
        own.awaits = (!blocking).then_some(sequence);
        let id = ManagementId { comm, sequence };
        let joins = match &participant.purpose {
            Purpose::Split { color, key: order, config, child } => {
                if let Some(child) = child {
                    let joining = Membership::Joining(Gathering::Split(id), *config);
                    self.nccl.memberships.insert(child.handle, joining);
                }
                Joins { splits: true, color: *color, key: *order, blocking: config.blocking }
            }
            Purpose::Finalize => Joins { splits: false, color: NO_COLOR, key: 0, blocking },
        };
        let entry = self.nccl.communicator_mut(comm)?;
        let event = Event::Joins { rank, sequence, joins, call_site: participant.call_site.clone() };
        let call = entry.management_calls.entry(sequence).or_insert_with(|| ManagementCall::new(size));
        call.participants[rank] = Some(participant);
        self.publish(comm, &event);
        self.complete_if_all_joined(id);
        Ok((Awaiting::Management(id), blocking))
    }

    /// A rank of another process comes to a split or finalize.
    pub(crate) fn joins_elsewhere(
        &mut self,
        id: ManagementId,
        rank: Rank,
        joins: Joins,
        call_site: CallSite,
    ) {
        let Joins { splits, color, key: order, blocking } = joins;
        let purpose = match splits {
            true => Purpose::Split { color, key: order, config: CommConfig { blocking }, child: None },
            false => Purpose::Finalize,
        };
        let Some(entry) = self.nccl.communicators.get_mut(&id.comm) else { return };
        let size = entry.ranks.len();
        entry.ranks[rank].management_calls = id.sequence;
        let call = entry.management_calls.entry(id.sequence).or_insert_with(|| ManagementCall::new(size));
        call.participants[rank] = Some(Participant { purpose, thread: ThreadKey::ELSEWHERE, call_site });
        self.complete_if_all_joined(id);
    }

    fn complete_if_all_joined(&mut self, id: ManagementId) {
        let Some(call) = self.nccl.management_call(id) else { return };
        if call.failed.is_none() && call.participants.values().all(Option::is_some) {
            self.complete_management_call(id);
        }
    }

    /// All ranks have come.
    fn complete_management_call(&mut self, id: ManagementId) {
        let Some(call) = self.nccl.management_call(id) else { return };
        let participants = call.participants.iter().filter_map(|(rank, one)| Some((rank, one.as_ref()?)));
        let called: Vec<(Rank, &Participant)> = participants.collect();
        let function = |&(_, participant): &(Rank, &Participant)| participant.purpose.function();
        if called.windows(2).any(|pair| function(&pair[0]) != function(&pair[1])) {
            let mut report = Report::new("ranks disagree about a call that all of them make together");
            for (rank, participant) in called {
                let function = participant.purpose.function();
                report = report.at(format!("rank {rank}: {function}"), &participant.call_site);
            }
            let report = report.help("every rank must make the same calls in the same order");
            let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
            self.fail_management_call(id, NcclStatus::InvalidUsage, &failure);
            return;
        }
        let Some(comm) = self.nccl.communicators.get_mut(&id.comm) else { return };
        let Some(call) = comm.management_calls.remove(&id.sequence) else { return };
        let homes: Vec<(usize, Option<Process>)> =
            comm.ranks.values().map(|rank| (rank.device, rank.process)).collect();
        let parent = comm.link.clone();
        let mut colors: BTreeMap<i32, Vec<Joiner>> = BTreeMap::new();
        for ((device, process), participant) in
            homes.into_iter().zip(call.participants.into_values().flatten())
        {
            if let Purpose::Split { color, key, config, child } = participant.purpose
                && color != NO_COLOR
            {
                let rank = match process {
                    Some(process) => RankState::elsewhere(process, device, config),
                    None => RankState::new(device, participant.thread, config),
                };
                colors.entry(color).or_default().push((key, rank, child, participant.call_site));
            }
        }
        for (color, mut members) in colors {
            if members.iter().all(|(_, _, child, _)| child.is_none()) {
                continue;
            }
            // Stable: ranks of one key keep their order.
            members.sort_by_key(|(key, ..)| *key);
            let call_site = members[0].3.clone();
            let (states, children): (Vec<_>, Vec<_>) =
                members.into_iter().map(|(_, rank, child, _)| (rank, child)).unzip();
            let ranks = Ranks::from(states);
            let handles = children.iter().map(|child| child.as_ref().map(|child| child.handle)).collect();
            let link = parent.as_ref().and_then(|parent| parent.of_child(id.sequence, color, &ranks));
            self.add_communicator("ncclCommSplit", ranks, &handles, call_site, link);
            for Child { handle, deliver } in children.into_iter().flatten() {
                deliver(handle);
            }
        }
    }

    /// Ends a split or finalize: everyone who has come gets the same error.
    pub(crate) fn fail_management_call(&mut self, id: ManagementId, status: NcclStatus, failure: &Failure) {
        self.publish_failure(CallKey::Management(id), status, failure);
        self.management_call_failed(id, status, failure);
    }

    /// As [`Self::fail_management_call`], where the other processes know. The first failure stays.
    pub(crate) fn management_call_failed(&mut self, id: ManagementId, status: NcclStatus, failure: &Failure) {
        let error = Error::new(status, failure.report.clone());
        let Some(comm) = self.nccl.communicators.get_mut(&id.comm) else { return };
        let ranks = comm.ranks.len();
        let call = comm.management_calls.entry(id.sequence).or_insert_with(|| ManagementCall::new(ranks));
        if call.failed.is_some() {
            return;
        }
        call.failed = Some(error.clone());
        for participant in call.participants.values().flatten() {
            if let Purpose::Split { child: Some(child), .. } = &participant.purpose {
                self.nccl.memberships.insert(child.handle, Membership::Failed(error.clone()));
            }
        }
    }

    /// Ends splits and finalizes whose other ranks have not come for too long.
    pub(crate) fn give_up_management_call(&mut self, id: ManagementId) {
        let report = deadlock_report(self.engine, self.nccl, &[CallKey::Management(id)].into())
            .fact(given_up(self.engine.timeout));
        let failure = Failure::announce(CudaStatus::LaunchTimeout, &report);
        self.fail_management_call(id, NcclStatus::Timeout, &failure);
    }
}

/// Adds who waits in a split or finalize to a report.
pub(crate) fn waiting_participants(nccl: &State, id: ManagementId, mut report: Report) -> Report {
    let Some(call) = nccl.management_call(id) else { return report };
    let mut sides: Vec<(Vec<Rank>, &Participant)> = Vec::new();
    for (rank, participant) in call.participants.iter() {
        let Some(participant) = participant else { continue };
        let line = participant.call_site.line();
        match sides.iter_mut().find(|(_, other)| other.call_site.line() == line) {
            Some((ranks, _)) => ranks.push(rank),
            None => sides.push((vec![rank], participant)),
        }
    }
    for (of_side, participant) in sides {
        let verb = if of_side.len() == 1 { "waits" } else { "wait" };
        let text = format!("{} {verb} in {}", ranks(&of_side), participant.purpose.function());
        report = report.at(text, &participant.call_site);
    }
    report
}
