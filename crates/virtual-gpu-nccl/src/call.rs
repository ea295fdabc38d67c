//! Calls that move data: their arguments, which each call checks in NCCL's order.

use super::Nccl;
use super::log;
use super::one_sided::OneSided;
use super::operation::{Buffers, Operation, Plan};
use super::scale::Scale;
use super::transfer::{Direction, Transfer};
use std::sync::Arc;
use virtual_gpu::engine::{Failure, address_report};
use virtual_gpu::report::size;
use virtual_gpu_core::handle::{CommHandle, CommId, Rank, SequenceNumber, StreamHandle};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};

/// A call that moves data, with its arguments. `R` is the type of its root or peer: the `i32` that C code passes, or a
/// [`Rank`] once it has been checked.
#[derive(Clone, Copy, Debug)]
pub enum Request<R = Rank> {
    /// A collective.
    Collective(Operation<R>, Buffers),
    /// A send or a receive, with the device address of its buffer.
    Transfer(Transfer<R>, u64),
    /// A put, a signal, or a wait for signals.
    OneSided(OneSided<R>),
}

/// A range of bytes that a request reads or writes.
pub(crate) struct Access {
    /// The buffer's description, and its parameter name in the C function.
    name: (&'static str, &'static str),
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) writes: bool,
}

impl<R: Copy> Request<R> {
    /// Returns the name of the C function.
    pub(crate) fn function(&self) -> &'static str {
        match self {
            Self::Collective(operation, _) => operation.function(),
            Self::Transfer(transfer, _) => transfer.direction.function(),
            Self::OneSided(call) => call.function(),
        }
    }
}

impl Request<i32> {
    /// Returns the request with a root or peer that is known to exist.
    ///
    /// # Errors
    /// Returns a sentence that names the first bad number, in the order in which NCCL checks them.
    fn checked(self, world_size: usize) -> Result<Request, String> {
        let function = self.function();
        Ok(match self {
            Self::Collective(operation, buffers) => {
                let operation = operation
                    .checked(world_size)
                    .map_err(|root| format!("{function}: root {root} of {world_size} ranks"))?;
                let data_type = operation.data_type;
                if operation.operator().is_some() && !data_type.is_reducible() {
                    return Err(format!("virtual GPU: {function} of {data_type} is not supported"));
                }
                Request::Collective(operation, buffers)
            }
            Self::Transfer(transfer, buffer) => {
                let transfer = transfer
                    .checked(world_size)
                    .map_err(|peer| format!("{function}: peer {peer} of {world_size} ranks"))?;
                Request::Transfer(transfer, buffer)
            }
            Self::OneSided(call) => {
                let call = call
                    .checked(world_size)
                    .map_err(|peer| format!("{function}: peer {peer} of {world_size} ranks"))?;
                Request::OneSided(call)
            }
        })
    }
}

impl Request {
    /// Returns the ranges that `rank` reads and writes in its own memory.
    pub(crate) fn accesses(&self, rank: Rank, world_size: usize) -> impl Iterator<Item = Access> + use<> {
        let access = |name, address, bytes, writes| Access { name, address, bytes, writes };
        let (send, receive) = (("send", "sendbuff"), ("receive", "recvbuff"));
        let all = match self {
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
                [given, got, scale]
            }
            Self::Transfer(transfer, _) if transfer.count == 0 => [None, None, None],
            Self::Transfer(transfer, buffer) => {
                let writes = transfer.direction == Direction::Receive;
                let name = if writes { receive } else { send };
                [Some(access(name, *buffer, transfer.bytes(), writes)), None, None]
            }
            Self::OneSided(OneSided::Put(put)) if put.bytes() > 0 => {
                [Some(access(("local", "localbuff"), put.buffer, put.bytes(), false)), None, None]
            }
            Self::OneSided(_) => [None, None, None],
        };
        all.into_iter().flatten()
    }

    /// Returns the collective if it moves nothing and therefore completes immediately. In contrast, a message of zero
    /// bytes still makes both ends wait for each other.
    fn dropped(&self) -> Option<Operation> {
        match self {
            Self::Collective(operation, _) => Some(*operation).filter(|operation| operation.count == 0),
            Self::Transfer(..) | Self::OneSided(_) => None,
        }
    }
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Collective(operation, _) => operation.fmt(f),
            Self::Transfer(transfer, _) => transfer.fmt(f),
            Self::OneSided(call) => call.fmt(f),
        }
    }
}

fn invalid_usage(message: impl Into<Arc<str>>) -> Error<NcclStatus> {
    Error::new(NcclStatus::InvalidUsage, message)
}

/// A call with valid arguments that has not been launched yet.
#[derive(Clone)]
pub(crate) struct Checked {
    pub(crate) comm: CommId,
    pub(crate) rank: Rank,
    pub(crate) world_size: usize,
    pub(crate) stream: StreamHandle,
    pub(crate) request: Request,
    /// The call's sequence number among its rank's captured launches; `None` outside of a graph.
    pub(crate) captured: Option<SequenceNumber>,
    pub(crate) call_site: CallSite,
    /// How NCCL would run a collective.
    pub(crate) plan: Option<Plan>,
}

impl Nccl {
    /// Makes a call that moves data on `stream`. Inside a group, the end of the group launches it.
    ///
    /// # Errors
    /// Returns the first error that applies, in NCCL's order: a bad communicator, root or peer, or pointer.
    /// `InvalidArgument` comes with a sentence that explains it.
    pub fn call(
        &'static self,
        handle: CommHandle,
        request: Request<i32>,
        stream: StreamHandle,
    ) -> NcclResult<()> {
        self.call_all(handle, &[request], stream)
    }

    /// Makes calls that move data on `stream` and are launched together, such as the parts of `ncclWaitSignal`.
    ///
    /// # Errors
    /// Fails like [`Self::call`]; no call is launched then.
    pub fn call_all(
        &'static self,
        handle: CommHandle,
        requests: &[Request<i32>],
        stream: StreamHandle,
    ) -> NcclResult<()> {
        let mut calls = Vec::new();
        for &request in requests {
            match self.check_call(handle, request, stream) {
                Ok(call) => calls.extend(call),
                Err(error) => {
                    if let Some(group) = self.lock().nccl.open_group() {
                        group.remember(&error);
                    }
                    return Err(error);
                }
            }
        }
        if calls.is_empty() {
            return Ok(());
        }
        let mut guard = self.lock();
        if let Some(group) = guard.nccl.open_group() {
            group.calls.extend(calls);
            return Ok(());
        }
        self.launch_calls(calls, guard)
    }

    /// Checks a call's arguments. Returns `None` for a call that moves nothing.
    fn check_call(
        &self,
        handle: CommHandle,
        request: Request<i32>,
        stream: StreamHandle,
    ) -> NcclResult<Option<Checked>> {
        let bad = |message: String| Error::new(NcclStatus::InvalidArgument, message);
        let function = request.function();
        let mut guard = self.lock();
        let (comm, rank) = guard.nccl.ready_member(handle)?;
        let entry = guard.nccl.communicator(comm)?;
        if entry.ranks[rank].revoked {
            return Err(invalid_usage(format!("{function}: the communicator has been revoked")));
        }
        if entry.ranks[rank].suspended {
            let message = format!("{function}: the communicator is suspended; call ncclCommResume first");
            return Err(invalid_usage(message));
        }
        let (world_size, device) = (entry.ranks.len(), entry.ranks[rank].device);
        let request = request.checked(world_size).map_err(bad)?;
        if let Request::OneSided(OneSided::Put(put)) = &request {
            guard.nccl.check_put(handle, put).map_err(bad)?;
        }
        log::call(entry, handle, rank, &request, stream);
        let call_site = CallSite::here();
        if let Some(operation) = request.dropped() {
            let own = &mut guard.nccl.communicator_mut(comm)?.ranks[rank];
            own.dropped = Some((own.issued.next(), operation, call_site));
            return Ok(None);
        }
        drop(guard);
        for access in request.accesses(rank, world_size) {
            self.check_buffer(&access, &request, rank, device, &call_site)?;
            self.check_direct_access(comm, &access, &request, device)?;
        }
        if let Request::Collective(operation, buffers) = &request
            && let Some(overlap) = operation.overlap(*buffers, rank, world_size)
        {
            return Err(bad(overlap));
        }
        let mut guard = self.lock();
        let state = guard.locked();
        let stream = state.engine.resolve_stream_on(stream, device)?;
        let of_stream = state.engine.stream(stream).map_or(device, |stream| stream.device);
        if of_stream != device {
            return Err(bad(format!(
                "{function}: the stream is on GPU {of_stream}, but rank {rank}'s communicator is on GPU {device}"
            )));
        }
        let plan = match &request {
            Request::Collective(operation, _) => {
                let entry = state.nccl.communicator_mut(comm)?;
                let plan = entry.plan(operation, state.engine.time.preset());
                Some(plan.map_err(invalid_usage)?)
            }
            Request::Transfer(..) | Request::OneSided(_) => None,
        };
        Ok(Some(Checked { comm, rank, world_size, stream, request, captured: None, call_site, plan }))
    }

    /// Checks that a buffer lies within one allocation on its rank's GPU.
    fn check_buffer(
        &self,
        access: &Access,
        request: &Request,
        rank: Rank,
        device: usize,
        call_site: &CallSite,
    ) -> NcclResult<()> {
        let &Access { name: (name, argument), address, bytes, .. } = access;
        let device_of_buffer = self.memory_of_buffer(address, device);
        if self.engine.memory(device_of_buffer).range(address, bytes).is_ok() {
            return Ok(());
        }
        let headline = format!("rank {rank}'s {name} buffer can't be used ({argument})");
        let report = address_report(&headline, &self.engine.memory(device_of_buffer), address, bytes, device)
            .at(format!("{request} by rank {rank}"), call_site);
        let elsewhere = (0..self.engine.config().gpus).filter(|&other| other != device).find_map(|other| {
            let memory = self.engine.memory(other);
            let buffer = memory.in_slot(memory.slot_of(address)?)?;
            let text = format!("the buffer of {} on GPU {other} was allocated here", size(buffer.size()));
            Some((text, buffer.call_site().clone()))
        });
        let report = match elsewhere {
            Some((text, allocated)) => report
                .before_at(text, &allocated)
                .help(format!("allocate it on a stream of GPU {device}, which is rank {rank}'s GPU")),
            None => report,
        };
        let failure = Failure::announce(CudaStatus::InvalidValue, &report);
        Err(Error::new(NcclStatus::InvalidArgument, failure.report))
    }
}
