//! The bodies of the functions that make, change, describe, and destroy communicators.

use std::ffi::{c_int, c_uint, c_ulonglong};

use virtual_gpu_core::status::{NcclResult, NcclStatus};
use virtual_gpu_nccl::{CommConfig, UniqueId};

use super::{Communicator, comm, deliver_to, give, invalid, member, started, started_for};
use crate::answer;
use crate::engine;
use crate::pointer::{Bytes, Out, Source};

/// `ncclUniqueId`, passed by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Id([u8; 128]);

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
    let nccl = member(of)?;
    let config = read_config(config)?;
    give(to, std::ptr::null_mut())?;
    nccl.split(comm(of), color, key, config, deliver_to(to))
}

/// `NCCL_SHRINK_ABORT`
const SHRINK_ABORT: c_int = 1;

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
    nccl.shrink(comm(of), &excluded, flags & SHRINK_ABORT != 0, config, deliver_to(to))
}

/// Creates the id for a larger communicator, which its new ranks need.
pub(crate) fn unique_id_of(of: Communicator, to: Out<Id>) -> NcclResult<()> {
    member(of)?;
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

/// `NCCL_SUSPEND_MEM`
const SUSPENDS_MEMORY: c_int = 1;

/// `ncclStatGpuMemSuspended`
const IS_SUSPENDED: c_uint = 1;

/// Suspends nothing without `NCCL_SUSPEND_MEM`, as in NCCL.
pub(crate) fn suspend(of: Communicator, flags: c_int) -> NcclResult<()> {
    let nccl = member(of)?;
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
    let nccl = member(of)?;
    if to.is_null() {
        return Err(invalid("ncclCommMemStats: the pointer to the value is null"));
    }
    match statistic {
        IS_SUSPENDED => give(to, nccl.is_suspended(comm(of))?.into()),
        0..=3 => give(to, 0),
        _ => Err(invalid(format!("ncclCommMemStats: {statistic} is not a ncclCommMemStat_t (0 to 3)"))),
    }
}

pub(crate) fn finalize(of: Communicator) -> NcclResult<()> {
    if of.is_null() { Ok(()) } else { started()?.finalize(comm(of)) }
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
