//! Collectives: matched by number, run when every rank's stream has come to them.

use std::sync::Arc;

use super::call::{CallKey, Checked, Missing, Request};
use super::communicator::{Clique, LastCall};
use super::event::{Arrived, Event};
use super::operation::{Buffers, Operation, Plan};
use super::run::Job;
use crate::engine::{Awaited, Failure, OpRef, State, Work};
use crate::report::{Report, ranks};
use virtual_gpu_core::source_location::Site;
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};

/// Facts of a report of ranks whose GPUs have failed: why the GPU that it names has, and why the first has.
const ITS_FAILURE: &str = "its failure: ";
const CAUSE: &str = "the first failure: ";

/// A collective's clique, and its number there.
pub(super) type CollectiveKey = (u64, u64);

/// One collective, as its ranks come to it.
pub(super) struct Call {
    pub(super) parts: Vec<Option<Part>>,
    pub(super) running: bool,
    pub(super) failure: Option<Failure>,
}

impl Call {
    fn new(ranks: usize) -> Self {
        Self { parts: (0..ranks).map(|_| None).collect(), running: false, failure: None }
    }
}

/// One rank's part in a call.
pub(super) struct Part {
    pub(super) operation: Operation,
    /// Its place among its rank's launches that were captured; `None` outside of a graph.
    captured: Option<u64>,
    pub(super) site: Site,
    /// Its stream has come to it.
    pub(super) arrived: bool,
    /// Its rank has aborted.
    pub(super) cancelled: bool,
    pub(super) place: Place,
}

/// Where a rank's part is done.
pub(super) enum Place {
    Here {
        op: OpRef,
        buffers: Buffers,
        device: usize,
        /// The other processes have what it gives.
        told: bool,
        plan: Plan,
    },
    /// In another process, from which this came with its arrival.
    Elsewhere(Option<Arc<Arrived>>),
}

impl Call {
    /// Whether every rank has come, and every process knows what the others give.
    fn is_complete(&self) -> bool {
        self.parts.iter().all(|part| {
            part.as_ref().is_some_and(|part| {
                let known = match part.place {
                    Place::Here { told, .. } => told || self.is_local(),
                    Place::Elsewhere(_) => true,
                };
                part.arrived && !part.cancelled && known
            })
        })
    }

    /// Whether a rank of this process has called it.
    pub(super) fn has_part_here(&self) -> bool {
        self.parts.iter().flatten().any(|part| part.op().is_some())
    }

    /// Whether all parts are done in this process.
    fn is_local(&self) -> bool {
        self.parts.iter().flatten().all(|part| part.op().is_some())
    }
}

impl Clique {
    /// Whether every rank that is here has called this collective, and it is over.
    fn is_past(&self, number: u64) -> bool {
        let mut here = self.ranks.iter().filter(|rank| rank.process.is_none());
        !self.calls.contains_key(&number) && here.all(|rank| rank.issued >= number)
    }
}

impl Part {
    /// Its operation in a stream of this process.
    pub(super) fn op(&self) -> Option<OpRef> {
        match self.place {
            Place::Here { op, .. } => Some(op),
            Place::Elsewhere(_) => None,
        }
    }
}

impl super::Nccl {
    pub(super) fn call(&self, (clique, number): CollectiveKey) -> Option<&Call> {
        self.cliques.get(&clique)?.calls.get(&number)
    }

    fn call_mut(&mut self, (clique, number): CollectiveKey) -> Option<&mut Call> {
        self.cliques.get_mut(&clique)?.calls.get_mut(&number)
    }

    /// The ranks that have not come to a collective, in the order of their numbers.
    pub(super) fn missing_ranks(&self, key: CollectiveKey) -> Vec<(usize, Missing)> {
        let (Some(clique), Some(call)) = (self.cliques.get(&key.0), self.call(key)) else {
            return Vec::new();
        };
        if call.failure.is_some() || call.running {
            return Vec::new();
        }
        let ranks = clique.ranks.iter().zip(&call.parts).enumerate();
        ranks
            .filter_map(|(rank, (entry, part))| match part {
                Some(part) if part.cancelled => Some((rank, Missing::Gone)),
                Some(part) if part.arrived => None,
                Some(part) => Some((rank, part.op().map_or(Missing::Elsewhere, Missing::InStream))),
                None => Some((rank, entry.absence())),
            })
            .collect()
    }
}

impl State {
    /// Enqueues one rank's part of a collective, to come after others.
    pub(super) fn enqueue_collective(&mut self, checked: Checked, after: Vec<Awaited>) -> NcclResult<()> {
        let Checked { clique, rank, stream, request, captured, site, plan, .. } = checked;
        let (Request::Collective(operation, buffers), Some(plan)) = (request, plan) else { return Ok(()) };
        let owner = self.current_thread();
        let Some(entry) = self.nccl.cliques.get_mut(&clique) else {
            return Err(Error::new(NcclStatus::InvalidArgument, "the communicator is gone"));
        };
        entry.check_all_there()?;
        let number = entry.ranks[rank].issued + 1;
        let (world_size, device) = (entry.ranks.len(), entry.ranks[rank].device);
        let work = Work::Collective(CallKey::Collective { clique, number });
        let Awaited { op, when, .. } = self.enqueue(stream, work, after, site.clone())?;
        self.time.communicates(&when, plan.nanoseconds, || plan.label(&operation, rank, world_size));
        let Some(entry) = self.nccl.cliques.get_mut(&clique) else { return Ok(()) };
        entry.ranks[rank].last = Some(LastCall { request, op, site: site.clone(), told_not_yet: false });
        entry.ranks[rank].issued = number;
        entry.used_by(rank, owner);
        let call = entry.calls.entry(number).or_insert_with(|| Call::new(world_size));
        let event = Event::Called { rank, number, operation, captured, site: site.clone() };
        let place = Place::Here { op, buffers, device, told: false, plan };
        call.parts[rank] = Some(Part { operation, captured, site, arrived: false, cancelled: false, place });
        self.publish(clique, &event);
        self.compare_parts((clique, number));
        Ok(())
    }

    /// Once every rank has called: do they agree?
    fn compare_parts(&mut self, key: CollectiveKey) {
        let Some(call) = self.nccl.call(key) else { return };
        if call.failure.is_some() || call.parts.iter().any(Option::is_none) {
            return;
        }
        let parts: Vec<&Part> = call.parts.iter().flatten().collect();
        let report = if parts.windows(2).any(|pair| pair[0].operation != pair[1].operation) {
            disagreement(&parts, key.1)
        } else if parts.windows(2).any(|pair| pair[0].captured != pair[1].captured) {
            captured_apart(&parts, key.1)
        } else {
            return;
        };
        self.fail_collective(key, &Failure::announce(CudaStatus::LaunchFailed, &report));
    }

    /// One rank's stream has come to a collective. Returns it where it can run now.
    pub(super) fn arrive_at_collective(&mut self, key: CollectiveKey) -> Option<Job> {
        let is_linked = self.nccl.cliques.get(&key.0)?.link.is_some();
        let context_failure = if is_linked { None } else { self.part_failure(key) };
        let call = self.nccl.call_mut(key)?;
        let (mut leaving, mut telling) = (Vec::new(), Vec::new());
        for (rank, part) in call.parts.iter_mut().enumerate() {
            let Some(part) = part.as_mut().filter(|part| !part.arrived) else { continue };
            let Some(op) = part.op() else { continue };
            if self.streams.get(&op.stream).is_some_and(|stream| stream.is_at(op)) {
                part.arrived = true;
                if part.cancelled || call.failure.is_some() {
                    leaving.push(op.stream);
                } else if is_linked {
                    telling.push(rank);
                }
            }
        }
        let failure = call.failure.clone();
        let complete = failure.is_none() && !is_linked && call.is_complete();
        call.running = complete && context_failure.is_none();
        let runs = call.running;
        for stream in leaving {
            if let Some(failure) = &failure {
                self.fail_stream(stream, failure);
            }
            self.finish(stream);
        }
        if failure.is_some() {
            self.forget_if_over(key);
        }
        if let Some(report) = context_failure.filter(|_| complete) {
            self.fail_collective(key, &Failure::announce(CudaStatus::LaunchFailed, &report));
        }
        match telling.is_empty() {
            false => Some(Job::Arrivals(key, telling)),
            true => runs.then_some(Job::Collective(key)),
        }
    }

    /// A collective with ranks in other processes, where it can run now.
    pub(super) fn linked_collective(&mut self, key: CollectiveKey) -> Option<Job> {
        let call = self.nccl.call_mut(key)?;
        if call.running || call.failure.is_some() || !call.is_complete() {
            return None;
        }
        call.running = true;
        Some(Job::Collective(key))
    }

    /// The other processes are about to know what a rank gives. `false` where nobody needs it any more.
    pub(super) fn told(&mut self, key: CollectiveKey, rank: usize) -> bool {
        let Some(call) = self.nccl.call_mut(key).filter(|call| call.failure.is_none()) else { return false };
        match &mut call.parts[rank] {
            Some(Part { cancelled: false, place: Place::Here { told, .. }, .. }) => {
                *told = true;
                true
            }
            _ => false,
        }
    }

    /// A rank of another process has called a collective.
    pub(super) fn called_elsewhere(
        &mut self,
        key: CollectiveKey,
        rank: usize,
        (operation, captured): (Operation, Option<u64>),
        site: Site,
    ) {
        let Some(clique) = self.nccl.cliques.get_mut(&key.0).filter(|clique| !clique.is_past(key.1)) else {
            return;
        };
        let ranks = clique.ranks.len();
        let call = clique.calls.entry(key.1).or_insert_with(|| Call::new(ranks));
        let place = Place::Elsewhere(None);
        call.parts[rank] = Some(Part { operation, captured, site, arrived: false, cancelled: false, place });
        self.compare_parts(key);
    }

    /// The stream of a rank of another process has come to a collective. `None` where that makes no sense.
    pub(super) fn arrived_elsewhere(
        &mut self,
        key: CollectiveKey,
        rank: usize,
        arrived: Arc<Arrived>,
    ) -> Option<Option<Job>> {
        let ranks = self.nccl.cliques.get(&key.0)?.ranks.len();
        // One that has failed here is forgotten.
        let Some(call) = self.nccl.call_mut(key) else { return Some(None) };
        let part = call.parts[rank].as_mut()?;
        if arrived.payload.len() as u64 != part.operation.given(rank, ranks).unwrap_or(0) {
            return None;
        }
        part.arrived = true;
        part.place = Place::Elsewhere(Some(arrived));
        Some(self.linked_collective(key))
    }

    /// Whether the GPU of one of the ranks has failed, so that it can't take part.
    fn part_failure(&self, key: CollectiveKey) -> Option<Report> {
        let call = self.nccl.call(key)?;
        (0..call.parts.len()).find_map(|rank| self.failure_of_part(call, rank))
    }

    /// Whether the GPU of this rank has failed.
    pub(super) fn failure_of_part(&self, call: &Call, rank: usize) -> Option<Report> {
        let part = call.parts[rank].as_ref()?;
        let Place::Here { op, buffers, .. } = part.place else { return None };
        self.failed_gpu(op, rank, &Request::Collective(part.operation, buffers), &part.site)
    }

    /// The report of a call that can't be complete, where the GPU of `rank`, whose part `op` is, has failed.
    pub(super) fn failed_gpu(
        &self,
        op: OpRef,
        rank: usize,
        request: &Request,
        site: &Site,
    ) -> Option<Report> {
        let failure = self.failure_of(self.streams.get(&op.stream)?.context)?;
        let report = Report::new(format!("{request} can't complete: rank {rank}'s GPU has failed"))
            .at(format!("rank {rank}: {request}"), site)
            .fact(format!("{ITS_FAILURE}{}", failure.headline()));
        // Where that one came of another rank's, this leads to the first.
        let cause = [CAUSE, ITS_FAILURE]
            .into_iter()
            .find_map(|fact| failure.report.lines().find_map(|line| Some(line.split_once(fact)?.1)));
        Some(match cause {
            Some(cause) => report.fact(format!("{CAUSE}{cause}")),
            None => report,
        })
    }

    /// Makes a collective fail that can't be complete: at once for the ranks that have come, on arrival for the others.
    pub(super) fn fail_collective(&mut self, key: CollectiveKey, failure: &Failure) {
        let (clique, number) = key;
        self.publish_failure(CallKey::Collective { clique, number }, NcclStatus::InvalidUsage, failure);
        self.collective_failed(key, failure);
    }

    /// As [`Self::fail_collective`], where the other processes know. The first failure stays.
    pub(super) fn collective_failed(&mut self, key: CollectiveKey, failure: &Failure) {
        let Some(clique) = self.nccl.cliques.get_mut(&key.0).filter(|clique| !clique.is_past(key.1)) else {
            return;
        };
        clique.note_failure(failure);
        let ranks = clique.ranks.len();
        let call = clique.calls.entry(key.1).or_insert_with(|| Call::new(ranks));
        if call.failure.is_some() || call.running {
            return;
        }
        call.failure = Some(failure.clone());
        let parts = call.parts.iter().flatten().filter(|part| part.arrived && !part.cancelled);
        let arrived = parts.filter_map(Part::op).map(|op| op.stream);
        for stream in arrived.collect::<Vec<_>>() {
            self.fail_stream(stream, failure);
            self.finish(stream);
        }
        self.forget_if_over(key);
    }

    /// Forgets a failed call once all its ranks have come, of those that are here.
    fn forget_if_over(&mut self, (clique, number): CollectiveKey) {
        let Some(clique) = self.nccl.cliques.get_mut(&clique) else { return };
        let elsewhere: Vec<bool> = clique.ranks.iter().map(|rank| rank.process.is_some()).collect();
        let over = |call: &Call| {
            let mut parts = call.parts.iter().zip(&elsewhere);
            parts.all(|(part, &elsewhere)| elsewhere || part.as_ref().is_some_and(|part| part.arrived))
        };
        if clique.calls.get(&number).is_some_and(over) {
            clique.calls.remove(&number);
        }
    }
}

/// Which ranks called what.
fn disagreement(parts: &[&Part], number: u64) -> Report {
    let report = Report::new(format!("ranks disagree about collective {number} of their communicator"));
    let same = |one: &Part, other: &Part| one.operation == other.operation;
    with_sides(report, parts, same, |part| part.operation.to_string()).help(
        "every rank must make the same calls in the same order, with the same count, type, operator and root",
    )
}

/// Which ranks made the call themselves, and which by a graph.
fn captured_apart(parts: &[&Part], number: u64) -> Report {
    let report =
        Report::new(format!("ranks disagree about collective {number}: not all launch the same graph"));
    let same = |one: &Part, other: &Part| one.captured == other.captured;
    let words = |part: &Part| match part.captured {
        Some(captured) => format!("{} of a graph (captured call {captured})", part.operation),
        None => format!("{}, called outside of a graph", part.operation),
    };
    with_sides(report, parts, same, words).help(
        "a call has to be captured on all its ranks or on none, and all of them have to launch its graph",
    )
}

/// Adds one line for each line of the program whose ranks did the same.
fn with_sides(
    mut report: Report,
    parts: &[&Part],
    same: impl Fn(&Part, &Part) -> bool,
    words: impl Fn(&Part) -> String,
) -> Report {
    let mut sides: Vec<(Vec<usize>, &Part)> = Vec::new();
    for (rank, part) in parts.iter().enumerate() {
        let line = part.site.line();
        match sides.iter_mut().find(|(_, other)| same(other, part) && other.site.line() == line) {
            Some((ranks, _)) => ranks.push(rank),
            None => sides.push((vec![rank], part)),
        }
    }
    for (of_side, part) in sides {
        report = report.at(format!("{}: {}", ranks(&of_side), words(part)), &part.site);
    }
    report
}
