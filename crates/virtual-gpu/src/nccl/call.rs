//! Calls that move data: what was asked, checked at the call, in NCCL's order.

use super::communicator::CommHandle;
use super::log;
use super::operation::{Buffers, Operation, Plan};
use super::run::Job;
use super::scale::Scale;
use super::transfer::{Direction, Transfer};
use crate::engine::{Engine, Failure, Hopeless, OpRef, State, StreamHandle, address_report};
use crate::report::{Report, size};
use crate::time::choice::Enabled;
use crate::time::tuning::World;
use std::sync::Arc;
use virtual_gpu_core::source_location::Site;
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};
use virtual_gpu_core::sync::MutexGuard;
use virtual_gpu_core::thread::ThreadKey;

/// Something that ranks of a clique do together, or one of them with others, and wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum CallKey {
    /// The `number`th collective of a clique, of all its ranks.
    Collective { clique: u64, number: u64 },
    /// The sends and receives that `rank` launched together, its `number`th such group.
    Exchange { clique: u64, rank: usize, number: u64 },
    /// The `number`th call of a clique that the threads of all ranks wait in: a split, a finalize.
    Assembly { clique: u64, number: u64 },
}

#[cfg(test)]
impl CallKey {
    /// Some call.
    pub(crate) fn of_test() -> Self {
        Self::Collective { clique: 1, number: 1 }
    }
}

/// Why a rank has not come to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Missing {
    /// It has left the communicator, or what it called has failed.
    Gone,
    /// It has called; its stream has not got there.
    InStream(OpRef),
    /// It has called, in another process. Its stream has not got there.
    Elsewhere,
    /// It has not called. This thread drives it.
    NotCalled(ThreadKey),
    /// It has not called, and threads hand its communicator's ranks to each other. This one had it last.
    Handed {
        thread: ThreadKey,
        /// It has called for the rank before.
        has_used: bool,
    },
}

/// A call that moves data, as it was asked for.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    /// A collective.
    Collective(Operation, Buffers),
    /// A send or a receive, with the device address of its buffer.
    Transfer(Transfer, u64),
}

/// Bytes that a request reads or writes.
pub(super) struct Access {
    /// The buffer in words, and the C function's name for it.
    name: (&'static str, &'static str),
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) writes: bool,
}

impl Request {
    /// The C function.
    pub(super) fn function(&self) -> &'static str {
        match self {
            Self::Collective(operation, _) => operation.function(),
            Self::Transfer(transfer, _) => transfer.direction.function(),
        }
    }

    /// What `rank` reads and writes of its own memory.
    pub(super) fn accesses(&self, rank: usize, world_size: usize) -> Vec<Access> {
        let access = |name, address, bytes, writes| Access { name, address, bytes, writes };
        let (send, receive) = (("send", "sendbuff"), ("receive", "recvbuff"));
        match self {
            Self::Collective(operation, buffers) => {
                let given = operation.given(rank, world_size);
                let got = operation.got(rank, world_size);
                let given = given.map(|bytes| access(send, buffers.send, bytes, false));
                let got = got.map(|bytes| access(receive, buffers.receive, bytes, true));
                let scale = match buffers.scale {
                    Some(Scale::At(address)) => {
                        Some(access(("scalar", "scalar"), address, operation.data_type.size(), false))
                    }
                    _ => None,
                };
                given.into_iter().chain(got).chain(scale).collect()
            }
            Self::Transfer(transfer, _) if transfer.count == 0 => Vec::new(),
            Self::Transfer(transfer, buffer) => vec![match transfer.direction {
                Direction::Send => access(send, *buffer, transfer.bytes(), false),
                Direction::Receive => access(receive, *buffer, transfer.bytes(), true),
            }],
        }
    }

    /// Says what is wrong with its numbers, in the order in which NCCL looks at them.
    fn fault(&self, world_size: usize) -> Option<String> {
        let function = self.function();
        let no_rank = |rank: i32| !usize::try_from(rank).is_ok_and(|rank| rank < world_size);
        match self {
            Self::Collective(operation, _) => {
                let data_type = operation.data_type;
                match (operation.root(), operation.operator()) {
                    (Some(root), _) if no_rank(root) => {
                        Some(format!("{function}: root {root} of {world_size} ranks"))
                    }
                    (_, Some(_)) if !data_type.is_reducible() => {
                        Some(format!("virtual GPU: {function} of {data_type} is not supported"))
                    }
                    _ => None,
                }
            }
            Self::Transfer(Transfer { peer, .. }, _) => {
                no_rank(*peer).then(|| format!("{function}: peer {peer} of {world_size} ranks"))
            }
        }
    }

    /// A collective that moves nothing and is over at once. A message of no bytes is still one that both ends wait for.
    fn dropped(&self) -> Option<Operation> {
        match self {
            Self::Collective(operation, _) => Some(*operation).filter(|operation| operation.count == 0),
            Self::Transfer(..) => None,
        }
    }
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Collective(operation, _) => operation.fmt(f),
            Self::Transfer(transfer, _) => transfer.fmt(f),
        }
    }
}

fn invalid_usage(message: impl Into<Arc<str>>) -> Error<NcclStatus> {
    Error::new(NcclStatus::InvalidUsage, message)
}

/// A call whose arguments are good, not launched yet.
#[derive(Clone)]
pub(super) struct Checked {
    pub(super) clique: u64,
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) stream: StreamHandle,
    pub(super) request: Request,
    /// Its place among its rank's launches that were captured; `None` outside of a graph.
    pub(super) captured: Option<u64>,
    pub(super) site: Site,
    /// How a collective is done.
    pub(super) plan: Option<Plan>,
}

impl Engine {
    /// A call that moves data, on `stream`. Inside a group it is launched by the group's end.
    ///
    /// # Errors
    /// As NCCL checks them, in its order: communicator, root or peer, pointers; `InvalidArgument` with a sentence.
    pub fn nccl_call(&self, comm: CommHandle, request: Request, stream: StreamHandle) -> NcclResult<()> {
        let checked = self.check_call(comm, request, stream);
        let (call, mut state) = match checked {
            Err(error) => {
                self.state().thread().group.remember(&error);
                return Err(error);
            }
            Ok(None) => return Ok(()),
            Ok(Some(checked)) => checked,
        };
        let group = &mut state.thread().group;
        if group.is_open() {
            group.calls.push(call);
            return Ok(());
        }
        self.launch_calls(vec![call], state)
    }

    /// Checks a call's arguments. `None` is a call that moves nothing.
    fn check_call(
        &self,
        comm: CommHandle,
        request: Request,
        stream: StreamHandle,
    ) -> NcclResult<Option<(Checked, MutexGuard<'_, State>)>> {
        let bad = |message: String| Err(Error::new(NcclStatus::InvalidArgument, message));
        let function = request.function();
        let mut state = self.state();
        let (clique, rank) = state.nccl.ready_member(comm)?;
        let ranks = &state.nccl.cliques[&clique].ranks;
        let (world_size, device) = (ranks.len(), ranks[rank].device);
        if let Some(fault) = request.fault(world_size) {
            return bad(fault);
        }
        log::call(&state, comm, (clique, rank), &request, stream);
        let site = Site::here();
        if let Some(operation) = request.dropped() {
            if let Some(entry) = state.nccl.cliques.get_mut(&clique) {
                let own = &mut entry.ranks[rank];
                own.dropped = Some((own.issued + 1, operation, site));
            }
            return Ok(None);
        }
        drop(state);
        for access in request.accesses(rank, world_size) {
            self.check_buffer(&access, &request, rank, device, &site)?;
        }
        if let Request::Collective(operation, buffers) = &request
            && let Some(overlap) = operation.overlap(*buffers, rank, world_size)
        {
            return bad(overlap);
        }
        let mut state = self.state();
        let stream = state.resolve_stream_on(stream, device)?;
        let of_stream = state.streams.get(&stream).map_or(device, |stream| stream.device);
        if of_stream != device {
            return bad(format!(
                "{function}: the stream is on GPU {of_stream}, rank {rank}'s communicator on GPU {device}"
            ));
        }
        let plan = match &request {
            Request::Collective(operation, _) => {
                let enabled = Enabled::from_env().map_err(invalid_usage)?;
                let preset = state.time.preset();
                let devices = state.nccl.cliques[&clique].ranks.iter().map(|rank| rank.device);
                let world = World::of(preset, devices);
                let plan = operation.plan(preset, enabled, world);
                Some(plan.map_err(invalid_usage)?)
            }
            Request::Transfer(..) => None,
        };
        Ok(Some((Checked { clique, rank, world_size, stream, request, captured: None, site, plan }, state)))
    }

    /// A buffer has to lie in one allocation of its rank's GPU.
    fn check_buffer(
        &self,
        access: &Access,
        request: &Request,
        rank: usize,
        device: usize,
        site: &Site,
    ) -> NcclResult<()> {
        let &Access { name: (name, argument), address, bytes, .. } = access;
        let device_of_buffer = self.memory_of_buffer(address, device);
        if self.memory(device_of_buffer).range(address, bytes).is_ok() {
            return Ok(());
        }
        let headline = format!("the {name} buffer of rank {rank} can't be used ({argument})");
        let report = address_report(&headline, &self.memory(device_of_buffer), address, bytes, device)
            .at(format!("{request} by rank {rank}"), site);
        let elsewhere = (0..self.config().gpus).filter(|&other| other != device).find_map(|other| {
            let memory = self.memory(other);
            let buffer = memory.in_slot(memory.slot_of(address)?)?;
            let text = format!("the buffer of {} on GPU {other} allocated", size(buffer.size()));
            Some((text, buffer.site().clone()))
        });
        let report = match elsewhere {
            Some((text, allocated)) => report
                .before_at(text, &allocated)
                .help(format!("allocate it with a stream of GPU {device}, which is rank {rank}'s")),
            None => report,
        };
        let failure = Failure::announce(CudaStatus::InvalidValue, &report);
        Err(Error::new(NcclStatus::InvalidArgument, failure.report))
    }
}

impl super::Nccl {
    /// Why the ranks that hold up a call have not come to it.
    pub(crate) fn missing(&self, key: CallKey) -> Vec<Missing> {
        match key {
            CallKey::Collective { clique, number } => {
                self.missing_ranks((clique, number)).into_iter().map(|(_, missing)| missing).collect()
            }
            CallKey::Exchange { clique, rank, number } => {
                self.pending(clique, (rank, number)).into_iter().map(|pending| pending.missing).collect()
            }
            CallKey::Assembly { clique, number } => {
                self.absent((clique, number)).into_iter().map(|(_, missing)| missing).collect()
            }
        }
    }
}

impl State {
    /// A stream has come to a call. Returns what can run now.
    pub(crate) fn arrive(&mut self, key: CallKey) -> Option<Job> {
        match key {
            CallKey::Collective { clique, number } => self.arrive_at_collective((clique, number)),
            CallKey::Exchange { clique, rank, number } => self.arrive_at_exchange(clique, (rank, number)),
            CallKey::Assembly { .. } => None,
        }
    }

    /// Makes calls fail that can't be completed: at once for the ranks that have come, on arrival for the others.
    pub(crate) fn fail_calls(&mut self, calls: &Hopeless, status: CudaStatus, report: &Report) {
        let failure = Failure::announce(status, report);
        for &key in calls {
            match key {
                CallKey::Collective { clique, number } => self.fail_collective((clique, number), &failure),
                CallKey::Exchange { clique, rank, number } => {
                    self.fail_exchange(clique, (rank, number), &failure);
                }
                CallKey::Assembly { clique, number } => {
                    self.fail_assembly((clique, number), NcclStatus::Timeout, &failure);
                }
            }
        }
    }
}
