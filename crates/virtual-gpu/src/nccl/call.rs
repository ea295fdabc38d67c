//! Collectives: checked at the call, matched by number, run when every rank's stream has come to them.

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use super::communicator::{Clique, CommHandle};
use super::reduce::{self, DataType, Operator};
use crate::config::Checks;
use crate::engine::{Engine, Failure, Hopeless, OpRef, State, StreamHandle, Touched, Work, address_report};
use crate::memory::DeviceMemory;
use crate::order::View;
use crate::report::{Report, ranks, size};
use crate::site::Site;
use crate::status::{CudaStatus, Error, NcclResult, NcclStatus};
use crate::thread::ThreadKey;

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Every rank gets the reduction of all ranks' buffers.
    AllReduce(Operator),
    /// Every rank gets the buffer of the rank that is the root.
    Broadcast {
        /// That rank.
        root: i32,
    },
}

/// What all ranks of one call must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The operation, with its operator or root.
    pub collective: Collective,
    /// Elements.
    pub count: u64,
    /// Type of the elements.
    pub data_type: DataType,
}

impl Operation {
    fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.data_type.size())
    }

    fn function(&self) -> &'static str {
        match self.collective {
            Collective::AllReduce(_) => "ncclAllReduce",
            Collective::Broadcast { .. } => "ncclBroadcast",
        }
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { collective, count, data_type } = self;
        let function = self.function();
        match collective {
            Collective::AllReduce(operator) => {
                write!(f, "{function}(count {count}, {data_type}, {operator})")
            }
            Collective::Broadcast { root } => {
                write!(f, "{function}(count {count}, {data_type}, root {root})")
            }
        }
    }
}

/// Device addresses of a rank's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// What the rank gives.
    pub send: u64,
    /// Where its result goes.
    pub receive: u64,
}

/// The `number`th collective of a clique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CallKey {
    pub(super) clique: u64,
    pub(super) number: u64,
}

/// A call whose arguments are good, not launched yet.
pub(super) struct Checked {
    clique: u64,
    rank: usize,
    stream: StreamHandle,
    operation: Operation,
    buffers: Buffers,
    site: Site,
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
    buffers: Buffers,
    device: usize,
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
        let (clique, rank) = self.state().nccl.member(comm)?;
        let (world_size, _, device) = self.nccl_identity(comm)?;
        let gives = match operation.collective {
            Collective::AllReduce(_) => true,
            Collective::Broadcast { root } => match usize::try_from(root) {
                Ok(root) if root < world_size => root == rank,
                _ => return bad(format!("{function}: root {root} of {world_size} ranks")),
            },
        };
        if operation.data_type.is_unsupported() {
            return bad(format!("virtual GPU: {function} of {} is not supported", operation.data_type));
        }
        if operation.count == 0 {
            return Ok(None);
        }
        let site = Site::here();
        for (name, address, used) in [("send", buffers.send, gives), ("receive", buffers.receive, true)] {
            if used {
                self.check_buffer(name, address, &operation, rank, device, &site)?;
            }
        }
        let (bytes, apart) = (operation.bytes(), buffers.send.abs_diff(buffers.receive));
        if gives && (1..bytes).contains(&apart) {
            return bad(format!(
                "{function}: send and receive buffers of {} overlap, {apart} bytes apart: in place they must be equal",
                size(bytes)
            ));
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
    fn check_buffer(
        &self,
        name: &str,
        address: u64,
        operation: &Operation,
        rank: usize,
        device: usize,
        site: &Site,
    ) -> NcclResult<()> {
        let (memory, bytes) = (self.memory(device), operation.bytes());
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
    pub(super) fn launch_calls(
        &self,
        calls: Vec<Checked>,
        mut state: MutexGuard<'_, State>,
    ) -> NcclResult<()> {
        for call in calls {
            state.enqueue_call(call)?;
        }
        drop(self.run_ready(state));
        Ok(())
    }

    /// Runs a collective to which every rank has come.
    pub(crate) fn execute_collective(&self, call: CallKey) -> Result<Vec<Vec<Touched>>, Failure> {
        let (operation, parts) = {
            let state = self.state();
            let Some(entry) = state.nccl.call(call) else { return Ok(Vec::new()) };
            let parts: Vec<_> = entry.parts.iter().flatten().enumerate().map(RankBuffers::of).collect();
            let Some(first) = entry.parts.iter().flatten().next() else { return Ok(Vec::new()) };
            (first.operation, parts)
        };
        // Always in ascending order, so that two collectives can't wait for each other's GPUs.
        let mut memories: BTreeMap<usize, MutexGuard<'_, DeviceMemory>> = BTreeMap::new();
        let mut devices: Vec<usize> = parts.iter().map(|part| part.device).collect();
        devices.sort_unstable();
        for device in devices {
            memories.entry(device).or_insert_with(|| self.memory(device));
        }
        let mut inputs = Vec::new();
        let mut touched: Vec<Vec<Touched>> = parts.iter().map(|_| Vec::new()).collect();
        for part in &parts {
            if matches!(operation.collective, Collective::Broadcast { root } if root as usize != part.rank) {
                continue;
            }
            let (input, read) = self.input(&memories[&part.device], part, &operation)?;
            inputs.push(input);
            touched[part.rank].push(read);
        }
        let result = match operation.collective {
            Collective::Broadcast { .. } => inputs.swap_remove(0),
            Collective::AllReduce(operator) => reduce::all_reduce(&inputs, operation.data_type, operator),
        };
        let bytes = operation.bytes();
        for part in &parts {
            let Some(memory) = memories.get_mut(&part.device) else { continue };
            let Ok((allocation, offset)) = memory.range_mut(part.buffers.receive, bytes) else {
                return Err(gone(memory, part, part.buffers.receive, &operation));
            };
            allocation.bytes_mut()[offset as usize..(offset + bytes) as usize].copy_from_slice(&result);
            allocation.mark_written(offset..offset + bytes);
            touched[part.rank].push(Touched::range(part.device, allocation, offset, bytes, true));
        }
        Ok(touched)
    }

    /// A rank's send buffer, checked for bytes that nothing wrote.
    fn input(
        &self,
        memory: &DeviceMemory,
        part: &RankBuffers,
        operation: &Operation,
    ) -> Result<(Vec<u8>, Touched), Failure> {
        let (address, bytes) = (part.buffers.send, operation.bytes());
        let Ok((allocation, offset)) = memory.range(address, bytes) else {
            return Err(gone(memory, part, address, operation));
        };
        if let Some(first) = allocation.first_unwritten(offset..offset + bytes)
            && self.config().checks != Checks::Off
        {
            let rank = part.rank;
            let report = Report::new(format!("{operation} reads bytes that nothing wrote, on rank {rank}"))
                .fact(format!("byte {first} is the first of them"))
                .at(format!("in the buffer of {} allocated", size(allocation.size())), allocation.site())
                .at(format!("read by {}", operation.function()), &part.site)
                .help("fill the buffer first (memcpy_htod, memset_zeros, a kernel), on a stream that comes before");
            let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
            if self.config().checks == Checks::Error {
                return Err(failure);
            }
        }
        let read = Touched::range(part.device, allocation, offset, bytes, false);
        Ok((allocation.read(offset..offset + bytes), read))
    }

    /// Ends a call that has run: every rank's stream goes on, after all that any rank's stream had done before.
    pub(crate) fn finish_collective(
        &self,
        state: &mut State,
        key: CallKey,
        outcome: Result<Vec<Vec<Touched>>, Failure>,
    ) {
        let Some(clique) = state.nccl.cliques.get_mut(&key.clique) else { return };
        let Some(call) = clique.calls.remove(&key.number) else { return };
        if let Err(failure) = &outcome {
            clique.failed.get_or_insert_with(|| Error::new(NcclStatus::InvalidUsage, failure.report.clone()));
        }
        let parts: Vec<Part> = call.parts.into_iter().flatten().collect();
        match outcome {
            Err(failure) => parts.iter().for_each(|part| state.fail_stream(part.op.stream, &failure)),
            Ok(touched) => {
                for (part, touched) in parts.iter().zip(touched) {
                    let what = part.operation.function().to_owned();
                    self.note_touched(state, part.op.stream, what, touched);
                }
            }
        }
        let mut joined = View::default();
        for part in &parts {
            if let Some(view) = state.view_at_end_of(part.op) {
                joined.join(&view);
            }
        }
        for part in &parts {
            state.finish_after(part.op.stream, &joined);
        }
    }
}

/// One rank's share of a collective that runs.
struct RankBuffers {
    rank: usize,
    device: usize,
    buffers: Buffers,
    site: Site,
}

impl RankBuffers {
    fn of((rank, part): (usize, &Part)) -> Self {
        Self { rank, device: part.device, buffers: part.buffers, site: part.site.clone() }
    }
}

/// A buffer that was there at the call and is not any more.
fn gone(memory: &DeviceMemory, part: &RankBuffers, address: u64, operation: &Operation) -> Failure {
    let headline =
        format!("a buffer of rank {} was freed before its {} ran", part.rank, operation.function());
    let report = address_report(&headline, memory, address, operation.bytes(), part.device)
        .at(operation.to_string(), &part.site);
    Failure::announce(CudaStatus::IllegalAddress, &report)
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
