//! The bodies of the functions that move data: collectives with their operators, sends and receives, and one-sided calls.

use std::ffi::{c_int, c_uint};

use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::status::NcclResult;
use virtual_gpu_nccl::{
    Buffers, Collective, Direction, OneSided, Operation, Operator, Put, Request, Scale, Transfer,
};

use super::{Communicator, Window, comm, element, give, invalid, member, started_for};
use crate::pointer::{Bytes, Out, Source};
use crate::types::{DevicePointer, Stream};

pub(crate) fn create_operator(
    to: Out<c_uint>,
    scalar: Bytes,
    data_type: c_uint,
    residence: c_uint,
    of: Communicator,
) -> NcclResult<()> {
    let function = "ncclRedOpCreatePreMulSum";
    let nccl = member(of)?;
    let data_type = element(function, data_type)?;
    let scale = match residence {
        0 => Scale::At(scalar.address() as u64),
        1 => {
            let bytes = scalar.read(data_type.size() as usize);
            let bytes = bytes.ok_or_else(|| invalid(format!("{function}: scalar is null")))?;
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            Scale::Value(value)
        }
        _ => return Err(invalid(format!("{function}: {residence} is not a scalar residence"))),
    };
    if to.is_null() {
        return Err(invalid(format!("{function}: the pointer to op is null")));
    }
    give(to, nccl.create_operator(comm(of), data_type, scale)?)
}

pub(crate) fn destroy_operator(operator: c_uint, of: Communicator) -> NcclResult<()> {
    started_for(of)?.destroy_operator(comm(of), operator)
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
    let collective = |operator| Collective::AllReduce(operator);
    reduction("ncclAllReduce", of, collective, operator, count, data_type, [send, receive], stream)
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
    let collective = Collective::Broadcast { root };
    call("ncclBroadcast", of, collective, count, data_type, [send, receive], stream)
}

/// Implements the older, in-place form of broadcast.
pub(crate) fn bcast(
    buffer: DevicePointer,
    count: usize,
    data_type: c_uint,
    root: c_int,
    of: Communicator,
    stream: Stream,
) -> NcclResult<()> {
    broadcast(buffer, buffer, count, data_type, root, of, stream)
}

#[expect(clippy::too_many_arguments, reason = "ncclReduce has this many parameters")]
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
    let collective = |operator| Collective::Reduce { operator, root };
    reduction("ncclReduce", of, collective, operator, count, data_type, [send, receive], stream)
}

pub(crate) fn all_gather(
    send: DevicePointer,
    receive: DevicePointer,
    count: usize,
    data_type: c_uint,
    of: Communicator,
    stream: Stream,
) -> NcclResult<()> {
    let collective = Collective::AllGather;
    call("ncclAllGather", of, collective, count, data_type, [send, receive], stream)
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
    let collective = |operator| Collective::ReduceScatter(operator);
    reduction("ncclReduceScatter", of, collective, operator, count, data_type, [send, receive], stream)
}

pub(crate) fn all_to_all(
    send: DevicePointer,
    receive: DevicePointer,
    count: usize,
    data_type: c_uint,
    of: Communicator,
    stream: Stream,
) -> NcclResult<()> {
    let collective = Collective::AllToAll;
    call("ncclAlltoAll", of, collective, count, data_type, [send, receive], stream)
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
    let collective = Collective::Gather { root };
    call("ncclGather", of, collective, count, data_type, [send, receive], stream)
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
    let collective = Collective::Scatter { root };
    call("ncclScatter", of, collective, count, data_type, [send, receive], stream)
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

/// Makes a send or receive. As in NCCL, the communicator is checked first.
#[expect(clippy::too_many_arguments, reason = "ncclSend's parameters, plus the function's name")]
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
    let nccl = member(of)?;
    let transfer =
        Transfer { direction, peer, count: count as u64, data_type: element(function, data_type)? };
    nccl.call(comm(of), Request::Transfer(transfer, buffer), StreamHandle(stream as u64))
}

/// Makes a collective that reduces with the given operator.
#[expect(clippy::too_many_arguments, reason = "ncclAllReduce's parameters, plus the function's name")]
fn reduction(
    function: &str,
    of: Communicator,
    collective: impl FnOnce(Operator) -> Collective<c_int>,
    operator: c_uint,
    count: usize,
    data_type: c_uint,
    buffers: [DevicePointer; 2],
    stream: Stream,
) -> NcclResult<()> {
    let nccl = member(of)?;
    let data_type = element(function, data_type)?;
    let (operator, scale) = nccl.operator(function, comm(of), operator, data_type)?;
    let operation = Operation { collective: collective(operator), count: count as u64, data_type };
    let [send, receive] = buffers;
    let request = Request::Collective(operation, Buffers { send, receive, scale });
    nccl.call(comm(of), request, StreamHandle(stream as u64))
}

/// Makes a collective. As in NCCL, the communicator is checked first.
fn call(
    function: &str,
    of: Communicator,
    collective: Collective<c_int>,
    count: usize,
    data_type: c_uint,
    [send, receive]: [DevicePointer; 2],
    stream: Stream,
) -> NcclResult<()> {
    let nccl = member(of)?;
    let operation = Operation { collective, count: count as u64, data_type: element(function, data_type)? };
    let request = Request::Collective(operation, Buffers { send, receive, scale: None });
    nccl.call(comm(of), request, StreamHandle(stream as u64))
}

/// `ncclWaitSignalDesc_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct WaitDescription {
    /// The number of signals.
    pub(crate) count: c_int,
    pub(crate) peer: c_int,
    pub(crate) signal: c_int,
    pub(crate) context: c_int,
}

/// Checks that numbers that NCCL keeps for later versions are 0 ("One-Sided Point-to-Point Operations", NCCL's user guide).
fn check_reserved(function: &str, signal: c_int, context: c_int, flags: c_uint) -> NcclResult<()> {
    match (signal, context, flags) {
        (0, 0, 0) => Ok(()),
        _ => Err(invalid(format!(
            "{function}: sigIdx, ctx, and flags must be 0, not {signal}, {context}, and {flags}"
        ))),
    }
}

#[expect(clippy::too_many_arguments, reason = "ncclPutSignal has this many parameters")]
pub(crate) fn put_signal(
    buffer: DevicePointer,
    count: usize,
    data_type: c_uint,
    peer: c_int,
    window: Window,
    offset: usize,
    signal: c_int,
    context: c_int,
    flags: c_uint,
    of: Communicator,
    stream: Stream,
) -> NcclResult<()> {
    const FUNCTION: &str = "ncclPutSignal";
    let nccl = member(of)?;
    let data_type = element(FUNCTION, data_type)?;
    check_reserved(FUNCTION, signal, context, flags)?;
    let (count, window, offset) = (count as u64, window as u64, offset as u64);
    let put = OneSided::Put(Put { peer, buffer, count, data_type, window, offset });
    nccl.call(comm(of), Request::OneSided(put), StreamHandle(stream as u64))
}

pub(crate) fn signal(
    peer: c_int,
    signal: c_int,
    context: c_int,
    flags: c_uint,
    of: Communicator,
    stream: Stream,
) -> NcclResult<()> {
    let nccl = member(of)?;
    check_reserved("ncclSignal", signal, context, flags)?;
    let request = Request::OneSided(OneSided::Signal { peer });
    nccl.call(comm(of), request, StreamHandle(stream as u64))
}

pub(crate) fn wait_signal(
    count: c_int,
    descriptions: Source<WaitDescription>,
    of: Communicator,
    stream: Stream,
) -> NcclResult<()> {
    const FUNCTION: &str = "ncclWaitSignal";
    let nccl = member(of)?;
    if count <= 0 || descriptions.is_null() {
        let message = match descriptions.is_null() {
            true => format!("{FUNCTION}: the pointer to the descriptions is null"),
            false => format!("{FUNCTION}: it needs at least one description, not {count}"),
        };
        return Err(invalid(message));
    }
    let descriptions =
        descriptions.values(count as usize).map_err(|error| invalid(error.message.to_string()))?;
    let mut waits = Vec::new();
    for WaitDescription { count, peer, signal, context } in descriptions {
        check_reserved(FUNCTION, signal, context, 0)?;
        if count <= 0 {
            return Err(invalid(format!("{FUNCTION}: opCnt must be at least 1, not {count}")));
        }
        waits.push(Request::OneSided(OneSided::Wait { peer, count: count as u64 }));
    }
    nccl.call_all(comm(of), &waits, StreamHandle(stream as u64))
}
