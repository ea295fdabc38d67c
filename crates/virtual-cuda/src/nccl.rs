//! The NCCL functions' bodies.

use std::ffi::{c_int, c_uint, c_void};

use virtual_gpu::engine::StreamHandle;
use virtual_gpu::nccl::{
    Buffers, Collective, CommHandle, DataType, Direction, Operation, Operator, Request, Transfer, UniqueId,
    VERSION,
};
use virtual_gpu::status::{CudaStatus, Error, NcclResult, NcclStatus};

use crate::driver::{DevicePointer, Stream};
use crate::engine;
use crate::pointer::{Out, Source};

/// `ncclComm_t`
pub type Communicator = *mut c_void;

/// `ncclUniqueId`, passed by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Id([u8; 128]);

fn invalid(message: impl Into<String>) -> Error<NcclStatus> {
    Error::new(NcclStatus::InvalidArgument, message.into())
}

fn comm(comm: Communicator) -> CommHandle {
    CommHandle(comm as u64)
}

/// Writes a result where the caller wants it.
fn give<T: Copy>(to: Out<T>, value: T) -> NcclResult<()> {
    to.give(value).map_err(|error| Error::new(NcclStatus::InvalidArgument, error.message))
}

/// The engine. NCCL works without an explicit `cuInit`: the real library calls it too.
fn started() -> NcclResult<&'static virtual_gpu::engine::Engine> {
    let engine = engine::start().and_then(|()| engine::get());
    engine.map_err(|error: Error<CudaStatus>| error.into())
}

pub(crate) fn version(to: Out<c_int>) -> NcclResult<()> {
    give(to, VERSION)
}

pub(crate) fn unique_id(to: Out<Id>) -> NcclResult<()> {
    give(to, Id(*started()?.nccl_unique_id().bytes()))
}

pub(crate) fn init_all(to: Out<Communicator>, count: c_int, devices: Source<c_int>) -> NcclResult<()> {
    let count = usize::try_from(count).map_err(|_| invalid(format!("ncclCommInitAll: {count} devices")))?;
    if to.is_null() && count > 0 {
        return Err(invalid("ncclCommInitAll: the pointer for the communicators is null"));
    }
    let devices = match devices.is_null() {
        true => (0..count as c_int).collect(),
        false => devices.values(count).map_err(|error| invalid(error.message.to_string()))?,
    };
    let made: Vec<_> =
        started()?.nccl_init_all(&devices)?.into_iter().map(|made| made.0 as Communicator).collect();
    to.give_all(&made).map_err(|error| invalid(error.message.to_string()))
}

pub(crate) fn init_rank(to: Out<Communicator>, world_size: c_int, id: Id, rank: c_int) -> NcclResult<()> {
    if to.is_null() {
        return Err(invalid("ncclCommInitRank: the pointer for the communicator is null"));
    }
    let id = UniqueId::from_bytes(id.0)?;
    let made = started()?.nccl_init_rank(world_size, id, rank)?;
    give(to, made.0 as Communicator)
}

pub(crate) fn destroy(of: Communicator) -> NcclResult<()> {
    if of.is_null() { Ok(()) } else { started()?.nccl_destroy(comm(of)) }
}

/// Always succeeds, so that a program can clean up whatever has happened.
pub(crate) fn abort(of: Communicator) -> NcclResult<()> {
    if let Ok(engine) = started() {
        engine.nccl_abort(comm(of));
    }
    Ok(())
}

pub(crate) fn count(of: Communicator, to: Out<c_int>) -> NcclResult<()> {
    give(to, started()?.nccl_identity(comm(of))?.0 as c_int)
}

pub(crate) fn rank(of: Communicator, to: Out<c_int>) -> NcclResult<()> {
    give(to, started()?.nccl_identity(comm(of))?.1 as c_int)
}

pub(crate) fn device(of: Communicator, to: Out<c_int>) -> NcclResult<()> {
    give(to, started()?.nccl_identity(comm(of))?.2 as c_int)
}

pub(crate) fn async_error(of: Communicator, to: Out<c_uint>) -> NcclResult<()> {
    let error = started()?.nccl_async_error(comm(of))?;
    give(to, error.map_or(NcclStatus::Success, |error| error.status) as c_uint)
}

pub(crate) fn group_start() -> NcclResult<()> {
    started()?.nccl_group_start();
    Ok(())
}

pub(crate) fn group_end() -> NcclResult<()> {
    started()?.nccl_group_end()
}

pub(crate) fn all_reduce(
    send: DevicePointer,
    receive: DevicePointer,
    count: usize,
    data_type: c_uint,
    operator: c_uint,
    of: Communicator,
    stream: Stream,
) -> NcclResult<()> {
    let collective = |function: &str| Ok(Collective::AllReduce(reduction(function, operator)?));
    call("ncclAllReduce", of, collective, count, data_type, Buffers { send, receive }, stream)
}

pub(crate) fn broadcast(
    send: DevicePointer,
    receive: DevicePointer,
    count: usize,
    data_type: c_uint,
    root: c_int,
    of: Communicator,
    stream: Stream,
) -> NcclResult<()> {
    let collective = |_: &str| Ok(Collective::Broadcast { root });
    call("ncclBroadcast", of, collective, count, data_type, Buffers { send, receive }, stream)
}

#[expect(clippy::too_many_arguments, reason = "as many as ncclReduce has")]
pub(crate) fn reduce(
    send: DevicePointer,
    receive: DevicePointer,
    count: usize,
    data_type: c_uint,
    operator: c_uint,
    root: c_int,
    of: Communicator,
    stream: Stream,
) -> NcclResult<()> {
    let collective =
        |function: &str| Ok(Collective::Reduce { operator: reduction(function, operator)?, root });
    call("ncclReduce", of, collective, count, data_type, Buffers { send, receive }, stream)
}

pub(crate) fn all_gather(
    send: DevicePointer,
    receive: DevicePointer,
    count: usize,
    data_type: c_uint,
    of: Communicator,
    stream: Stream,
) -> NcclResult<()> {
    let collective = |_: &str| Ok(Collective::AllGather);
    call("ncclAllGather", of, collective, count, data_type, Buffers { send, receive }, stream)
}

pub(crate) fn reduce_scatter(
    send: DevicePointer,
    receive: DevicePointer,
    count: usize,
    data_type: c_uint,
    operator: c_uint,
    of: Communicator,
    stream: Stream,
) -> NcclResult<()> {
    let collective = |function: &str| Ok(Collective::ReduceScatter(reduction(function, operator)?));
    call("ncclReduceScatter", of, collective, count, data_type, Buffers { send, receive }, stream)
}

pub(crate) fn all_to_all(
    send: DevicePointer,
    receive: DevicePointer,
    count: usize,
    data_type: c_uint,
    of: Communicator,
    stream: Stream,
) -> NcclResult<()> {
    let collective = |_: &str| Ok(Collective::AllToAll);
    call("ncclAlltoAll", of, collective, count, data_type, Buffers { send, receive }, stream)
}

pub(crate) fn gather(
    send: DevicePointer,
    receive: DevicePointer,
    count: usize,
    data_type: c_uint,
    root: c_int,
    of: Communicator,
    stream: Stream,
) -> NcclResult<()> {
    let collective = |_: &str| Ok(Collective::Gather { root });
    call("ncclGather", of, collective, count, data_type, Buffers { send, receive }, stream)
}

pub(crate) fn scatter(
    send: DevicePointer,
    receive: DevicePointer,
    count: usize,
    data_type: c_uint,
    root: c_int,
    of: Communicator,
    stream: Stream,
) -> NcclResult<()> {
    let collective = |_: &str| Ok(Collective::Scatter { root });
    call("ncclScatter", of, collective, count, data_type, Buffers { send, receive }, stream)
}

pub(crate) fn send(
    buffer: DevicePointer,
    count: usize,
    data_type: c_uint,
    peer: c_int,
    of: Communicator,
    stream: Stream,
) -> NcclResult<()> {
    transfer("ncclSend", Direction::Send, buffer, count, data_type, peer, of, stream)
}

pub(crate) fn receive(
    buffer: DevicePointer,
    count: usize,
    data_type: c_uint,
    peer: c_int,
    of: Communicator,
    stream: Stream,
) -> NcclResult<()> {
    transfer("ncclRecv", Direction::Receive, buffer, count, data_type, peer, of, stream)
}

/// A send or a receive. The communicator is checked before everything else, as in NCCL.
#[expect(clippy::too_many_arguments, reason = "those of ncclSend, and which function it is")]
fn transfer(
    function: &str,
    direction: Direction,
    buffer: DevicePointer,
    count: usize,
    data_type: c_uint,
    peer: c_int,
    of: Communicator,
    stream: Stream,
) -> NcclResult<()> {
    let engine = started()?;
    engine.nccl_identity(comm(of))?;
    let transfer =
        Transfer { direction, peer, count: count as u64, data_type: element(function, data_type)? };
    engine.nccl_call(comm(of), Request::Transfer(transfer, buffer), StreamHandle(stream as u64))
}

/// A collective. The communicator is checked before everything else, as in NCCL.
fn call(
    function: &str,
    of: Communicator,
    collective: impl FnOnce(&str) -> NcclResult<Collective>,
    count: usize,
    data_type: c_uint,
    buffers: Buffers,
    stream: Stream,
) -> NcclResult<()> {
    let engine = started()?;
    engine.nccl_identity(comm(of))?;
    let collective = collective(function)?;
    let operation = Operation { collective, count: count as u64, data_type: element(function, data_type)? };
    engine.nccl_call(comm(of), Request::Collective(operation, buffers), StreamHandle(stream as u64))
}

fn reduction(function: &str, operator: c_uint) -> NcclResult<Operator> {
    Operator::from_value(operator)
        .ok_or_else(|| invalid(format!("{function}: {operator} is no reduction operator")))
}

fn element(function: &str, data_type: c_uint) -> NcclResult<DataType> {
    DataType::from_value(data_type).ok_or_else(|| invalid(format!("{function}: {data_type} is no data type")))
}
