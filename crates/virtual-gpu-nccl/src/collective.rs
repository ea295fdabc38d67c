//! Collectives: matched by number, run when every rank's stream has come to them.

use std::sync::Arc;

use super::Locked;
use super::call::{Checked, Request};
use super::communicator::{Communicator, LastCall};
use super::event::{Arrived, Event};
use super::internal::vanished;
use super::operation::{Buffers, Operation, Plan};
use super::ranks::Ranks;
use super::run::Job;
use super::wire::Malformed;
use virtual_gpu::engine::{Awaited, Failure, Missing, State as EngineState};
use virtual_gpu::report::{Report, ranks};
use virtual_gpu_core::handle::{CallKey, CollectiveId, CommId, OpRef, Rank, SequenceNumber, StreamHandle};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};

/// Facts of a report of ranks whose GPUs have failed: why the GPU that it names has, and why the first has.
const ITS_FAILURE: &str = "its failure: ";
const CAUSE: &str = "the first failure: ";

/// One collective, as its ranks come to it.
pub(crate) struct Call {
    pub(crate) parts: Ranks<Option<Part>>,
    pub(crate) running: bool,
    pub(crate) failure: Option<Failure>,
}

/// One rank's part in a call.
pub(crate) struct Part {
    pub(crate) operation: Operation,
    /// Its sequence number among its rank's captured launches; `None` outside of a graph.
    captured: Option<SequenceNumber>,
    pub(crate) call_site: CallSite,
    /// Its stream has come to it.
    pub(crate) arrived: bool,
    /// Its rank has aborted.
    pub(crate) cancelled: bool,
    pub(crate) location: PartLocation,
}

/// Where a rank's part is done.
pub(crate) enum PartLocation {
    Here {
        op: OpRef,
        buffers: Buffers,
        device: usize,
        /// The other processes have what it gives.
        published: bool,
        plan: Plan,
    },
    /// In another process, from which this came with its arrival.
    Elsewhere(Option<Arc<Arrived>>),
}

impl Call {
    fn new(world_size: usize) -> Self {
        Self { parts: Ranks::new(world_size, |_| None), running: false, failure: None }
    }

    /// Whether every rank has come, and every process knows what the others give.
    fn is_complete(&self) -> bool {
        self.parts.values().all(|part| {
            part.as_ref().is_some_and(|part| {
                let known = match part.location {
                    PartLocation::Here { published, .. } => published || self.is_local(),
                    PartLocation::Elsewhere(_) => true,
                };
                part.arrived && !part.cancelled && known
            })
        })
    }

    /// Whether a rank of this process has called it.
    pub(crate) fn has_part_here(&self) -> bool {
        self.parts.values().flatten().any(|part| part.op().is_some())
    }

    /// Whether all parts are done in this process.
    fn is_local(&self) -> bool {
        self.parts.values().flatten().all(|part| part.op().is_some())
    }

    /// Starts it, where it can run now. `false` where it can't.
    fn start(&mut self) -> bool {
        let starts = !self.running && self.failure.is_none() && self.is_complete();
        self.running |= starts;
        starts
    }

    /// The other processes are about to know what a rank gives. `false` where it is not needed any more.
    pub(crate) fn published(&mut self, rank: Rank) -> bool {
        match &mut self.parts[rank] {
            Some(Part { cancelled: false, location: PartLocation::Here { published, .. }, .. })
                if self.failure.is_none() =>
            {
                *published = true;
                true
            }
            _ => false,
        }
    }

    /// Once every rank has called: the report where they disagree. `number` is the call's.
    fn disagreement(&self, number: SequenceNumber) -> Option<Report> {
        if self.failure.is_some() || self.parts.values().any(Option::is_none) {
            return None;
        }
        let first = self.parts.values().flatten().next()?;
        let mut parts = self.parts.values().flatten();
        if parts.any(|part| part.operation != first.operation) {
            return Some(disagreement(&self.parts, number));
        }
        let mut parts = self.parts.values().flatten();
        parts.any(|part| part.captured != first.captured).then(|| captured_apart(&self.parts, number))
    }

    /// The report where the GPU of one of the ranks has failed, so that it can't take part.
    fn failed_part(&self, engine: &EngineState) -> Option<Report> {
        Rank::all(self.parts.len()).find_map(|rank| self.failure_of_part(engine, rank))
    }

    /// The report where the GPU of this rank has failed.
    pub(crate) fn failure_of_part(&self, engine: &EngineState, rank: Rank) -> Option<Report> {
        let part = self.parts[rank].as_ref()?;
        let PartLocation::Here { op, buffers, .. } = part.location else { return None };
        failed_gpu(engine, op, rank, &Request::Collective(part.operation, buffers), &part.call_site)
    }

    /// Takes a rank's part out. Returns its stream where that has come to the call. What a rank of another process has given
    /// stays: it may have left because all was done.
    fn cancel(&mut self, rank: Rank) -> Option<StreamHandle> {
        let part = self.parts[rank].as_mut()?;
        let op = part.op();
        part.cancelled |= op.is_some() || !part.arrived;
        op.filter(|_| part.arrived).map(|op| op.stream)
    }
}

impl Part {
    /// Its operation in a stream of this process.
    pub(crate) fn op(&self) -> Option<OpRef> {
        match self.location {
            PartLocation::Here { op, .. } => Some(op),
            PartLocation::Elsewhere(_) => None,
        }
    }
}

impl Communicator {
    /// A collective that must be there: it is not done.
    ///
    /// # Errors
    /// `InternalError`, naming it.
    pub(crate) fn call(&self, sequence: SequenceNumber) -> NcclResult<&Call> {
        self.calls.get(&sequence).ok_or_else(|| vanished_call(self.id, sequence))
    }

    /// As [`Self::call`], to be changed.
    ///
    /// # Errors
    /// `InternalError`, naming it.
    fn call_mut(&mut self, sequence: SequenceNumber) -> NcclResult<&mut Call> {
        self.calls.get_mut(&sequence).ok_or_else(|| vanished_call(self.id, sequence))
    }

    /// Takes a collective away that is done.
    ///
    /// # Errors
    /// `InternalError`, naming it.
    pub(crate) fn take_call(&mut self, sequence: SequenceNumber) -> NcclResult<Call> {
        self.calls.remove(&sequence).ok_or_else(|| vanished_call(self.id, sequence))
    }

    /// The collective of this number, which may be new.
    fn call_or_new(&mut self, sequence: SequenceNumber) -> &mut Call {
        let world_size = self.ranks.len();
        self.calls.entry(sequence).or_insert_with(|| Call::new(world_size))
    }

    /// Whether every rank that is here has called this collective, and it is over.
    fn is_past(&self, sequence: SequenceNumber) -> bool {
        let mut here = self.ranks.values().filter(|rank| rank.process.is_none());
        !self.calls.contains_key(&sequence) && here.all(|rank| rank.issued >= sequence)
    }

    /// The ranks that have not come to a collective, in the order of their numbers.
    ///
    /// # Errors
    /// `InternalError` where there is no such call.
    pub(crate) fn missing_ranks(&self, sequence: SequenceNumber) -> NcclResult<Vec<(Rank, Missing)>> {
        let call = self.call(sequence)?;
        if call.failure.is_some() || call.running {
            return Ok(Vec::new());
        }
        let missing = call.parts.iter().filter_map(|(rank, part)| match part {
            Some(part) if part.cancelled => Some((rank, Missing::Gone)),
            Some(part) if part.arrived => None,
            Some(part) => Some((rank, part.op().map_or(Missing::Elsewhere, Missing::InStream))),
            None => Some((rank, self.ranks[rank].absence())),
        });
        Ok(missing.collect())
    }

    /// A collective with ranks in other processes, where it can run now. One that has failed may be forgotten.
    pub(crate) fn linked_collective(&mut self, sequence: SequenceNumber) -> Option<Job> {
        let id = CollectiveId { comm: self.id, sequence };
        self.calls.get_mut(&sequence)?.start().then_some(Job::Collective(id))
    }

    /// A rank of another process has called a collective. Returns the report where ranks disagree about it.
    pub(crate) fn called_elsewhere(
        &mut self,
        sequence: SequenceNumber,
        rank: Rank,
        (operation, captured): (Operation, Option<SequenceNumber>),
        call_site: CallSite,
    ) -> Option<Report> {
        // It may have failed here before that rank has called it.
        if self.is_past(sequence) {
            return None;
        }
        let call = self.call_or_new(sequence);
        let location = PartLocation::Elsewhere(None);
        call.parts[rank] =
            Some(Part { operation, captured, call_site, arrived: false, cancelled: false, location });
        call.disagreement(sequence)
    }

    /// The stream of a rank of another process has come to a collective.
    ///
    /// # Errors
    /// [`Malformed`] where the rank has not called it, or gives another number of bytes than it said.
    pub(crate) fn arrived_elsewhere(
        &mut self,
        sequence: SequenceNumber,
        rank: Rank,
        arrived: Arc<Arrived>,
    ) -> Result<Option<Job>, Malformed> {
        let world_size = self.ranks.len();
        // One that has failed here is forgotten.
        let Some(call) = self.calls.get_mut(&sequence) else { return Ok(None) };
        let part = call.parts[rank].as_mut().ok_or(Malformed)?;
        if arrived.payload.len() as u64 != part.operation.given(rank, world_size).unwrap_or(0) {
            return Err(Malformed);
        }
        part.arrived = true;
        part.location = PartLocation::Elsewhere(Some(arrived));
        Ok(self.linked_collective(sequence))
    }

    /// Notes that a collective has failed, unless it has already or runs. Returns the streams here that have come to it.
    fn fail_call(&mut self, sequence: SequenceNumber, failure: &Failure) -> Vec<StreamHandle> {
        if self.is_past(sequence) {
            return Vec::new();
        }
        self.note_failure(failure);
        let call = self.call_or_new(sequence);
        if call.failure.is_some() || call.running {
            return Vec::new();
        }
        call.failure = Some(failure.clone());
        let parts = call.parts.values().flatten().filter(|part| part.arrived && !part.cancelled);
        let arrived = parts.filter_map(Part::op).map(|op| op.stream).collect();
        self.forget_failed_call_if_over(sequence);
        arrived
    }

    /// Forgets a failed call once all its ranks have come, of those that are here.
    fn forget_failed_call_if_over(&mut self, sequence: SequenceNumber) {
        let ranks = &self.ranks;
        let is_over = |call: &Call| {
            call.parts.iter().all(|(rank, part)| {
                ranks[rank].process.is_some() || part.as_ref().is_some_and(|part| part.arrived)
            })
        };
        if self.calls.get(&sequence).is_some_and(is_over) {
            self.calls.remove(&sequence);
        }
    }

    /// Takes a rank's part out of every call that is not running yet. Returns its streams that have come to one.
    pub(crate) fn cancel_calls(&mut self, rank: Rank) -> Vec<StreamHandle> {
        self.calls.values_mut().filter(|call| !call.running).filter_map(|call| call.cancel(rank)).collect()
    }
}

fn vanished_call(comm: CommId, sequence: SequenceNumber) -> Error<NcclStatus> {
    vanished(format_args!("collective {sequence} of communicator {}", comm.0))
}

impl Locked<'_> {
    /// Enqueues one rank's part of a collective, to come after others.
    pub(crate) fn enqueue_collective(&mut self, checked: Checked, after: Vec<Awaited>) -> NcclResult<()> {
        let Checked { comm, rank, stream, request, captured, call_site, plan, .. } = checked;
        let (Request::Collective(operation, buffers), Some(plan)) = (request, plan) else { return Ok(()) };
        let owner = self.engine.current_thread();
        let entry = self.nccl.communicator(comm)?;
        entry.check_all_there()?;
        let id = CollectiveId { comm, sequence: entry.ranks[rank].issued.next() };
        let (world_size, device) = (entry.ranks.len(), entry.ranks[rank].device);
        let Awaited { op, when, .. } =
            self.engine.enqueue_call(stream, CallKey::Collective(id), after, call_site.clone())?;
        self.engine.time.communicates(&when, plan.nanoseconds, || plan.label(&operation, rank, world_size));
        let entry = self.nccl.communicator_mut(comm)?;
        entry.ranks[rank].last =
            Some(LastCall { request, op, call_site: call_site.clone(), was_polled: false });
        entry.ranks[rank].issued = id.sequence;
        entry.used_by(rank, owner);
        let event =
            Event::Called { rank, sequence: id.sequence, operation, captured, call_site: call_site.clone() };
        let location = PartLocation::Here { op, buffers, device, published: false, plan };
        let call = entry.call_or_new(id.sequence);
        call.parts[rank] =
            Some(Part { operation, captured, call_site, arrived: false, cancelled: false, location });
        let disagreement = call.disagreement(id.sequence);
        self.nccl.publish(comm, &event)?;
        match disagreement {
            Some(report) => self.fail_collective(id, &Failure::announce(CudaStatus::LaunchFailed, &report)),
            None => Ok(()),
        }
    }

    /// One rank's stream has come to a collective. Returns it where it can run now.
    ///
    /// # Errors
    /// `InternalError` where there is no such call.
    pub(crate) fn arrive_at_collective(&mut self, id: CollectiveId) -> NcclResult<Option<Job>> {
        let comm = self.nccl.communicator_mut(id.comm)?;
        let is_linked = comm.link.is_some();
        let call = comm.call_mut(id.sequence)?;
        let context_failure = if is_linked { None } else { call.failed_part(self.engine) };
        let (mut leaving, mut telling) = (Vec::new(), Vec::new());
        for (rank, part) in call.parts.iter_mut() {
            let Some(part) = part.as_mut().filter(|part| !part.arrived) else { continue };
            let Some(op) = part.op() else { continue };
            if self.engine.stream(op.stream).is_some_and(|stream| stream.is_at(op)) {
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
                self.engine.fail_stream(stream, failure);
            }
            self.engine.finish(stream);
        }
        if failure.is_some() {
            comm.forget_failed_call_if_over(id.sequence);
        }
        if let Some(report) = context_failure.filter(|_| complete) {
            self.fail_collective(id, &Failure::announce(CudaStatus::LaunchFailed, &report))?;
        }
        Ok(match telling.is_empty() {
            false => Some(Job::Arrivals(id, telling)),
            true => runs.then_some(Job::Collective(id)),
        })
    }

    /// Makes a collective fail that can't be complete: at once for the ranks that have come, on arrival for the others.
    pub(crate) fn fail_collective(&mut self, id: CollectiveId, failure: &Failure) -> NcclResult<()> {
        self.nccl.publish_failure(CallKey::Collective(id), NcclStatus::InvalidUsage, failure)?;
        self.collective_failed(id, failure)
    }

    /// As [`Self::fail_collective`], where the other processes know. The first failure stays.
    pub(crate) fn collective_failed(&mut self, id: CollectiveId, failure: &Failure) -> NcclResult<()> {
        for stream in self.nccl.communicator_mut(id.comm)?.fail_call(id.sequence, failure) {
            self.engine.fail_stream(stream, failure);
            self.engine.finish(stream);
        }
        Ok(())
    }
}

/// The report of a call that can't be complete, where the GPU of `rank`, whose part `op` is, has failed.
pub(crate) fn failed_gpu(
    engine: &EngineState,
    op: OpRef,
    rank: Rank,
    request: &Request,
    call_site: &CallSite,
) -> Option<Report> {
    let failure = engine.failure_of(engine.stream(op.stream)?.context)?;
    let report = Report::new(format!("{request} can't complete: rank {rank}'s GPU has failed"))
        .at(format!("rank {rank}: {request}"), call_site)
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

/// Which ranks called what.
fn disagreement(parts: &Ranks<Option<Part>>, number: SequenceNumber) -> Report {
    let report = Report::new(format!(
        "the {} collective of this communicator differs between the ranks",
        ordinal(number)
    ));
    let same = |one: &Part, other: &Part| one.operation == other.operation;
    with_sides(report, parts, same, |part| part.operation.to_string()).help(
        "every rank must make the same calls in the same order, with the same count, type, operator and root",
    )
}

/// `1st`, `2nd`, `3rd`, `4th`: collectives are numbered from 1.
fn ordinal(SequenceNumber(number): SequenceNumber) -> String {
    let ending = match (number % 100, number % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

/// Which ranks made the call themselves, and which by a graph.
fn captured_apart(parts: &Ranks<Option<Part>>, number: SequenceNumber) -> Report {
    let report = Report::new(format!(
        "the {} collective differs between the ranks: not all launch the same graph",
        ordinal(number)
    ));
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
    parts: &Ranks<Option<Part>>,
    same: impl Fn(&Part, &Part) -> bool,
    words: impl Fn(&Part) -> String,
) -> Report {
    let mut sides: Vec<(Vec<Rank>, &Part)> = Vec::new();
    for (rank, part) in parts.iter().filter_map(|(rank, part)| Some((rank, part.as_ref()?))) {
        let line = part.call_site.line();
        match sides.iter_mut().find(|(_, other)| same(other, part) && other.call_site.line() == line) {
            Some((ranks, _)) => ranks.push(rank),
            None => sides.push((vec![rank], part)),
        }
    }
    for (of_side, part) in sides {
        report = report.at(format!("{}: {}", ranks(&of_side), words(part)), &part.call_site);
    }
    report
}
