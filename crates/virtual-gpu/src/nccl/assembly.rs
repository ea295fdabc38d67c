//! Calls that the threads of all ranks of a communicator make together and wait in: split and finalize.

use std::collections::BTreeMap;

use super::call::{CallKey, Missing};
use super::communicator::{CommHandle, Communicator, Gathering, Rank};
use super::config::CommConfig;
use super::log;
use crate::engine::{Engine, Failure, State, Wait};
use crate::report::{Report, ranks};
use crate::site::Site;
use crate::status::{CudaStatus, Error, NcclResult, NcclStatus};
use crate::thread::ThreadKey;

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
    Split { color: i32, key: i32, child: Option<Child> },
    Finalize,
}

/// A rank's end of a communicator that a split makes.
struct Child {
    handle: CommHandle,
    config: CommConfig,
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
        let child =
            (color != NO_COLOR).then(|| Child { handle: CommHandle(state.new_handle()), config, deliver });
        self.attend(clique, rank, Purpose::Split { color, key, child }, state)
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
        mut state: std::sync::MutexGuard<'_, State>,
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

impl super::Nccl {
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
        let own = &mut entry.ranks[rank];
        own.owner = thread;
        own.assemblies += 1;
        own.finalized |= matches!(attendee.purpose, Purpose::Finalize);
        let (number, blocking) = (own.assemblies, own.config.blocking);
        own.awaits = (!blocking).then_some(number);
        let key = (clique, number);
        if let Purpose::Split { child: Some(child), .. } = &attendee.purpose {
            let joining = Communicator::Joining(Gathering::Assembly(key), child.config);
            self.nccl.communicators.insert(child.handle, joining);
        }
        let assembly = entry
            .assemblies
            .entry(number)
            .or_insert_with(|| Assembly { attendees: (0..size).map(|_| None).collect(), failed: None });
        assembly.attendees[rank] = Some(attendee);
        if assembly.failed.is_none() && assembly.attendees.iter().all(Option::is_some) {
            self.hold_assembly(key);
        }
        Ok((Awaiting::Assembly { clique, number }, blocking))
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
        let devices: Vec<usize> = clique.ranks.iter().map(|rank| rank.device).collect();
        let mut colors: BTreeMap<i32, Vec<(i32, Rank, Child, Site)>> = BTreeMap::new();
        for (rank, attendee) in assembly.attendees.into_iter().flatten().enumerate() {
            if let Purpose::Split { color, key, child: Some(child) } = attendee.purpose {
                let rank = Rank::new(devices[rank], attendee.thread, child.config);
                colors.entry(color).or_default().push((key, rank, child, attendee.site));
            }
        }
        for mut members in colors.into_values() {
            // Stable: ranks of one key keep their order.
            members.sort_by_key(|(key, ..)| *key);
            let site = members[0].3.clone();
            let (ranks, children): (Vec<_>, Vec<_>) =
                members.into_iter().map(|(_, rank, child, _)| (rank, child)).unzip();
            let handles: Vec<_> = children.iter().map(|child| child.handle).collect();
            self.add_clique("ncclCommSplit", ranks, &handles, site);
            for Child { handle, deliver, .. } in children {
                deliver(handle);
            }
        }
    }

    /// Ends an assembly: everyone who has come gets the same error.
    pub(super) fn fail_assembly(
        &mut self,
        (clique, number): AssemblyKey,
        status: NcclStatus,
        failure: &Failure,
    ) {
        let error = Error::new(status, failure.report.clone());
        let Some(assembly) =
            self.nccl.cliques.get_mut(&clique).and_then(|clique| clique.assemblies.get_mut(&number))
        else {
            return;
        };
        assembly.failed.get_or_insert_with(|| error.clone());
        for attendee in assembly.attendees.iter().flatten() {
            if let Purpose::Split { child: Some(child), .. } = &attendee.purpose {
                self.nccl.communicators.insert(child.handle, Communicator::Failed(error.clone()));
            }
        }
    }

    /// Ends assemblies whose other ranks have not come for too long.
    pub(super) fn give_up_assembly(&mut self, (clique, number): AssemblyKey, given_up: &str) {
        let report =
            super::deadlock_report(self, &[CallKey::Assembly { clique, number }].into()).fact(given_up);
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
