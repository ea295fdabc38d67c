//! Calls that the ranks of a communicator make together and wait in: split, shrink, finalize, suspend, resume, and the
//! registration of windows.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::communicator::{Communicator, RankState};
use super::config::CommConfig;
use super::deadlock::deadlock_report;
use super::event::Event;
use super::grow::Grow;
use super::id::UniqueId;
use super::log;
use super::membership::{Gathering, Membership};
use super::ranks::Ranks;
use super::registration::Window;
use super::session::{CommTag, FIRST_SPLIT_TAG, Link, ProcessNumber};
use super::wire::structure;
use super::{Guard, Locked, Nccl, State};
use virtual_gpu::engine::{Awaiting, Failure, Missing, Wait, given_up};
use virtual_gpu::report::{Report, ranks};
use virtual_gpu_core::handle::{CallKey, CommHandle, CommId, ManagementId, Rank, SequenceNumber};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};
use virtual_gpu_core::thread::ThreadKey;

/// The color of a rank that gets no communicator from a split (`NCCL_SPLIT_NOCOLOR`).
pub const NO_COLOR: i32 = -1;

/// Stores a new communicator for the caller, once the communicator can be used.
pub type Deliver = Box<dyn FnOnce(CommHandle) + Send>;

/// A call that not all ranks have reached.
pub(crate) struct ManagementCall {
    participants: Ranks<Option<Participant>>,
    /// The ranks that don't make the call, because a shrink excludes them.
    excluded: Vec<Rank>,
    failed: Option<Error<NcclStatus>>,
}

struct Participant {
    purpose: Purpose,
    thread: ThreadKey,
    call_site: CallSite,
}

/// A rank's call.
pub(crate) enum Purpose {
    /// In a split, a rank with a color but no child is in another process.
    Split {
        color: i32,
        key: i32,
        config: CommConfig,
        child: Option<Child>,
    },
    /// In a shrink, a rank without a child is in another process.
    Shrink {
        excluded: Vec<Rank>,
        config: CommConfig,
        child: Option<Child>,
    },
    Finalize,
    /// The registration of a window. A rank without one is in another process.
    Window(Option<Child>),
    Suspend,
    Resume,
    Grow(Grow),
}

/// A call by a rank in another process.
pub(crate) struct Joins {
    kind: u8,
    color: i32,
    key: i32,
    blocking: bool,
    excluded: Vec<Rank>,
    /// Of a grow: the number of ranks, and the id if the rank has it.
    world_size: i32,
    id: Option<UniqueId>,
}

structure! { Joins { kind, color, key, blocking, excluded, world_size, id } }

/// The kinds of calls that ranks in other processes make.
const FINALIZE: u8 = 0;
const SPLIT: u8 = 1;
const SHRINK: u8 = 2;
const WINDOW: u8 = 3;
const SUSPEND: u8 = 4;
const RESUME: u8 = 5;
const GROW: u8 = 6;

impl Joins {
    /// Returns whether a communicator of this many ranks can receive it.
    pub(crate) fn is_plausible(&self, world_size: usize) -> bool {
        self.kind <= GROW && self.excluded.iter().all(|rank| rank.0 < world_size)
    }
}

/// The first number of a shrink. Its other numbers come from the excluded ranks, because the other calls of a rank that
/// takes part are not those of one that is excluded.
const FIRST_SHRINK: u64 = 1 << 63;

/// A rank's handle to a communicator created by a split or shrink, or to a window.
pub(crate) struct Child {
    handle: CommHandle,
    deliver: Deliver,
}

impl Purpose {
    fn function(&self) -> &'static str {
        match self {
            Self::Split { .. } => "ncclCommSplit",
            Self::Shrink { .. } => "ncclCommShrink",
            Self::Finalize => "ncclCommFinalize",
            Self::Window(_) => "ncclCommWindowRegister",
            Self::Suspend => "ncclCommSuspend",
            Self::Resume => "ncclCommResume",
            Self::Grow(_) => "ncclCommGrow",
        }
    }

    /// Returns the communicator that the call makes for its rank: the handle, with its options.
    fn joining(&self) -> Option<(CommHandle, CommConfig)> {
        match self {
            Self::Split { child, config, .. } | Self::Shrink { child, config, .. } => {
                Some((child.as_ref()?.handle, *config))
            }
            Self::Finalize | Self::Window(_) | Self::Suspend | Self::Resume | Self::Grow(_) => None,
        }
    }
}

/// Checks the ranks that a shrink excludes. Returns them in order.
fn excluded_ranks(excluded: &[i32], own: Rank, world_size: usize) -> NcclResult<Vec<Rank>> {
    let bad = |what: String| Err(Error::new(NcclStatus::InvalidArgument, format!("ncclCommShrink: {what}")));
    let mut ranks = Vec::new();
    for &number in excluded {
        let rank = Rank::checked(number, world_size);
        let Some(rank) = rank else { return bad(format!("rank {number} of {world_size} ranks")) };
        if rank == own {
            return bad(format!("rank {own} excludes itself: the ranks that are excluded must not call"));
        }
        if ranks.contains(&rank) {
            return bad(format!("rank {rank} is excluded twice"));
        }
        ranks.push(rank);
    }
    if ranks.is_empty() {
        return bad("no rank is excluded".to_owned());
    }
    ranks.sort_unstable();
    Ok(ranks)
}

/// A rank of a communicator created by a split: its key, its state, its handle if it is in this process, and its call
/// site.
type Joiner = (i32, RankState, Option<Child>, CallSite);

impl Nccl {
    /// Implements `ncclCommSplit`: ranks with the same color get a communicator, ordered by key and then by rank. A
    /// rank with [`NO_COLOR`] takes part but gets no communicator. Once all ranks have made the call, calls `deliver`
    /// and returns. Inside a group, the end of the group waits instead.
    ///
    /// # Errors
    /// Returns `InvalidArgument` for any other negative color, `Timeout` if a rank never calls, and `InProgress` for a
    /// nonblocking communicator.
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
            let message = format!(
                "ncclCommSplit: color {color}: it must be 0 or more, or NCCL_SPLIT_NOCOLOR ({NO_COLOR})"
            );
            return Err(Error::new(NcclStatus::InvalidArgument, message));
        }
        let config = config.unwrap_or(guard.nccl.communicator(comm)?.ranks[rank].config);
        let child =
            (color != NO_COLOR).then(|| Child { handle: CommHandle(guard.engine.new_handle()), deliver });
        self.join_management_call(comm, rank, Purpose::Split { color, key, config, child }, guard)
    }

    /// Implements `ncclCommShrink`: like [`Self::split`], for the ranks that are not excluded, in their order. With
    /// `aborts`, the rank's pending work on the parent is canceled first.
    ///
    /// # Errors
    /// Returns `InvalidArgument` if no rank is excluded, if the list has the calling rank, a rank twice, or a number that is
    /// not a rank's; `RemoteError` if the process of a rank that is not excluded has ended; `Timeout` if a rank never calls; and `InProgress` for a nonblocking communicator.
    pub fn shrink(
        &self,
        handle: CommHandle,
        excluded: &[i32],
        aborts: bool,
        config: Option<CommConfig>,
        deliver: Deliver,
    ) -> NcclResult<()> {
        let mut guard = self.lock();
        let (comm, rank) = guard.nccl.open_member(handle)?;
        let entry = guard.nccl.communicator(comm)?;
        let excluded = excluded_ranks(excluded, rank, entry.ranks.len())?;
        entry.check_all_there_but(&excluded)?;
        let config = config.unwrap_or(entry.ranks[rank].config);
        if aborts {
            guard.locked().cancel_work(comm, rank, false)?;
            guard = self.run_ready(guard);
        }
        let child = Some(Child { handle: CommHandle(guard.engine.new_handle()), deliver });
        self.join_management_call(comm, rank, Purpose::Shrink { excluded, config, child }, guard)
    }

    /// Implements `ncclCommWindowRegister`: all ranks call it, each with bytes of its own GPU. Once they have, calls
    /// `deliver` with a handle for [`Self::deregister_window`]. Puts write to symmetric windows; otherwise, a window only makes
    /// collectives faster.
    ///
    /// # Errors
    /// Returns `InvalidArgument` unless the bytes are in one buffer and start at a multiple of 4096 bytes in it;
    /// `Timeout` if a rank never calls; and `InProgress` for a nonblocking communicator.
    pub fn register_window(
        &self,
        handle: CommHandle,
        address: u64,
        bytes: u64,
        is_symmetric: bool,
        deliver: Deliver,
    ) -> NcclResult<()> {
        self.check_window(handle, address, bytes)?;
        let mut guard = self.lock();
        let (comm, rank) = guard.nccl.ready_member(handle)?;
        let window = guard.engine.new_handle();
        let number = guard.nccl.communicator(comm)?.ranks[rank].management_calls.next();
        guard.nccl.windows.insert(window, Window { of: handle, address, bytes, is_symmetric, number });
        let child = Child { handle: CommHandle(window), deliver };
        self.join_management_call(comm, rank, Purpose::Window(Some(child)), guard)
    }

    /// Implements `ncclCommSuspend` and `ncclCommResume`, which all ranks call. NCCL gives its memory back and takes it
    /// again. The virtual NCCL uses none, but doesn't let a suspended communicator communicate.
    ///
    /// # Errors
    /// Returns `InvalidUsage` if the rank's communicator is suspended already, or is not suspended; `Timeout` if a rank never
    /// calls; and `InProgress` for a nonblocking communicator.
    pub fn suspend(&self, handle: CommHandle, suspends: bool) -> NcclResult<()> {
        let guard = self.lock();
        let (comm, rank) = guard.nccl.ready_member(handle)?;
        let purpose = if suspends { Purpose::Suspend } else { Purpose::Resume };
        let state = match (guard.nccl.communicator(comm)?.ranks[rank].suspended, suspends) {
            (true, true) => "suspended already",
            (false, false) => "not suspended",
            _ => return self.join_management_call(comm, rank, purpose, guard),
        };
        let message = format!("{}: the communicator is {state}", purpose.function());
        Err(Error::new(NcclStatus::InvalidUsage, message))
    }

    /// Returns whether a rank's communicator is suspended.
    ///
    /// # Errors
    /// Returns `InvalidArgument` for an invalid handle.
    pub fn is_suspended(&self, handle: CommHandle) -> NcclResult<bool> {
        let guard = self.lock();
        let (comm, rank) = guard.nccl.ready_member(handle)?;
        Ok(guard.nccl.communicator(comm)?.ranks[rank].suspended)
    }

    /// Implements `ncclCommFinalize`: returns once the rank's enqueued work is done and all ranks have called.
    ///
    /// # Errors
    /// Returns `InvalidArgument` on a second call, `Timeout` if a rank never calls, and `InProgress` for a nonblocking
    /// communicator.
    pub fn finalize(&self, handle: CommHandle) -> NcclResult<()> {
        let mut guard = self.lock();
        let (comm, rank) = guard.nccl.ready_member(handle)?;
        let entry = guard.nccl.communicator(comm)?;
        if entry.ranks[rank].revoked {
            let message = "ncclCommFinalize: the communicator has been revoked: destroy it instead";
            return Err(Error::new(NcclStatus::InvalidArgument, message));
        }
        log::ended("Finalize", entry, handle, rank);
        let entry = &entry.ranks[rank];
        if let Some(last) = entry.last.as_ref().filter(|_| entry.config.blocking) {
            let ops = vec![last.op];
            guard = self.block_on(Wait::Ops(ops), "ncclCommFinalize", guard);
        }
        self.join_management_call(comm, rank, Purpose::Finalize, guard)
    }

    pub(crate) fn join_management_call<'a>(
        &'a self,
        comm: CommId,
        rank: Rank,
        purpose: Purpose,
        mut guard: Guard<'a>,
    ) -> NcclResult<()> {
        let function = purpose.function();
        let is_split = matches!(purpose, Purpose::Split { .. } | Purpose::Shrink { .. });
        let (awaiting, blocking) = guard.locked().join_management_call(comm, rank, purpose)?;
        if let Some(group) = guard.nccl.open_group() {
            group.joining.push(awaiting);
            return Ok(());
        }
        if !blocking {
            self.unlock_and_wake(guard);
            return Err(NcclStatus::InProgress.into());
        }
        if is_split {
            guard = self.create_slowly(guard);
        }
        self.finish_joining(vec![awaiting], function, guard)
    }
}

impl RankState {
    /// Returns the number of the rank's next shrink that excludes these ranks. It is the same for all that take part.
    fn next_shrink(&mut self, excluded: &[Rank]) -> SequenceNumber {
        let mut hasher = DefaultHasher::new();
        excluded.hash(&mut hasher);
        let count = self.shrinks.get_or_insert_with(hasher.finish(), || 0);
        *count += 1;
        count.hash(&mut hasher);
        SequenceNumber(FIRST_SHRINK | hasher.finish() >> 1)
    }
}

impl ManagementCall {
    /// Returns whether a rank in this process has called.
    pub(crate) fn has_participant_here(&self, ranks: &Ranks<RankState>) -> bool {
        self.participants
            .iter()
            .any(|(rank, participant)| participant.is_some() && ranks[rank].process.is_none())
    }

    fn new(world_size: usize) -> Self {
        Self { participants: Ranks::new(world_size, |_| None), excluded: Vec::new(), failed: None }
    }
}

impl Link {
    /// Returns the link for a communicator created by a split; every process computes the same tag. Returns `None` if
    /// all of the communicator's ranks are in this process.
    fn of_child(&self, split: SequenceNumber, color: i32, ranks: &Ranks<RankState>) -> Option<Self> {
        let mut others: Vec<ProcessNumber> =
            ranks.values().filter_map(|rank| Some(rank.process?.number)).collect();
        others.sort_unstable();
        others.dedup();
        let mut hasher = DefaultHasher::new();
        (self.tag, split, color).hash(&mut hasher);
        // The tag of the first communicator is reserved.
        let tag = CommTag(hasher.finish()).max(FIRST_SPLIT_TAG);
        (!others.is_empty()).then_some(Self { session: self.session, tag, others })
    }
}

impl ManagementCall {
    /// Returns whether the call is waiting for one of these ranks.
    pub(crate) fn lacks_any(&self, ranks: &[Rank]) -> bool {
        self.failed.is_none() && ranks.iter().any(|&rank| self.lacks(rank))
    }

    /// Returns whether all ranks have called and the call has not failed.
    fn is_complete(&self) -> bool {
        self.failed.is_none() && !self.participants.iter().any(|(rank, _)| self.lacks(rank))
    }

    /// Returns whether a rank has to call, but has not.
    fn lacks(&self, rank: Rank) -> bool {
        self.participants[rank].is_none() && !self.excluded.contains(&rank)
    }

    /// Returns the name of the function.
    pub(crate) fn function(&self) -> Option<&'static str> {
        self.participants.values().flatten().next().map(|participant| participant.purpose.function())
    }

    /// Returns a report if the ranks have made different calls.
    fn disagreement(&self) -> Option<Report> {
        let participants = self.participants.values().flatten();
        let functions: Vec<_> = participants.map(|participant| participant.purpose.function()).collect();
        if functions.windows(2).all(|pair| pair[0] == pair[1]) {
            let calls = self.participants.iter().filter_map(|(rank, participant)| match participant {
                Some(Participant { purpose: Purpose::Grow(grow), call_site, .. }) => {
                    Some((rank, *grow, call_site))
                }
                _ => None,
            });
            return Grow::disagreement(&calls.collect::<Vec<_>>());
        }
        let mut report = Report::new("ranks disagree about a call that all of them make together");
        for (rank, participant) in self.participants.iter() {
            let Some(Participant { purpose, call_site, .. }) = participant else { continue };
            report = report.at(format!("rank {rank}: {}", purpose.function()), call_site);
        }
        Some(report.help("every rank must make the same calls in the same order"))
    }
}

impl Communicator {
    /// Returns the split or finalize with this number, creating it if necessary.
    fn management_call_or_new(&mut self, sequence: SequenceNumber) -> &mut ManagementCall {
        let world_size = self.ranks.len();
        self.management_calls.entry(sequence).or_insert_with(|| ManagementCall::new(world_size))
    }

    /// Returns whether a split or finalize is complete or has failed.
    pub(crate) fn is_complete_or_failed(&self, sequence: SequenceNumber) -> bool {
        self.management_calls.get(&sequence).is_none_or(|call| call.failed.is_some())
    }

    /// Returns the error from a split or finalize, if it failed.
    pub(crate) fn management_failure(&self, sequence: SequenceNumber) -> Option<Error<NcclStatus>> {
        self.management_calls.get(&sequence)?.failed.clone()
    }

    /// Returns the ranks that have not called a split or finalize, sorted by number.
    pub(crate) fn absent(&self, sequence: SequenceNumber) -> Vec<(Rank, Missing)> {
        // A completed call has been forgotten, so no rank is missing.
        let call = self.management_calls.get(&sequence).filter(|call| call.failed.is_none());
        let ranks =
            call.into_iter().flat_map(|call| call.participants.iter().map(move |(rank, _)| (call, rank)));
        let absent = ranks.filter(|(call, rank)| call.lacks(*rank));
        absent.map(|(_, rank)| (rank, self.ranks[rank].absence())).collect()
    }

    /// Removes a split or finalize that all ranks have called. Returns the ranks that get a communicator, by color.
    fn take_joiners(&mut self, sequence: SequenceNumber) -> BTreeMap<i32, Vec<Joiner>> {
        let mut colors: BTreeMap<i32, Vec<Joiner>> = BTreeMap::new();
        let call = self.management_calls.remove(&sequence);
        for (rank, participant) in call.into_iter().flat_map(|call| call.participants) {
            let Some(Participant { purpose, thread, call_site }) = participant else { continue };
            let joiner = match purpose {
                Purpose::Split { color, key, config, child } => Some((color, key, config, child)),
                Purpose::Shrink { config, child, .. } => Some((0, 0, config, child)),
                Purpose::Finalize | Purpose::Suspend | Purpose::Resume => None,
                Purpose::Grow(grow) => {
                    self.grown.extend(grow.id.map(|id| (sequence, id)));
                    None
                }
                Purpose::Window(window) => {
                    if let Some(Child { handle, deliver }) = window {
                        deliver(handle);
                    }
                    None
                }
            };
            if let Some((color, key, config, child)) = joiner.filter(|(color, ..)| *color != NO_COLOR) {
                let RankState { device, process, .. } = self.ranks[rank];
                let state = match process {
                    Some(process) => RankState::elsewhere(process, device, config),
                    None => RankState::new(device, thread, config),
                };
                colors.entry(color).or_default().push((key, state, child, call_site));
            }
        }
        colors
    }

    /// Records that a rank in another process has called a split or finalize.
    pub(crate) fn joins_elsewhere(
        &mut self,
        sequence: SequenceNumber,
        rank: Rank,
        joins: Joins,
        call_site: CallSite,
    ) {
        let Joins { kind, color, key, blocking, excluded, world_size, id } = joins;
        let config = CommConfig { blocking };
        let purpose = match kind {
            SPLIT => Purpose::Split { color, key, config, child: None },
            SHRINK => Purpose::Shrink { excluded: excluded.clone(), config, child: None },
            WINDOW => Purpose::Window(None),
            SUSPEND => Purpose::Suspend,
            RESUME => Purpose::Resume,
            GROW => Purpose::Grow(Grow { world_size, id }),
            _ => Purpose::Finalize,
        };
        if kind != SHRINK {
            self.ranks[rank].management_calls = sequence;
        }
        let call = self.management_call_or_new(sequence);
        call.excluded = excluded;
        call.participants[rank] = Some(Participant { purpose, thread: ThreadKey::ELSEWHERE, call_site });
    }

    /// Adds the ranks that are waiting in a split or finalize to a report.
    pub(crate) fn waiting_participants(&self, sequence: SequenceNumber, mut report: Report) -> Report {
        let call = self.management_calls.get(&sequence);
        let mut sides: Vec<(Vec<Rank>, &Participant)> = Vec::new();
        for (rank, participant) in call.into_iter().flat_map(|call| call.participants.iter()) {
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
}

impl State {
    /// Returns whether a thread has to wait until this completes.
    ///
    /// # Errors
    /// Returns `InternalError` if a member's communicator is gone.
    pub(crate) fn is_blocking(&self, awaiting: Awaiting) -> NcclResult<bool> {
        Ok(match awaiting {
            Awaiting::Communicator(handle) => match self.memberships.get(&handle) {
                Some(Membership::Joining(_, config)) => config.blocking,
                Some(&Membership::Member { comm, rank }) => {
                    self.communicator(comm)?.ranks[rank].config.blocking
                }
                _ => true,
            },
            // Its ranks may have aborted inside the group.
            Awaiting::Management(id) => self
                .communicators
                .get(&id.comm)
                .is_none_or(|comm| comm.ranks.values().all(|rank| rank.awaits != Some(id.sequence))),
        })
    }

    /// Fails a split or finalize: every rank that has called gets the same error.
    pub(crate) fn fail_management_call(
        &mut self,
        id: ManagementId,
        status: NcclStatus,
        failure: &Failure,
    ) -> NcclResult<()> {
        self.publish_failure(CallKey::Management(id), status, failure)?;
        self.management_call_failed(id, status, failure)
    }

    /// Like [`Self::fail_management_call`], but for a failure that the other processes already know about. Only the
    /// first failure is kept.
    pub(crate) fn management_call_failed(
        &mut self,
        id: ManagementId,
        status: NcclStatus,
        failure: &Failure,
    ) -> NcclResult<()> {
        let call = self.communicator_mut(id.comm)?.management_call_or_new(id.sequence);
        if call.failed.is_some() {
            return Ok(());
        }
        let error = Error::new(status, failure.report.clone());
        call.failed = Some(error.clone());
        let purposes = call.participants.values().flatten().map(|participant| &participant.purpose);
        let children = purposes.filter_map(|purpose| Some(purpose.joining()?.0));
        for handle in children.collect::<Vec<_>>() {
            self.memberships.insert(handle, Membership::Failed(error.clone()));
        }
        Ok(())
    }
}

impl Locked<'_> {
    /// Adds a rank to its next split or finalize; the last rank completes it.
    fn join_management_call(
        &mut self,
        comm: CommId,
        rank: Rank,
        purpose: Purpose,
    ) -> NcclResult<(Awaiting, bool)> {
        let thread = self.engine.current_thread();
        let participant = Participant { purpose, thread, call_site: CallSite::here() };
        let entry = self.nccl.communicator_mut(comm)?;
        entry.used_by(rank, thread);
        let own = &mut entry.ranks[rank];
        let sequence = match &participant.purpose {
            Purpose::Shrink { excluded, .. } => own.next_shrink(excluded),
            _ => {
                own.management_calls = own.management_calls.next();
                own.management_calls
            }
        };
        match participant.purpose {
            Purpose::Finalize => own.finalized = true,
            Purpose::Suspend => own.suspended = true,
            Purpose::Resume => own.suspended = false,
            Purpose::Split { .. } | Purpose::Shrink { .. } | Purpose::Window(_) | Purpose::Grow(_) => {}
        }
        let blocking = own.config.blocking;
        own.awaits = (!blocking).then_some(sequence);
        let id = ManagementId { comm, sequence };
        if let Some((handle, config)) = participant.purpose.joining() {
            let joining = Membership::Joining(Gathering::Split(id), config);
            self.nccl.memberships.insert(handle, joining);
        }
        let other = |kind| {
            let excluded = Vec::new();
            Joins { kind, color: NO_COLOR, key: 0, blocking, excluded, world_size: 0, id: None }
        };
        let joins = match &participant.purpose {
            Purpose::Split { color, key, config, .. } => {
                Joins { color: *color, key: *key, blocking: config.blocking, ..other(SPLIT) }
            }
            Purpose::Shrink { excluded, config, .. } => {
                Joins { blocking: config.blocking, excluded: excluded.clone(), ..other(SHRINK) }
            }
            Purpose::Finalize => other(FINALIZE),
            Purpose::Window(_) => other(WINDOW),
            Purpose::Suspend => other(SUSPEND),
            Purpose::Resume => other(RESUME),
            Purpose::Grow(Grow { world_size, id }) => {
                Joins { world_size: *world_size, id: *id, ..other(GROW) }
            }
        };
        let entry = self.nccl.communicator_mut(comm)?;
        let call = entry.management_call_or_new(sequence);
        call.excluded.clone_from(&joins.excluded);
        let event = Event::Joins { rank, sequence, joins, call_site: participant.call_site.clone() };
        call.participants[rank] = Some(participant);
        self.nccl.publish(comm, &event)?;
        self.complete_if_all_joined(id)?;
        Ok((Awaiting::Management(id), blocking))
    }

    /// Completes a split or finalize once all ranks have called.
    ///
    /// # Errors
    /// Returns `InternalError` if its communicator is gone.
    pub(crate) fn complete_if_all_joined(&mut self, id: ManagementId) -> NcclResult<()> {
        let comm = self.nccl.communicator_mut(id.comm)?;
        let call = comm.management_calls.get(&id.sequence);
        // Otherwise, it is waiting for other ranks or has failed.
        let Some(call) = call.filter(|call| call.is_complete()) else { return Ok(()) };
        if let Some(report) = call.disagreement() {
            let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
            return self.nccl.fail_management_call(id, NcclStatus::InvalidUsage, &failure);
        }
        let function = call.function().unwrap_or_default();
        let parent = comm.link.clone();
        for (color, mut members) in comm.take_joiners(id.sequence) {
            if members.iter().all(|(_, _, child, _)| child.is_none()) {
                continue;
            }
            // The sort is stable, so ranks with the same key keep their order.
            members.sort_by_key(|(key, ..)| *key);
            let call_site = members[0].3.clone();
            let (states, children): (Vec<_>, Vec<_>) =
                members.into_iter().map(|(_, rank, child, _)| (rank, child)).unzip();
            let ranks = Ranks::from(states);
            let handles = children.iter().map(|child| child.as_ref().map(|child| child.handle)).collect();
            let link = parent.as_ref().and_then(|parent| parent.of_child(id.sequence, color, &ranks));
            self.add_communicator(function, ranks, &handles, call_site, link)?;
            for Child { handle, deliver } in children.into_iter().flatten() {
                deliver(handle);
            }
        }
        Ok(())
    }

    /// Fails a split or finalize whose other ranks have not called within the timeout.
    ///
    /// # Errors
    /// Returns `InternalError` if its communicator is gone.
    pub(crate) fn give_up_management_call(&mut self, id: ManagementId) -> NcclResult<()> {
        let report = deadlock_report(self.engine, self.nccl, &[CallKey::Management(id)].into())
            .fact(given_up(self.engine.bootstrap_timeout));
        let failure = Failure::announce(CudaStatus::LaunchTimeout, &report);
        self.nccl.fail_management_call(id, NcclStatus::Timeout, &failure)
    }
}
