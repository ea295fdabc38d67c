//! Calls that the threads of all ranks of a communicator make together and wait in: split and finalize.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::call::{CallKey, Missing};
use super::communicator::{CommHandle, Communicator, Gathering, Process, Rank};
use super::config::CommConfig;
use super::event::Event;
use super::log;
use super::session::{FIRST_TAG, Link};
use super::wire::structure;
use crate::engine::{Engine, Failure, State, Wait};
use crate::report::{Report, ranks};
use virtual_gpu_core::source_location::Site;
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};
use virtual_gpu_core::sync::MutexGuard;
use virtual_gpu_core::thread::ThreadKey;

/// The colour of a rank that gets no communicator from a split (`NCCL_SPLIT_NOCOLOR`).
pub const NO_COLOR: i32 = -1;

/// Writes a new communicator where its caller wants it, once it can be used.
pub type Deliver = Box<dyn FnOnce(CommHandle) + Send>;

/// A clique, and which of its assemblies it is.
pub(super) type AssemblyKey = (u64, u64);

/// An assembly to which not all ranks have come.
pub(super) struct Assembly {
    attendees: Vec<Option<Attendee>>,
    failed: Option<Error<NcclStatus>>,
}

struct Attendee {
    purpose: Purpose,
    thread: ThreadKey,
    site: Site,
}

/// What a rank comes for.
enum Purpose {
    /// Who has a colour and no child is in another process.
    Split {
        color: i32,
        key: i32,
        config: CommConfig,
        child: Option<Child>,
    },
    Finalize,
}

/// What a rank of another process comes for.
pub(super) struct Attends {
    /// A split, and no finalize.
    splits: bool,
    color: i32,
    key: i32,
    blocking: bool,
}

structure! { Attends { splits, color, key, blocking } }

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
type Joiner = (i32, Rank, Option<Child>, Site);

/// What a thread waits for in a call that makes or ends communicators.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Awaiting {
    /// A communicator that is made from an id.
    Communicator(CommHandle),
    /// One rank's part of an assembly.
    Assembly { clique: u64, number: u64 },
}

impl Awaiting {
    /// The call that is waited for, where it is known who has to come. Who may still come to an id, nobody knows.
    pub(crate) fn call(&self) -> Option<CallKey> {
        match *self {
            Self::Communicator(_) => None,
            Self::Assembly { clique, number } => Some(CallKey::Assembly { clique, number }),
        }
    }
}

impl Engine {
    /// `ncclCommSplit`: ranks of one colour get a communicator, in the order of their keys and then of their ranks. A rank
    /// with [`NO_COLOR`] takes part and gets none. Returns once all ranks have come; `deliver` is called then. Inside a
    /// group, the group's end waits instead.
    ///
    /// # Errors
    /// `InvalidArgument` for another negative colour, `Timeout` where a rank never comes, `InProgress` for a communicator
    /// that is not blocking.
    pub fn nccl_split(
        &self,
        comm: CommHandle,
        color: i32,
        key: i32,
        config: Option<CommConfig>,
        deliver: Deliver,
    ) -> NcclResult<()> {
        let mut state = self.state();
        let (clique, rank) = state.nccl.ready_member(comm)?;
        if color < 0 && color != NO_COLOR {
            let message =
                format!("ncclCommSplit: color {color}: it is 0 or more, or NCCL_SPLIT_NOCOLOR ({NO_COLOR})");
            return Err(Error::new(NcclStatus::InvalidArgument, message));
        }
        let config = config.unwrap_or(state.nccl.cliques[&clique].ranks[rank].config);
        let child = (color != NO_COLOR).then(|| Child { handle: CommHandle(state.new_handle()), deliver });
        self.attend(clique, rank, Purpose::Split { color, key, config, child }, state)
    }

    /// `ncclCommFinalize`: returns once what the rank has enqueued is done and all ranks have come.
    ///
    /// # Errors
    /// `InvalidArgument` the second time, `Timeout` where a rank never comes, `InProgress` for a communicator that is not
    /// blocking.
    pub fn nccl_finalize(&self, comm: CommHandle) -> NcclResult<()> {
        let state = self.state();
        let (clique, rank) = state.nccl.ready_member(comm)?;
        log::ended("Finalize", &state, comm, clique, rank);
        let entry = &state.nccl.cliques[&clique].ranks[rank];
        if let Some(last) = entry.last.as_ref().filter(|_| entry.config.blocking) {
            let ops = vec![last.op];
            let state = self.block_on(Wait::Ops(ops), "ncclCommFinalize", state);
            return self.attend(clique, rank, Purpose::Finalize, state);
        }
        self.attend(clique, rank, Purpose::Finalize, state)
    }

    fn attend(
        &self,
        clique: u64,
        rank: usize,
        purpose: Purpose,
        mut state: MutexGuard<'_, State>,
    ) -> NcclResult<()> {
        let function = purpose.function();
        let (awaiting, blocking) = state.attend(clique, rank, purpose)?;
        if state.thread().group.is_open() {
            state.thread().group.joining.push(awaiting);
            return Ok(());
        }
        if !blocking {
            drop(state);
            self.wake_all();
            return Err(NcclStatus::InProgress.into());
        }
        self.finish_joining(vec![awaiting], function, state)
    }
}

impl Assembly {
    /// Whether a rank of this process has come.
    pub(super) fn has_attendee_here(&self, ranks: &[Rank]) -> bool {
        self.attendees.iter().zip(ranks).any(|(attendee, rank)| attendee.is_some() && rank.process.is_none())
    }

    fn new(ranks: usize) -> Self {
        Self { attendees: (0..ranks).map(|_| None).collect(), failed: None }
    }
}

impl Link {
    /// That of a communicator that a split makes: every process finds the same tag. None where all its ranks are here.
    fn of_child(&self, number: u64, color: i32, ranks: &[Rank]) -> Option<Self> {
        let mut others: Vec<u16> = ranks.iter().filter_map(|rank| Some(rank.process?.number)).collect();
        others.sort_unstable();
        others.dedup();
        let mut hasher = DefaultHasher::new();
        (self.tag, number, color).hash(&mut hasher);
        // Never that of the first communicator.
        let tag = hasher.finish().max(FIRST_TAG + 1);
        (!others.is_empty()).then_some(Self { session: self.session, tag, others })
    }
}

impl super::Nccl {
    /// Whether an assembly waits for one of these ranks.
    pub(super) fn lacks_any(&self, key: AssemblyKey, ranks: &[usize]) -> bool {
        let Some(assembly) = self.assembly(key).filter(|assembly| assembly.failed.is_none()) else {
            return false;
        };
        ranks.iter().any(|&rank| assembly.attendees[rank].is_none())
    }

    pub(super) fn assembly(&self, (clique, number): AssemblyKey) -> Option<&Assembly> {
        self.cliques.get(&clique)?.assemblies.get(&number)
    }

    /// Whether a thread waits until it is over.
    pub(super) fn is_blocking(&self, awaiting: Awaiting) -> bool {
        match awaiting {
            Awaiting::Communicator(handle) => match self.communicators.get(&handle) {
                Some(Communicator::Joining(_, config)) => config.blocking,
                Some(&Communicator::Member { clique, rank }) => {
                    self.cliques[&clique].ranks[rank].config.blocking
                }
                _ => true,
            },
            Awaiting::Assembly { clique, number } => self
                .cliques
                .get(&clique)
                .is_none_or(|clique| clique.ranks.iter().all(|rank| rank.awaits != Some(number))),
        }
    }

    /// Whether an assembly has been held, or has failed.
    pub(super) fn is_held(&self, key: AssemblyKey) -> bool {
        self.assembly(key).is_none_or(|assembly| assembly.failed.is_some())
    }

    /// Why an assembly failed, if it did.
    pub(super) fn assembly_failure(&self, key: AssemblyKey) -> Option<Error<NcclStatus>> {
        self.assembly(key)?.failed.clone()
    }

    /// The ranks that have not come to an assembly, in the order of their numbers.
    pub(super) fn absent(&self, key: AssemblyKey) -> Vec<(usize, Missing)> {
        let (Some(clique), Some(assembly)) = (self.cliques.get(&key.0), self.assembly(key)) else {
            return Vec::new();
        };
        if assembly.failed.is_some() {
            return Vec::new();
        }
        let all = clique.ranks.iter().zip(&assembly.attendees).enumerate();
        all.filter(|(_, (_, attendee))| attendee.is_none())
            .map(|(rank, (entry, _))| (rank, entry.absence()))
            .collect()
    }
}

impl State {
    /// A rank comes to its next assembly; the last one makes it happen.
    fn attend(&mut self, clique: u64, rank: usize, purpose: Purpose) -> NcclResult<(Awaiting, bool)> {
        let thread = self.current_thread();
        let attendee = Attendee { purpose, thread, site: Site::here() };
        let Some(entry) = self.nccl.cliques.get_mut(&clique) else {
            return Err(Error::new(NcclStatus::InvalidArgument, "the communicator is gone"));
        };
        let size = entry.ranks.len();
        entry.used_by(rank, thread);
        let own = &mut entry.ranks[rank];
        own.assemblies += 1;
        own.finalized |= matches!(attendee.purpose, Purpose::Finalize);
        let (number, blocking) = (own.assemblies, own.config.blocking);
        own.awaits = (!blocking).then_some(number);
        let key = (clique, number);
        let attends = match &attendee.purpose {
            Purpose::Split { color, key: order, config, child } => {
                if let Some(child) = child {
                    let joining = Communicator::Joining(Gathering::Assembly(key), *config);
                    self.nccl.communicators.insert(child.handle, joining);
                }
                Attends { splits: true, color: *color, key: *order, blocking: config.blocking }
            }
            Purpose::Finalize => Attends { splits: false, color: NO_COLOR, key: 0, blocking },
        };
        let event = Event::Attends { rank, number, attends, site: attendee.site.clone() };
        let assembly = entry.assemblies.entry(number).or_insert_with(|| Assembly::new(size));
        assembly.attendees[rank] = Some(attendee);
        self.publish(clique, &event);
        self.hold_if_complete(key);
        Ok((Awaiting::Assembly { clique, number }, blocking))
    }

    /// A rank of another process comes to an assembly.
    pub(super) fn attends_elsewhere(&mut self, key: AssemblyKey, rank: usize, attends: Attends, site: Site) {
        let Attends { splits, color, key: order, blocking } = attends;
        let purpose = match splits {
            true => Purpose::Split { color, key: order, config: CommConfig { blocking }, child: None },
            false => Purpose::Finalize,
        };
        let Some(entry) = self.nccl.cliques.get_mut(&key.0) else { return };
        let size = entry.ranks.len();
        entry.ranks[rank].assemblies = key.1;
        let assembly = entry.assemblies.entry(key.1).or_insert_with(|| Assembly::new(size));
        assembly.attendees[rank] = Some(Attendee { purpose, thread: ThreadKey::ELSEWHERE, site });
        self.hold_if_complete(key);
    }

    fn hold_if_complete(&mut self, key: AssemblyKey) {
        let Some(assembly) = self.nccl.assembly(key) else { return };
        if assembly.failed.is_none() && assembly.attendees.iter().all(Option::is_some) {
            self.hold_assembly(key);
        }
    }

    /// All ranks have come.
    fn hold_assembly(&mut self, key: AssemblyKey) {
        let Some(assembly) = self.nccl.assembly(key) else { return };
        let attendees: Vec<&Attendee> = assembly.attendees.iter().flatten().collect();
        let functions: Vec<_> = attendees.iter().map(|attendee| attendee.purpose.function()).collect();
        if functions.windows(2).any(|pair| pair[0] != pair[1]) {
            let mut report = Report::new("ranks disagree about a call that all of them make together");
            for (rank, (attendee, function)) in attendees.iter().zip(functions).enumerate() {
                report = report.at(format!("rank {rank}: {function}"), &attendee.site);
            }
            let report = report.help("every rank must make the same calls in the same order");
            let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
            self.fail_assembly(key, NcclStatus::InvalidUsage, &failure);
            return;
        }
        let Some(clique) = self.nccl.cliques.get_mut(&key.0) else { return };
        let Some(assembly) = clique.assemblies.remove(&key.1) else { return };
        let places: Vec<(usize, Option<Process>)> =
            clique.ranks.iter().map(|rank| (rank.device, rank.process)).collect();
        let parent = clique.link.clone();
        let mut colors: BTreeMap<i32, Vec<Joiner>> = BTreeMap::new();
        for ((device, process), attendee) in places.into_iter().zip(assembly.attendees.into_iter().flatten())
        {
            if let Purpose::Split { color, key, config, child } = attendee.purpose
                && color != NO_COLOR
            {
                let rank = match process {
                    Some(process) => Rank::elsewhere(process, device, config),
                    None => Rank::new(device, attendee.thread, config),
                };
                colors.entry(color).or_default().push((key, rank, child, attendee.site));
            }
        }
        for (color, mut members) in colors {
            if members.iter().all(|(_, _, child, _)| child.is_none()) {
                continue;
            }
            // Stable: ranks of one key keep their order.
            members.sort_by_key(|(key, ..)| *key);
            let site = members[0].3.clone();
            let (ranks, children): (Vec<_>, Vec<_>) =
                members.into_iter().map(|(_, rank, child, _)| (rank, child)).unzip();
            let handles: Vec<_> =
                children.iter().map(|child| child.as_ref().map(|child| child.handle)).collect();
            let link = parent.as_ref().and_then(|parent| parent.of_child(key.1, color, &ranks));
            self.add_clique("ncclCommSplit", ranks, &handles, site, link);
            for Child { handle, deliver } in children.into_iter().flatten() {
                deliver(handle);
            }
        }
    }

    /// Ends an assembly: everyone who has come gets the same error.
    pub(super) fn fail_assembly(&mut self, key: AssemblyKey, status: NcclStatus, failure: &Failure) {
        let (clique, number) = key;
        self.publish_failure(CallKey::Assembly { clique, number }, status, failure);
        self.assembly_failed(key, status, failure);
    }

    /// As [`Self::fail_assembly`], where the other processes know. The first failure stays.
    pub(super) fn assembly_failed(
        &mut self,
        (clique, number): AssemblyKey,
        status: NcclStatus,
        failure: &Failure,
    ) {
        let error = Error::new(status, failure.report.clone());
        let Some(clique) = self.nccl.cliques.get_mut(&clique) else { return };
        let ranks = clique.ranks.len();
        let assembly = clique.assemblies.entry(number).or_insert_with(|| Assembly::new(ranks));
        if assembly.failed.is_some() {
            return;
        }
        assembly.failed = Some(error.clone());
        for attendee in assembly.attendees.iter().flatten() {
            if let Purpose::Split { child: Some(child), .. } = &attendee.purpose {
                self.nccl.communicators.insert(child.handle, Communicator::Failed(error.clone()));
            }
        }
    }

    /// Ends assemblies whose other ranks have not come for too long.
    pub(super) fn give_up_assembly(&mut self, (clique, number): AssemblyKey) {
        let report = super::deadlock_report(self, &[CallKey::Assembly { clique, number }].into())
            .fact(super::given_up(self.patience));
        let failure = Failure::announce(CudaStatus::LaunchTimeout, &report);
        self.fail_assembly((clique, number), NcclStatus::Timeout, &failure);
    }
}

/// Adds who waits in an assembly to a report.
pub(super) fn waiting_attendees(state: &State, key: AssemblyKey, mut report: Report) -> Report {
    let Some(assembly) = state.nccl.assembly(key) else { return report };
    let mut sides: Vec<(Vec<usize>, &Attendee)> = Vec::new();
    for (rank, attendee) in assembly.attendees.iter().enumerate() {
        let Some(attendee) = attendee else { continue };
        let line = attendee.site.line();
        match sides.iter_mut().find(|(_, other)| other.site.line() == line) {
            Some((ranks, _)) => ranks.push(rank),
            None => sides.push((vec![rank], attendee)),
        }
    }
    for (of_side, attendee) in sides {
        let verb = if of_side.len() == 1 { "waits" } else { "wait" };
        let text = format!("{} {verb} in {}", ranks(&of_side), attendee.purpose.function());
        report = report.at(text, &attendee.site);
    }
    report
}
