//! Collectives: they are matched across ranks by sequence number and run once every rank's stream has reached them.

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
use virtual_gpu::time::choice::Enabled;
use virtual_gpu::time::preset::Preset;
use virtual_gpu::time::tuning::World;
use virtual_gpu_core::handle::{CallKey, CollectiveId, CommId, OpRef, Rank, SequenceNumber, StreamHandle};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};

/// Prefixes of two facts in a report about a failed GPU: why that GPU failed, and the first failure, which caused the
/// others.
const ITS_FAILURE: &str = "its failure: ";
const CAUSE: &str = "the first failure: ";

/// A collective, which the ranks reach one by one.
pub(crate) struct Call {
    pub(crate) parts: Ranks<Option<Part>>,
    pub(crate) running: bool,
    pub(crate) failure: Option<Failure>,
}

/// One rank's part in a collective.
pub(crate) struct Part {
    pub(crate) operation: Operation,
    /// The call's sequence number among its rank's captured launches; `None` outside of a graph.
    captured: Option<SequenceNumber>,
    pub(crate) call_site: CallSite,
    /// Whether the rank's stream has reached the call.
    pub(crate) arrived: bool,
    /// Whether the rank has aborted.
    pub(crate) canceled: bool,
    pub(crate) location: PartLocation,
}

/// Which process runs a rank's part.
pub(crate) enum PartLocation {
    Here {
        op: OpRef,
        buffers: Buffers,
        device: usize,
        /// Whether the other processes have received the data that this rank contributes.
        published: bool,
        plan: Plan,
    },
    /// Another process runs the part. The arrival is what that process sent when its rank's stream reached the call.
    Elsewhere(Option<Arc<Arrived>>),
}

impl Call {
    fn new(world_size: usize) -> Self {
        Self { parts: Ranks::new(world_size, |_| None), running: false, failure: None }
    }

    /// Returns whether every rank has arrived and every process has the other processes' data.
    fn is_complete(&self) -> bool {
        self.parts.values().all(|part| {
            part.as_ref().is_some_and(|part| {
                let known = match part.location {
                    PartLocation::Here { published, .. } => published || self.is_local(),
                    PartLocation::Elsewhere(_) => true,
                };
                part.arrived && !part.canceled && known
            })
        })
    }

    /// Returns whether a rank of this process has called the collective.
    pub(crate) fn has_part_here(&self) -> bool {
        self.parts.values().flatten().any(|part| part.op().is_some())
    }

    /// Returns whether all parts run in this process.
    fn is_local(&self) -> bool {
        self.parts.values().flatten().all(|part| part.op().is_some())
    }

    /// Starts the collective if it can run now. Returns whether it did.
    fn start(&mut self) -> bool {
        let starts = !self.running && self.failure.is_none() && self.is_complete();
        self.running |= starts;
        starts
    }

    /// Records that a rank's data is on its way to the other processes. Returns `false` if the rank's part is no longer
    /// needed.
    pub(crate) fn published(&mut self, rank: Rank) -> bool {
        match &mut self.parts[rank] {
            Some(Part { canceled: false, location: PartLocation::Here { published, .. }, .. })
                if self.failure.is_none() =>
            {
                *published = true;
                true
            }
            _ => false,
        }
    }

    /// Once every rank has called, returns a report if they disagree. `number` is the call's number.
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

    /// Returns a report if one of the ranks' GPUs has failed and can't take part.
    fn failed_part(&self, engine: &EngineState) -> Option<Report> {
        Rank::all(self.parts.len()).find_map(|rank| self.failure_of_part(engine, rank))
    }

    /// Returns a report if this rank's GPU has failed.
    pub(crate) fn failure_of_part(&self, engine: &EngineState, rank: Rank) -> Option<Report> {
        let part = self.parts[rank].as_ref()?;
        let PartLocation::Here { op, buffers, .. } = part.location else { return None };
        failed_gpu(engine, op, rank, &Request::Collective(part.operation, buffers), &part.call_site)
    }

    /// Cancels a rank's part. Returns the rank's stream if it waits in the call, and so not if the part was canceled
    /// before. Data that a rank in another process has already sent is kept, because that rank may have left after its
    /// work was done.
    fn cancel(&mut self, rank: Rank) -> Option<StreamHandle> {
        let part = self.parts[rank].as_mut()?;
        let op = part.op();
        let waits = part.arrived && !part.canceled;
        part.canceled |= op.is_some() || !part.arrived;
        op.filter(|_| waits).map(|op| op.stream)
    }
}

impl Part {
    /// Returns the part's operation, if its stream is in this process.
    pub(crate) fn op(&self) -> Option<OpRef> {
        match self.location {
            PartLocation::Here { op, .. } => Some(op),
            PartLocation::Elsewhere(_) => None,
        }
    }
}

impl Communicator {
    /// Returns how NCCL runs a collective on this communicator.
    ///
    /// # Errors
    /// Fails like [`Operation::plan`], and if `NCCL_ALGO` or `NCCL_PROTO` is wrong.
    pub(crate) fn plan(&mut self, operation: &Operation, preset: &Preset) -> Result<Plan, String> {
        if let Some((planned, plan)) = &self.planned
            && planned == operation
        {
            return Ok(*plan);
        }
        let world = World::of(preset, self.ranks.values().map(|rank| rank.device));
        let plan = operation.plan(preset, Enabled::from_env()?, world)?;
        self.planned = Some((*operation, plan));
        Ok(plan)
    }

    /// Returns a collective that must exist because it is not done.
    ///
    /// # Errors
    /// Returns an `InternalError` that names it.
    pub(crate) fn call(&self, sequence: SequenceNumber) -> NcclResult<&Call> {
        self.calls.get(&sequence).ok_or_else(|| vanished_call(self.id, sequence))
    }

    /// Like [`Self::call`], but returns a mutable reference.
    ///
    /// # Errors
    /// Returns an `InternalError` that names it.
    fn call_mut(&mut self, sequence: SequenceNumber) -> NcclResult<&mut Call> {
        self.calls.get_mut(&sequence).ok_or_else(|| vanished_call(self.id, sequence))
    }

    /// Removes a collective that is done.
    ///
    /// # Errors
    /// Returns an `InternalError` that names it.
    pub(crate) fn take_call(&mut self, sequence: SequenceNumber) -> NcclResult<Call> {
        self.calls.remove(&sequence).ok_or_else(|| vanished_call(self.id, sequence))
    }

    /// Returns the collective with this number, creating it if necessary.
    fn call_or_new(&mut self, sequence: SequenceNumber) -> &mut Call {
        let world_size = self.ranks.len();
        self.calls.entry(sequence).or_insert_with(|| Call::new(world_size))
    }

    /// Returns whether every rank of this process has called this collective and it is over.
    fn is_past(&self, sequence: SequenceNumber) -> bool {
        let mut here = self.ranks.values().filter(|rank| rank.process.is_none());
        !self.calls.contains_key(&sequence) && here.all(|rank| rank.issued >= sequence)
    }

    /// Returns the ranks that a collective is still waiting for, sorted by number.
    ///
    /// # Errors
    /// Returns `InternalError` if there is no such call.
    pub(crate) fn missing_ranks(&self, sequence: SequenceNumber) -> NcclResult<Vec<(Rank, Missing)>> {
        let call = self.call(sequence)?;
        if call.failure.is_some() || call.running {
            return Ok(Vec::new());
        }
        let missing = call.parts.iter().filter_map(|(rank, part)| match part {
            Some(part) if part.canceled => Some((rank, Missing::Gone)),
            Some(part) if part.arrived => None,
            Some(part) => Some((rank, part.op().map_or(Missing::Elsewhere, Missing::InStream))),
            None => Some((rank, self.ranks[rank].silence())),
        });
        Ok(missing.collect())
    }

    /// Returns a collective with ranks in other processes if it can run now. A collective that has failed may already
    /// have been forgotten.
    pub(crate) fn linked_collective(&mut self, sequence: SequenceNumber) -> Option<Job> {
        let id = CollectiveId { comm: self.id, sequence };
        self.calls.get_mut(&sequence)?.start().then_some(Job::Collective(id))
    }

    /// Records that a rank in another process has called a collective. Returns a report if the ranks disagree about it.
    pub(crate) fn called_elsewhere(
        &mut self,
        sequence: SequenceNumber,
        rank: Rank,
        (operation, captured): (Operation, Option<SequenceNumber>),
        call_site: CallSite,
    ) -> Option<Report> {
        // The collective may have failed in this process before that rank called it.
        if self.is_past(sequence) {
            return None;
        }
        let call = self.call_or_new(sequence);
        let location = PartLocation::Elsewhere(None);
        call.parts[rank] =
            Some(Part { operation, captured, call_site, arrived: false, canceled: false, location });
        call.disagreement(sequence)
    }

    /// Records that the stream of a rank in another process has reached a collective.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the rank has not called it, or sends a different number of bytes than it announced.
    pub(crate) fn arrived_elsewhere(
        &mut self,
        sequence: SequenceNumber,
        rank: Rank,
        arrived: Arc<Arrived>,
    ) -> Result<Option<Job>, Malformed> {
        let world_size = self.ranks.len();
        // A collective that failed in this process has been forgotten.
        let Some(call) = self.calls.get_mut(&sequence) else { return Ok(None) };
        let part = call.parts[rank].as_mut().ok_or(Malformed)?;
        if arrived.payload.len() as u64 != part.operation.given(rank, world_size).unwrap_or(0) {
            return Err(Malformed);
        }
        part.arrived = true;
        part.location = PartLocation::Elsewhere(Some(arrived));
        Ok(self.linked_collective(sequence))
    }

    /// Records that a collective has failed, unless it already failed or is running. Returns this process's streams
    /// that have reached it.
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
        let parts = call.parts.values().flatten().filter(|part| part.arrived && !part.canceled);
        let arrived = parts.filter_map(Part::op).map(|op| op.stream).collect();
        self.forget_failed_call_if_over(sequence);
        arrived
    }

    /// Forgets a failed call once all ranks of this process have reached it.
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

    /// Cancels a rank's part in every call that is not running yet. Returns the rank's streams that have reached one of
    /// these calls.
    pub(crate) fn cancel_calls(&mut self, rank: Rank) -> Vec<StreamHandle> {
        self.calls.values_mut().filter(|call| !call.running).filter_map(|call| call.cancel(rank)).collect()
    }
}

fn vanished_call(comm: CommId, sequence: SequenceNumber) -> Error<NcclStatus> {
    vanished(format_args!("collective {sequence} of communicator {}", comm.0))
}

impl Locked<'_> {
    /// Enqueues one rank's part of a collective, which waits for the operations in `after`.
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
            Some(Part { operation, captured, call_site, arrived: false, canceled: false, location });
        let disagreement = call.disagreement(id.sequence);
        self.nccl.publish(comm, &event)?;
        match disagreement {
            Some(report) => self.fail_collective(id, &Failure::announce(CudaStatus::LaunchFailed, &report)),
            None => Ok(()),
        }
    }

    /// Records that one rank's stream has reached a collective. Returns the collective if it can run now.
    ///
    /// # Errors
    /// Returns `InternalError` if there is no such call.
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
                if part.canceled || call.failure.is_some() {
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

    /// Fails a collective that can't complete: immediately for the ranks that have arrived, and on arrival for the
    /// others.
    pub(crate) fn fail_collective(&mut self, id: CollectiveId, failure: &Failure) -> NcclResult<()> {
        self.nccl.publish_failure(CallKey::Collective(id), NcclStatus::InvalidUsage, failure)?;
        self.collective_failed(id, failure)
    }

    /// Like [`Self::fail_collective`], but for a failure that the other processes already know about. Only the first
    /// failure is kept.
    pub(crate) fn collective_failed(&mut self, id: CollectiveId, failure: &Failure) -> NcclResult<()> {
        for stream in self.nccl.communicator_mut(id.comm)?.fail_call(id.sequence, failure) {
            self.engine.fail_stream(stream, failure);
            self.engine.finish(stream);
        }
        Ok(())
    }
}

/// Returns the report for a call that can't complete because `rank`'s GPU has failed. `op` is that rank's part.
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
    // If another rank's failure caused this one, report the original failure.
    let cause = [CAUSE, ITS_FAILURE]
        .into_iter()
        .find_map(|fact| failure.report.lines().find_map(|line| Some(line.split_once(fact)?.1)));
    Some(match cause {
        Some(cause) => report.fact(format!("{CAUSE}{cause}")),
        None => report,
    })
}

/// Reports which rank made which call.
fn disagreement(parts: &Ranks<Option<Part>>, number: SequenceNumber) -> Report {
    let report =
        Report::new(format!("the {} collective on this communicator differs between ranks", ordinal(number)));
    let same = |one: &Part, other: &Part| one.operation == other.operation;
    with_sides(report, parts, same, |part| part.operation.to_string()).help(
        "every rank must make the same calls in the same order, with the same count, type, operator, and root",
    )
}

/// Formats a number as `1st`, `2nd`, `3rd`, `4th`. Collectives are numbered from 1.
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

/// Reports which ranks made the call directly and which made it through a graph.
fn captured_apart(parts: &Ranks<Option<Part>>, number: SequenceNumber) -> Report {
    let called = parts.iter().any(|(_, part)| part.as_ref().is_some_and(|part| part.captured.is_none()));
    let difference = match called {
        true => "some launch a graph that makes it, and others call it outside of a graph",
        false => "not all of them launch the same graph",
    };
    let report =
        Report::new(format!("the {} collective differs between ranks: {difference}", ordinal(number)));
    let same = |one: &Part, other: &Part| one.captured == other.captured;
    let words = |part: &Part| match part.captured {
        Some(captured) => format!("{} from a graph (the {} call in it)", part.operation, ordinal(captured)),
        None => format!("{}, called outside of a graph", part.operation),
    };
    with_sides(report, parts, same, words)
        .help("a call must be captured on all ranks or on none, and all ranks must launch the graph")
}

/// Adds one line for each source line in the program, with the ranks that made the same call there.
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
