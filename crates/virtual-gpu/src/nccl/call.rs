//! Collectives: checked at the call, matched by number, run when every rank's stream has come to them.

use std::sync::MutexGuard;

use super::communicator::{Clique, CommHandle, LastCall};
use super::operation::{Buffers, Operation};
use crate::engine::{Engine, Failure, Hopeless, OpRef, State, StreamHandle, Work, address_report};
use crate::report::{Report, ranks};
use crate::site::Site;
use crate::status::{CudaStatus, Error, NcclResult, NcclStatus};
use crate::thread::ThreadKey;

/// The `number`th collective of a clique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CallKey {
    pub(super) clique: u64,
    pub(super) number: u64,
}

#[cfg(test)]
impl CallKey {
    /// Some call.
    pub(crate) fn of_test() -> Self {
        Self { clique: 1, number: 1 }
    }
}

/// A call whose arguments are good, not launched yet.
pub(super) struct Checked {
    clique: u64,
    rank: usize,
    pub(super) stream: StreamHandle,
    pub(super) operation: Operation,
    buffers: Buffers,
    pub(super) site: Site,
}

/// One collective, as its ranks come to it.
pub(super) struct Call {
    pub(super) parts: Vec<Option<Part>>,
    pub(super) running: bool,
    failure: Option<Failure>,
}

/// One rank's part in a call.
pub(super) struct Part {
    pub(super) operation: Operation,
    pub(super) op: OpRef,
    pub(super) site: Site,
    /// Its stream has come to it.
    pub(super) arrived: bool,
    /// Its rank has aborted.
    pub(super) cancelled: bool,
    pub(super) buffers: Buffers,
    pub(super) device: usize,
}

/// Why a rank has not come to a call.
pub(crate) enum Missing {
    /// It has left the communicator.
    Gone,
    /// It has called; its stream has not got there.
    InStream(OpRef),
    /// It has not called. This thread drives it.
    NotCalled(ThreadKey),
}

impl Engine {
    /// A collective on `stream`. Inside a group it is launched by the group's end.
    ///
    /// # Errors
    /// As NCCL checks them, in its order: communicator, root, pointers; `InvalidArgument` with a sentence.
    pub fn nccl_collective(
        &self,
        comm: CommHandle,
        operation: Operation,
        buffers: Buffers,
        stream: StreamHandle,
    ) -> NcclResult<()> {
        let checked = self.check_call(comm, operation, buffers, stream);
        let mut state = self.state();
        let group = &mut state.thread().group;
        match checked {
            Err(error) => {
                group.remember(&error);
                Err(error)
            }
            Ok(None) => Ok(()),
            Ok(Some(call)) if group.is_open() => {
                group.calls.push(call);
                Ok(())
            }
            Ok(Some(call)) => self.launch_calls(vec![call], state),
        }
    }

    /// Checks a call's arguments. `None` is a call that moves nothing.
    fn check_call(
        &self,
        comm: CommHandle,
        operation: Operation,
        buffers: Buffers,
        stream: StreamHandle,
    ) -> NcclResult<Option<Checked>> {
        let bad = |message: String| Err(Error::new(NcclStatus::InvalidArgument, message));
        let function = operation.function();
        let (world_size, rank, device) = self.nccl_identity(comm)?;
        let clique = self.state().nccl.member(comm)?.0;
        if let Some(root) = operation.root()
            && !usize::try_from(root).is_ok_and(|root| root < world_size)
        {
            return bad(format!("{function}: root {root} of {world_size} ranks"));
        }
        if operation.data_type.is_unsupported() {
            return bad(format!("virtual GPU: {function} of {} is not supported", operation.data_type));
        }
        if operation.count == 0 {
            return Ok(None);
        }
        let site = Site::here();
        let (given, got) = (operation.given(rank, world_size), operation.got(rank, world_size));
        for (name, address, bytes) in [("send", buffers.send, given), ("receive", buffers.receive, got)] {
            if let Some(bytes) = bytes {
                self.check_buffer(name, address, bytes, &operation, rank, device, &site)?;
            }
        }
        if let Some(overlap) = operation.overlap(buffers, rank, world_size) {
            return bad(overlap);
        }
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let of_stream = state.streams.get(&stream).map_or(device, |stream| stream.device);
        if of_stream != device {
            return bad(format!(
                "{function}: the stream is on GPU {of_stream}, rank {rank}'s communicator on GPU {device}"
            ));
        }
        Ok(Some(Checked { clique, rank, stream, operation, buffers, site }))
    }

    /// A buffer has to lie in one allocation of its rank's GPU.
    #[expect(clippy::too_many_arguments, reason = "all of them are named in the report")]
    fn check_buffer(
        &self,
        name: &str,
        address: u64,
        bytes: u64,
        operation: &Operation,
        rank: usize,
        device: usize,
        site: &Site,
    ) -> NcclResult<()> {
        let memory = self.memory(device);
        if memory.range(address, bytes).is_ok() {
            return Ok(());
        }
        let headline = format!("the {name} buffer of rank {rank} can't be used");
        let report = address_report(&headline, &memory, address, bytes, device)
            .at(format!("{operation} by rank {rank}"), site);
        let failure = Failure::announce(CudaStatus::InvalidValue, &report);
        Err(Error::new(NcclStatus::InvalidArgument, failure.report))
    }

    /// Enqueues calls in their streams, and runs what is ready.
    ///
    /// # Errors
    /// This thread drives another rank, too, and leaves it behind: a call may wait for all ranks before it returns.
    pub(super) fn launch_calls(
        &self,
        calls: Vec<Checked>,
        mut state: MutexGuard<'_, State>,
    ) -> NcclResult<()> {
        if let Some(report) = state.left_behind(&calls) {
            let failure = Failure::announce(CudaStatus::LaunchTimeout, &report);
            return Err(Error::new(NcclStatus::InvalidUsage, failure.report));
        }
        for call in calls {
            state.enqueue_call(call)?;
        }
        drop(self.run_ready(state));
        Ok(())
    }
}

impl super::Nccl {
    pub(super) fn call(&self, key: CallKey) -> Option<&Call> {
        self.cliques.get(&key.clique)?.calls.get(&key.number)
    }

    fn call_mut(&mut self, key: CallKey) -> Option<&mut Call> {
        self.cliques.get_mut(&key.clique)?.calls.get_mut(&key.number)
    }

    pub(super) fn clique(&self, key: CallKey) -> Option<&Clique> {
        self.cliques.get(&key.clique)
    }

    /// The ranks that have not come to a call, in the order of their numbers.
    pub(crate) fn missing(&self, key: CallKey) -> Vec<Missing> {
        self.missing_ranks(key).into_iter().map(|(_, missing)| missing).collect()
    }

    pub(super) fn missing_ranks(&self, key: CallKey) -> Vec<(usize, Missing)> {
        let (Some(clique), Some(call)) = (self.clique(key), self.call(key)) else { return Vec::new() };
        if call.failure.is_some() || call.running {
            return Vec::new();
        }
        let ranks = clique.ranks.iter().zip(&call.parts).enumerate();
        ranks
            .filter_map(|(rank, (entry, part))| match part {
                Some(part) if part.cancelled => Some((rank, Missing::Gone)),
                Some(part) if part.arrived => None,
                Some(part) => Some((rank, Missing::InStream(part.op))),
                None if entry.left.is_some() => Some((rank, Missing::Gone)),
                None => Some((rank, Missing::NotCalled(entry.owner))),
            })
            .collect()
    }
}

impl State {
    /// The report where these calls, launched together, leave a rank behind that this very thread drives.
    ///
    /// NCCL: "every NCCL call may have to block, waiting for other threads/ranks to arrive" (User Guide, "Management Of
    /// Multiple GPUs From One Thread"). Whether it does depends on what it has still to set up.
    fn left_behind(&self, calls: &[Checked]) -> Option<Report> {
        let me = ThreadKey::current();
        calls.iter().find_map(|call| {
            let members = &self.nccl.cliques.get(&call.clique)?.ranks;
            let issued = |rank: usize| {
                let now = calls.iter().filter(|other| other.clique == call.clique && other.rank == rank);
                members[rank].issued + now.count() as u64
            };
            let own = issued(call.rank);
            let behind = |&rank: &usize| {
                members[rank].owner == me && members[rank].left.is_none() && issued(rank) < own
            };
            let behind: Vec<usize> = (0..members.len()).filter(behind).collect();
            let verb = if behind.len() == 1 { "is" } else { "are" };
            (!behind.is_empty()).then(|| {
                let missing = ranks(&behind);
                Report::new(format!(
                    "deadlock: {missing} {verb} missing in a group, and one thread drives all of them"
                ))
                .at(format!("{} by rank {}", call.operation, call.rank), &call.site)
                .fact(format!(
                    "NCCL may keep the thread there until every rank has called; {missing} can't, meanwhile"
                ))
                .help("one group_start before the calls of all these ranks, and one group_end behind them")
            })
        })
    }

    fn enqueue_call(&mut self, checked: Checked) -> NcclResult<()> {
        let Checked { clique, rank, stream, operation, buffers, site } = checked;
        let owner = self.current_thread();
        let Some(entry) = self.nccl.cliques.get_mut(&clique) else {
            return Err(Error::new(NcclStatus::InvalidArgument, "the communicator is gone"));
        };
        let key = CallKey { clique, number: entry.ranks[rank].issued + 1 };
        let (world_size, device) = (entry.ranks.len(), entry.ranks[rank].device);
        let op = self.enqueue(stream, Work::Collective(key), Vec::new(), site.clone())?.op;
        let Some(entry) = self.nccl.cliques.get_mut(&clique) else { return Ok(()) };
        entry.ranks[rank].last = Some(LastCall { operation, op, site: site.clone() });
        entry.ranks[rank].issued = key.number;
        entry.ranks[rank].owner = owner;
        let call = entry.calls.entry(key.number).or_insert_with(|| Call {
            parts: (0..world_size).map(|_| None).collect(),
            running: false,
            failure: None,
        });
        call.parts[rank] =
            Some(Part { operation, op, site, arrived: false, cancelled: false, buffers, device });
        self.compare_parts(key);
        Ok(())
    }

    /// Once every rank has called: do they agree?
    fn compare_parts(&mut self, key: CallKey) {
        let Some(call) = self.nccl.call(key) else { return };
        if call.failure.is_some() || call.parts.iter().any(Option::is_none) {
            return;
        }
        let parts: Vec<&Part> = call.parts.iter().flatten().collect();
        if parts.windows(2).all(|pair| pair[0].operation == pair[1].operation) {
            return;
        }
        let report = disagreement(&parts, key.number);
        self.fail_calls(&Hopeless::from([key]), CudaStatus::LaunchFailed, &report);
    }

    /// One rank's stream has come to a call. `true` where the call can run now.
    pub(crate) fn arrive(&mut self, key: CallKey) -> bool {
        let context_failure = self.part_failure(key);
        let Some(call) = self.nccl.call_mut(key) else { return false };
        let mut leaving = Vec::new();
        for part in call.parts.iter_mut().flatten().filter(|part| !part.arrived) {
            if self.streams.get(&part.op.stream).is_some_and(|stream| stream.is_at(part.op)) {
                part.arrived = true;
                if part.cancelled || call.failure.is_some() {
                    leaving.push(part.op.stream);
                }
            }
        }
        if let Some(failure) = call.failure.clone() {
            for stream in leaving {
                self.fail_stream(stream, &failure);
                self.finish(stream);
            }
            self.forget_if_over(key);
            return false;
        }
        let call = match self.nccl.call_mut(key) {
            Some(call) => call,
            None => return false,
        };
        let complete =
            call.parts.iter().all(|part| part.as_ref().is_some_and(|part| part.arrived && !part.cancelled));
        match context_failure {
            Some(report) if complete => {
                self.fail_calls(&Hopeless::from([key]), CudaStatus::LaunchFailed, &report);
                false
            }
            _ => {
                call.running = complete;
                for stream in leaving {
                    self.finish(stream);
                }
                complete
            }
        }
    }

    /// Whether the GPU of one of the ranks has failed, so that it can't take part.
    fn part_failure(&self, key: CallKey) -> Option<Report> {
        let call = self.nccl.call(key)?;
        for (rank, part) in call.parts.iter().enumerate() {
            let Some(part) = part else { continue };
            let Some(stream) = self.streams.get(&part.op.stream) else { continue };
            if let Some(failure) = self.failure_of(stream.context) {
                let cause = failure.report.lines().next().unwrap_or_default().to_owned();
                let report =
                    Report::new(format!("{} can't complete: rank {rank}'s GPU has failed", part.operation))
                        .at(format!("rank {rank}: {}", part.operation), &part.site)
                        .fact(format!("its failure: {cause}"));
                return Some(report);
            }
        }
        None
    }

    /// Makes calls fail that can't be completed: at once for the ranks that have come, on arrival for the others.
    pub(crate) fn fail_calls(&mut self, calls: &Hopeless, status: CudaStatus, report: &Report) {
        let failure = Failure::announce(status, report);
        for &key in calls {
            let Some(clique) = self.nccl.cliques.get_mut(&key.clique) else { continue };
            clique.failed.get_or_insert_with(|| Error::new(NcclStatus::InvalidUsage, failure.report.clone()));
            let Some(call) = clique.calls.get_mut(&key.number) else { continue };
            call.failure = Some(failure.clone());
            let arrived: Vec<_> = call
                .parts
                .iter()
                .flatten()
                .filter(|part| part.arrived && !part.cancelled)
                .map(|part| part.op.stream)
                .collect();
            for stream in arrived {
                self.fail_stream(stream, &failure);
                self.finish(stream);
            }
            self.forget_if_over(key);
        }
    }

    /// Forgets a failed call once all its ranks have come.
    fn forget_if_over(&mut self, key: CallKey) {
        let Some(clique) = self.nccl.cliques.get_mut(&key.clique) else { return };
        let over = |call: &Call| call.parts.iter().all(|part| part.as_ref().is_some_and(|part| part.arrived));
        if clique.calls.get(&key.number).is_some_and(over) {
            clique.calls.remove(&key.number);
        }
    }
}

/// Which ranks called what.
fn disagreement(parts: &[&Part], number: u64) -> Report {
    let mut report = Report::new(format!("ranks disagree about collective {number} of their communicator"));
    let mut sides: Vec<(Vec<usize>, &Part)> = Vec::new();
    for (rank, part) in parts.iter().enumerate() {
        let line = part.site.line();
        match sides
            .iter_mut()
            .find(|(_, other)| other.operation == part.operation && other.site.line() == line)
        {
            Some((ranks, _)) => ranks.push(rank),
            None => sides.push((vec![rank], part)),
        }
    }
    for (of_side, part) in sides {
        report = report.at(format!("{}: {}", ranks(&of_side), part.operation), &part.site);
    }
    report.help(
        "every rank must make the same calls in the same order, with the same count, type, operator and root",
    )
}
