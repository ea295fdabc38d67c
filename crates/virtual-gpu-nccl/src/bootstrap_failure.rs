//! Bootstraps that fail because ranks disagree, share a GPU, or never join.

use std::collections::{BTreeMap, BTreeSet};

use super::bootstrap::{Bootstrap, Member, RankLocation, in_process};
use super::communicator::ranks_share_gpus;
use super::id::UniqueId;
use super::membership::{Gathering, Membership};
use super::session::{Control, ProcessNumber};
use super::{Locked, State};
use virtual_gpu::engine::{Awaiting, given_up};
use virtual_gpu::report::{Report, ranks};
use virtual_gpu_core::handle::{CommHandle, Rank};
use virtual_gpu_core::status::{Error, NcclResult, NcclStatus};

/// The maximum number of missing ranks that a report lists.
const MOST_NAMED: usize = 1024;

impl State {
    /// Ends a bootstrap: every rank that has joined, or joins later, gets the same error.
    pub(crate) fn fail_bootstrap(
        &mut self,
        id: UniqueId,
        status: NcclStatus,
        report: &Report,
        also: Option<RankLocation>,
    ) {
        report.print();
        let error = Error::new(status, report.to_string());
        // Callers have just looked up the bootstrap, so it is never missing here.
        let Some(bootstrap) = self.bootstraps.get_mut(&id) else { return };
        bootstrap.failed = Some(error.clone());
        let locations = bootstrap.members.values().map(|member| member.location).chain(also).collect();
        self.refuse(id, locations, &error);
    }

    /// Makes communicator creation fail for the ranks at these locations.
    pub(crate) fn refuse(&mut self, id: UniqueId, locations: Vec<RankLocation>, error: &Error<NcclStatus>) {
        let mut processes = BTreeSet::new();
        for location in locations {
            match location {
                RankLocation::Here { handle, .. } => {
                    self.memberships.insert(handle, Membership::Failed(error.clone()));
                }
                RankLocation::Elsewhere(process) => drop(processes.insert(process.number)),
            }
        }
        let session = self.gathering.get(&id).and_then(|session| self.sessions.get(session));
        for process in processes {
            let (status, report) = (error.status, error.message.to_string());
            session.inspect(|session| session.send_control(process, &Control::Refused { status, report }));
        }
    }

    /// Fails a bootstrap because a process with some of its ranks ended before the communicator was created.
    pub(crate) fn process_left_bootstrap(&mut self, id: UniqueId, process: ProcessNumber, who: &str) {
        // The process may have connected before any of its ranks joined.
        let Some(bootstrap) = self.bootstraps.get(&id).filter(|bootstrap| bootstrap.failed.is_none()) else {
            return;
        };
        let is_theirs = |member: &Member| member.location.process().is_some_and(|of| of.number == process);
        let of_it = bootstrap.members.iter().filter(|(_, member)| is_theirs(member));
        let lost: Vec<Rank> = of_it.map(|(&rank, _)| rank).collect();
        if !lost.is_empty() {
            let verb = if lost.len() == 1 { "is" } else { "are" };
            let report = Report::new(format!(
                "{} {verb} gone: {who} ended before the communicator was created",
                ranks(&lost)
            ));
            self.fail_bootstrap(id, NcclStatus::RemoteError, &report, None);
        }
    }

    /// Ends a bootstrap that a thread has abandoned; the ranks that have joined get the same error.
    pub(crate) fn leave_bootstrap(&mut self, id: UniqueId, error: &Error<NcclStatus>) {
        let Some(bootstrap) = self.bootstraps.get_mut(&id).filter(|bootstrap| bootstrap.failed.is_none())
        else {
            return;
        };
        bootstrap.failed = Some(error.clone());
        let members = std::mem::take(&mut bootstrap.members).into_values();
        let locations = members.map(|member| member.location);
        let is_still_there = |location: &RankLocation| {
            location.handle().is_none_or(|handle| self.memberships.contains_key(&handle))
        };
        let locations = locations.filter(is_still_there).collect();
        self.refuse(id, locations, error);
    }
}

impl Locked<'_> {
    /// Ends a bootstrap whose remaining ranks have not joined within the timeout.
    pub(crate) fn give_up_bootstrap(&mut self, id: UniqueId) {
        let Some(bootstrap) = self.nccl.bootstraps.get(&id).filter(|bootstrap| bootstrap.failed.is_none())
        else {
            return;
        };
        let absent = Rank::all(bootstrap.world_size).filter(|rank| !bootstrap.members.contains_key(rank));
        // The program can pass any world size, so the length of this list has to be limited.
        let mut missing: Vec<Rank> = absent.take(MOST_NAMED + 1).collect();
        let more = if missing.len() > MOST_NAMED { " and more" } else { "" };
        missing.truncate(MOST_NAMED);
        let headline =
            format!("{}{more} of {} never joined the communicator", ranks(&missing), bootstrap.world_size);
        let mut report = Report::new(headline);
        for (rank, member) in &bootstrap.members {
            let text = format!("rank {rank} waits in ncclCommInitRank{}", in_process(member.location));
            report = report.at(text, &member.call_site);
        }
        let others = self.nccl.bootstraps.len() - 1;
        let report = report.fact(given_up(self.engine.bootstrap_timeout)).help(match others {
            0 => "every rank must call ncclCommInitRank with the same id, each in its own thread or process, or in one group",
            _ => {
                "ranks joined with different ids: create one id and give it to every rank; \
                 ranks that create several communicators must create them in the same order"
            }
        });
        self.nccl.fail_bootstrap(id, NcclStatus::Timeout, &report, None);
    }

    /// Checks how long a thread has been polling a communicator that is still being created, and gives up after the
    /// timeout.
    pub(crate) fn poll_joining(&mut self, handle: CommHandle) -> NcclResult<()> {
        let since = match self.nccl.memberships.get(&handle) {
            Some(Membership::Joining(Gathering::Id(id), _)) => {
                self.nccl.bootstraps.get(id).map(|bootstrap| bootstrap.since)
            }
            Some(Membership::Joining(Gathering::Remote(session), _)) => {
                self.nccl.sessions.get(session).map(|session| session.since)
            }
            _ => None,
        };
        if since.is_some_and(|since| since.elapsed() > self.engine.bootstrap_timeout.duration) {
            self.give_up_joining(&[Awaiting::Communicator(handle)])?;
        }
        Ok(())
    }
}

/// Returns a report if two ranks share a GPU and are not allowed to.
pub(crate) fn shared_gpu(bootstrap: &Bootstrap) -> Option<Report> {
    if ranks_share_gpus() {
        return None;
    }
    let mut seen = BTreeMap::new();
    bootstrap.members.iter().find_map(|(&rank, member)| {
        let (first, other) = seen.insert(member.gpu, (rank, member))?;
        let text = |rank: Rank, member: &Member| {
            format!(
                "rank {rank}: ncclCommInitRank with GPU {} current{}",
                member.device,
                in_process(member.location)
            )
        };
        let report = Report::new(format!("ranks {first} and {rank} are both on GPU {}", member.gpu.index))
            .at(text(first, other), &other.call_site)
            .at(text(rank, member), &member.call_site);
        Some(report.help(match member.location.process().or(other.location.process()) {
            None => "bind each rank's own context first: stream.context().bind_to_thread()?",
            Some(_) => "each process needs its own GPU: CudaContext::new(rank)?, or CUDA_VISIBLE_DEVICES",
        }))
    })
}

pub(crate) fn disagreement_about_size(
    bootstrap: &Bootstrap,
    world_size: usize,
    rank: Rank,
    member: &Member,
) -> Report {
    let mut sides: BTreeSet<(Rank, usize)> =
        bootstrap.members.keys().map(|&rank| (rank, bootstrap.world_size)).collect();
    sides.insert((rank, world_size));
    let mut report = Report::new("ranks with the same id disagree about the world size");
    for (rank, size) in sides {
        let side = match bootstrap.members.get(&rank) {
            Some(known) if size == bootstrap.world_size => known,
            _ => member,
        };
        let text = format!("rank {rank} of {size}: ncclCommInitRank{}", in_process(side.location));
        report = report.at(text, &side.call_site);
    }
    report.help("every rank must pass the same number of ranks")
}
