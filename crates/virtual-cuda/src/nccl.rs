//! The bodies of the NCCL functions.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use virtual_gpu_core::handle::{CommHandle, StreamHandle};
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};
use virtual_gpu_nccl::{
    Buffers, Collective, CommConfig, DataType, Direction, Nccl, OneSided, Operation, Operator, Put, Request,
    Scale, Transfer, UniqueId,
};

use crate::answer;
use crate::engine;
use crate::memory;
use crate::pointer::{Bytes, Out, Source};
use crate::types::{DevicePointer, Stream};

/// `ncclComm_t`
pub type Communicator = *mut c_void;

/// `ncclWindow_t`
pub type Window = *mut c_void;

/// `ncclSimInfo_t`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SimulationInfo {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    /// The estimated time in microseconds.
    pub(crate) time: f32,
}

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

/// Writes a result to the address that the caller passed.
fn give<T: Copy>(to: Out<T>, value: T) -> NcclResult<()> {
    to.give(value).map_err(|error| Error::new(NcclStatus::InvalidArgument, error.message))
}

/// Returns NCCL. This works without an explicit `cuInit`, because the real library also calls `cuInit` itself.
fn started() -> NcclResult<&'static Nccl> {
    let nccl = engine::start().and_then(|()| engine::nccl());
    nccl.map_err(|error: Error<CudaStatus>| error.into())
}

/// Returns NCCL for a call on a communicator. NCCL rejects a null one even on a machine without a GPU.
fn started_for(of: Communicator) -> NcclResult<&'static Nccl> {
    if of.is_null() { Err(invalid("the communicator is NULL")) } else { started() }
}

pub(crate) fn version(to: Out<c_int>) -> NcclResult<()> {
    let version = engine::nccl_version().map_err(|message| Error::new(NcclStatus::SystemError, message))?;
    give(to, version)
}

pub(crate) fn unique_id(to: Out<Id>) -> NcclResult<()> {
    if to.is_null() {
        return Err(invalid("ncclGetUniqueId: the pointer to the id is null"));
    }
    give(to, Id(*started()?.unique_id(crate::interfaces::all)?.bytes()))
}

pub(crate) fn init_all(to: Out<Communicator>, count: c_int, devices: Source<c_int>) -> NcclResult<()> {
    // Since 2.23, NCCL starts CUDA before it reads any argument.
    let nccl = started()?;
    if to.is_null() {
        return Err(invalid("ncclCommInitAll: the pointer to the communicators is null"));
    }
    let count = usize::try_from(count).map_err(|_| invalid(format!("ncclCommInitAll: {count} devices")))?;
    let devices = match devices.is_null() {
        // One device too many is enough for the call to be rejected.
        true => (0..=engine::get()?.device_count() as c_int).take(count).collect(),
        false => devices.values(count).map_err(|error| invalid(error.message.to_string()))?,
    };
    let made: Vec<_> = nccl.init_all(&devices)?.into_iter().map(|made| made.0 as Communicator).collect();
    to.give_all(&made).map_err(|error| invalid(error.message.to_string()))
}

pub(crate) fn init_rank(to: Out<Communicator>, world_size: c_int, id: Id, rank: c_int) -> NcclResult<()> {
    init("ncclCommInitRank", to, world_size, id, rank, CommConfig::default())
}

pub(crate) fn init_rank_config(
    to: Out<Communicator>,
    world_size: c_int,
    id: Id,
    rank: c_int,
    config: Bytes,
) -> NcclResult<()> {
    let config = read_config(config)?.unwrap_or_default();
    init("ncclCommInitRankConfig", to, world_size, id, rank, config)
}

/// Like [`init_rank_config`], with several ids, which every rank passes in the same order. NCCL divides the work of the
/// bootstrap between their creators. Here the first one does all of it.
pub(crate) fn init_rank_scalable(
    to: Out<Communicator>,
    world_size: c_int,
    rank: c_int,
    ids: c_int,
    id: Source<Id>,
    config: Bytes,
) -> NcclResult<()> {
    let function = "ncclCommInitRankScalable";
    let count = usize::try_from(ids).unwrap_or(0);
    if count == 0 || ids > world_size {
        return Err(invalid(format!("{function}: {ids} ids for {world_size} ranks: pass 1 to {world_size}")));
    }
    let ids = id.values(count).map_err(|_| invalid(format!("{function}: the pointer to the ids is null")))?;
    for id in &ids {
        UniqueId::from_bytes(id.0)?;
    }
    let config = read_config(config)?.unwrap_or_default();
    init(function, to, world_size, ids[0], rank, config)
}

/// Registers a buffer. Registered buffers make some real collectives faster; here, nothing changes.
///
/// # Errors
/// Returns `InvalidArgument` unless all bytes are in one buffer of the communicator's GPU.
pub(crate) fn register(
    of: Communicator,
    buffer: DevicePointer,
    bytes: usize,
    to: Out<*mut c_void>,
) -> NcclResult<()> {
    let nccl = started_for(of)?;
    if to.is_null() {
        return Err(invalid("ncclCommRegister: the pointer to the handle is null"));
    }
    give(to, nccl.register(comm(of), buffer, bytes as u64)? as *mut c_void)
}

/// # Errors
/// Returns `InvalidUsage` for a handle that the communicator doesn't have.
pub(crate) fn deregister(of: Communicator, registration: *mut c_void) -> NcclResult<()> {
    started_for(of)?.deregister(comm(of), registration as u64)
}

/// Allocates memory on the calling thread's GPU, as `cuMemAlloc` does.
pub(crate) fn allocate(to: Out<DevicePointer>, bytes: usize) -> NcclResult<()> {
    started()?;
    if to.is_null() {
        return Err(invalid("ncclMemAlloc: the pointer to the address is null"));
    }
    // As `cudaMalloc`, which NCCL then calls.
    if bytes == 0 {
        return give(to, 0);
    }
    Ok(memory::allocate(to, bytes)?)
}

/// Frees memory of [`allocate`]; a null address is ignored.
pub(crate) fn free(address: DevicePointer) -> NcclResult<()> {
    started()?;
    if address == 0 { Ok(()) } else { Ok(memory::free(address)?) }
}

fn init(
    function: &str,
    to: Out<Communicator>,
    world_size: c_int,
    id: Id,
    rank: c_int,
    config: CommConfig,
) -> NcclResult<()> {
    // NCCL starts CUDA before it reads any argument.
    let nccl = started()?;
    if to.is_null() {
        return Err(invalid(format!("{function}: the pointer to the communicator is null")));
    }
    let id = UniqueId::from_bytes(id.0)?;
    let made = nccl.init_rank(world_size, id, rank, config)?;
    give(to, made.0 as Communicator)?;
    if config.blocking { Ok(()) } else { Err(NcclStatus::InProgress.into()) }
}

/// Reads an `ncclConfig_t`, whose first field is its own size. Returns `None` if the caller passed none.
fn read_config(config: Bytes) -> NcclResult<Option<CommConfig>> {
    let Some(size) = config.read(size_of::<usize>()) else { return Ok(None) };
    let size = size.try_into().map_or(0, usize::from_ne_bytes);
    let bytes = config.read(size.min(CommConfig::SIZE)).unwrap_or_default();
    CommConfig::from_bytes(bytes).map(Some)
}

pub(crate) fn split(
    of: Communicator,
    color: c_int,
    key: c_int,
    to: Out<Communicator>,
    config: Bytes,
) -> NcclResult<()> {
    let nccl = started_for(of)?;
    nccl.identity(comm(of))?;
    let config = read_config(config)?;
    give(to, std::ptr::null_mut())?;
    let to = to.address();
    // The caller's variable outlives the split, as NCCL requires.
    let deliver = move |made: CommHandle| {
        let _ = Out::at(to).give(made.0 as Communicator);
    };
    nccl.split(comm(of), color, key, config, Box::new(deliver))
}

/// # Errors
/// Returns `InvalidArgument` for a bad list of ranks, or one with the calling rank.
pub(crate) fn shrink(
    of: Communicator,
    excluded: Source<c_int>,
    count: c_int,
    to: Out<Communicator>,
    config: Bytes,
    flags: c_int,
) -> NcclResult<()> {
    let nccl = started_for(of)?;
    nccl.identity(comm(of))?;
    if to.is_null() {
        return Err(invalid("ncclCommShrink: the pointer to the communicator is null"));
    }
    if excluded.is_null() {
        return Err(invalid("ncclCommShrink: the list of excluded ranks is null"));
    }
    let excluded = usize::try_from(count).ok().and_then(|count| excluded.values(count).ok());
    let excluded = excluded.unwrap_or_default();
    let config = read_config(config)?;
    give(to, std::ptr::null_mut())?;
    let to = to.address();
    // The caller's variable outlives the call, as NCCL requires.
    let deliver = move |made: CommHandle| {
        let _ = Out::at(to).give(made.0 as Communicator);
    };
    nccl.shrink(comm(of), &excluded, flags & SHRINK_ABORT != 0, config, Box::new(deliver))
}

/// Creates the id for a larger communicator, which its new ranks need.
pub(crate) fn unique_id_of(of: Communicator, to: Out<Id>) -> NcclResult<()> {
    started_for(of)?.identity(comm(of))?;
    unique_id(to)
}

/// Makes a larger communicator. A rank of the communicator keeps its number, and passes -1 for it; a new rank has no
/// communicator, and passes its number.
pub(crate) fn grow(
    of: Communicator,
    world_size: c_int,
    id: Source<Id>,
    rank: c_int,
    to: Out<Communicator>,
    config: Bytes,
) -> NcclResult<()> {
    const FUNCTION: &str = "ncclCommGrow";
    let nccl = started()?;
    if to.is_null() {
        return Err(invalid("ncclCommGrow: the pointer to the communicator is null"));
    }
    give(to, std::ptr::null_mut())?;
    let config = read_config(config)?;
    let given = match id.is_null() {
        true => None,
        false => Some(id.value("the id").map_err(|error| invalid(error.message.to_string()))?),
    };
    if of.is_null() {
        let given = given.ok_or_else(|| invalid(format!("{FUNCTION}: a new rank needs the id")))?;
        return init(FUNCTION, to, world_size, given, rank, config.unwrap_or_default());
    }
    nccl.identity(comm(of))?;
    if rank != -1 {
        let message =
            format!("{FUNCTION}: a rank of the communicator keeps its number, and must pass -1, not {rank}");
        return Err(invalid(message));
    }
    let id = given.map(|id| UniqueId::from_bytes(id.0)).transpose()?;
    let grown = nccl.grow(comm(of), world_size, id, config)?;
    give(to, grown.0 as Communicator)
}

/// `NCCL_SHRINK_ABORT`
const SHRINK_ABORT: c_int = 1;

/// Cancels a rank's work; a null communicator is ignored.
///
/// # Errors
/// Returns `InvalidArgument` for flags, which must be `NCCL_REVOKE_DEFAULT`.
pub(crate) fn revoke(of: Communicator, flags: c_int) -> NcclResult<()> {
    if of.is_null() {
        return Ok(());
    }
    if flags != 0 {
        return Err(invalid(format!(
            "ncclCommRevoke: the flags must be NCCL_REVOKE_DEFAULT (0), not {flags:#x}"
        )));
    }
    started()?.revoke(comm(of))
}

/// Registers a buffer together with all ranks. The flags only affect how fast real collectives are.
///
/// # Errors
/// Returns `InvalidArgument` for a null buffer, no bytes, or bytes that no window can have.
/// `NCCL_WIN_COLL_SYMMETRIC`
const SYMMETRIC: c_int = 1;

pub(crate) fn register_window(
    of: Communicator,
    buffer: DevicePointer,
    bytes: usize,
    to: Out<Window>,
    flags: c_int,
) -> NcclResult<()> {
    let nccl = started_for(of)?;
    if to.is_null() {
        return Err(invalid("ncclCommWindowRegister: the pointer to the window is null"));
    }
    give(to, std::ptr::null_mut())?;
    if buffer == 0 || bytes == 0 {
        return Err(invalid(format!(
            "ncclCommWindowRegister: {bytes} bytes at {buffer:#x} can't be registered"
        )));
    }
    let to = to.address();
    // The caller's variable outlives the call, as NCCL requires.
    let deliver = move |window: CommHandle| {
        let _ = Out::at(to).give(window.0 as Window);
    };
    let is_symmetric = flags & SYMMETRIC != 0;
    nccl.register_window(comm(of), buffer, bytes as u64, is_symmetric, Box::new(deliver))
}

pub(crate) fn deregister_window(of: Communicator, window: Window) -> NcclResult<()> {
    started_for(of)?.deregister_window(comm(of), window as u64)
}

pub(crate) fn window_pointer(of: Communicator, window: Window, to: Out<*mut c_void>) -> NcclResult<()> {
    let nccl = started_for(of)?;
    if to.is_null() {
        return Err(invalid("ncclWinGetUserPtr: the pointer to the address is null"));
    }
    give(to, nccl.window_address(comm(of), window as u64)? as *mut c_void)
}

/// `ncclStatGpuMemSuspended`
const IS_SUSPENDED: c_uint = 1;
/// `NCCL_SUSPEND_MEM`
const SUSPENDS_MEMORY: c_int = 1;

/// Suspends nothing without `NCCL_SUSPEND_MEM`, as in NCCL.
pub(crate) fn suspend(of: Communicator, flags: c_int) -> NcclResult<()> {
    let nccl = started_for(of)?;
    nccl.identity(comm(of))?;
    if flags & SUSPENDS_MEMORY == 0 { Ok(()) } else { nccl.suspend(comm(of), true) }
}

pub(crate) fn resume(of: Communicator) -> NcclResult<()> {
    started_for(of)?.suspend(comm(of), false)
}

/// Returns 0 for each number of bytes, because communicators of the virtual NCCL use none of the GPU's memory, and whether
/// the communicator is suspended.
///
/// # Errors
/// Returns `InvalidArgument` for a statistic that doesn't exist.
pub(crate) fn memory_statistic(of: Communicator, statistic: c_uint, to: Out<c_ulonglong>) -> NcclResult<()> {
    started_for(of)?.identity(comm(of))?;
    if to.is_null() {
        return Err(invalid("ncclCommMemStats: the pointer to the value is null"));
    }
    match statistic {
        IS_SUSPENDED => give(to, started()?.is_suspended(comm(of))?.into()),
        0..=3 => give(to, 0),
        _ => Err(invalid(format!("ncclCommMemStats: {statistic} is not a ncclCommMemStat_t (0 to 3)"))),
    }
}

pub(crate) fn finalize(of: Communicator) -> NcclResult<()> {
    if of.is_null() { Ok(()) } else { started()?.finalize(comm(of)) }
}

pub(crate) fn create_operator(
    to: Out<c_uint>,
    scalar: Bytes,
    data_type: c_uint,
    residence: c_uint,
    of: Communicator,
) -> NcclResult<()> {
    let function = "ncclRedOpCreatePreMulSum";
    let nccl = started_for(of)?;
    nccl.identity(comm(of))?;
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

pub(crate) fn destroy(of: Communicator) -> NcclResult<()> {
    if of.is_null() { Ok(()) } else { started()?.destroy(comm(of)) }
}

/// Always succeeds, so that a program can clean up in any state.
pub(crate) fn abort(of: Communicator) -> NcclResult<()> {
    if let Ok(nccl) = started() {
        nccl.abort(comm(of));
    }
    Ok(())
}

pub(crate) fn count(of: Communicator, to: Out<c_int>) -> NcclResult<()> {
    give(to, started_for(of)?.identity(comm(of))?.0 as c_int)
}

pub(crate) fn rank(of: Communicator, to: Out<c_int>) -> NcclResult<()> {
    give(to, started_for(of)?.identity(comm(of))?.1.0 as c_int)
}

pub(crate) fn device(of: Communicator, to: Out<c_int>) -> NcclResult<()> {
    give(to, started_for(of)?.identity(comm(of))?.2 as c_int)
}

pub(crate) fn async_error(of: Communicator, to: Out<c_uint>) -> NcclResult<()> {
    let error = started_for(of)?.async_error(comm(of))?;
    if let Some(failed) = error.as_ref().filter(|error| error.status != NcclStatus::InProgress) {
        answer::keep_last_error(failed);
    }
    give(to, error.map_or(NcclStatus::Success, |error| error.status) as c_uint)
}

pub(crate) fn group_start() -> NcclResult<()> {
    started()?.group_start();
    Ok(())
}

pub(crate) fn group_end() -> NcclResult<()> {
    started()?.group_end()
}

/// Ends a group without launching its calls. As in NCCL, the group is launched if there is no structure.
///
/// # Errors
/// Returns `InvalidArgument` for a structure that was not initialized.
pub(crate) fn simulate_group_end(info: Out<SimulationInfo>) -> NcclResult<()> {
    const MAGIC: c_uint = 0x7468_5283;
    let nccl = started()?;
    if info.is_null() {
        return nccl.group_end();
    }
    let given = Source::<SimulationInfo>::at(info.address()).value("the structure");
    let given = given.map_err(|error| invalid(error.message.to_string()))?;
    let is_initialized = given.magic == MAGIC && given.size >= size_of::<SimulationInfo>();
    match nccl.simulate_group_end(is_initialized)? {
        Some(time) => give(info, SimulationInfo { time, ..given }),
        None => Ok(()),
    }
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
            "{function}: sigIdx, ctx, and flags must be 0, and they are {signal}, {context}, and {flags}"
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
    let nccl = started_for(of)?;
    nccl.identity(comm(of))?;
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
    let nccl = started_for(of)?;
    nccl.identity(comm(of))?;
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
    let nccl = started_for(of)?;
    nccl.identity(comm(of))?;
    if count <= 0 || descriptions.is_null() {
        return Err(invalid(format!("{FUNCTION}: it needs at least one description, and there are {count}")));
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
    let nccl = started_for(of)?;
    nccl.identity(comm(of))?;
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
    let nccl = started_for(of)?;
    nccl.identity(comm(of))?;
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
    let nccl = started_for(of)?;
    nccl.identity(comm(of))?;
    let operation = Operation { collective, count: count as u64, data_type: element(function, data_type)? };
    let request = Request::Collective(operation, Buffers { send, receive, scale: None });
    nccl.call(comm(of), request, StreamHandle(stream as u64))
}

fn element(function: &str, data_type: c_uint) -> NcclResult<DataType> {
    DataType::from_value(data_type)
        .ok_or_else(|| invalid(format!("{function}: datatype {data_type} is unknown")))
}
