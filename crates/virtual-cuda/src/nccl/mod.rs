//! The bodies of the NCCL functions.

mod communication;
mod communicator;
mod parameter;
mod registration;

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use virtual_gpu_core::handle::CommHandle;
use virtual_gpu_core::status::{CudaStatus, Error, NcclResult, NcclStatus};
use virtual_gpu_nccl::{DataType, Deliver, Nccl};

use crate::engine;
use crate::pointer::{Out, Source};

pub use communication::WaitDescription;
pub(crate) use communication::{
    all_gather, all_reduce, all_to_all, bcast, broadcast, create_operator, destroy_operator, gather,
    put_signal, receive, reduce, reduce_scatter, scatter, send, signal, wait_signal,
};
pub use communicator::Id;
pub(crate) use communicator::{
    abort, async_error, count, destroy, device, finalize, grow, init_all, init_rank, init_rank_config,
    init_rank_scalable, memory_statistic, rank, resume, revoke, shrink, split, suspend, unique_id,
    unique_id_of,
};
pub use parameter::ParameterHandle;
pub(crate) use parameter::{
    bind, dump_parameters, parameter_bytes, parameter_keys, parameter_number, parameter_text, parameter_u32,
    parameter_u64, parameter_value,
};
pub use registration::Window;
pub(crate) use registration::{
    allocate, deregister, deregister_window, free, register, register_window, window_pointer,
};

/// `ncclComm_t`
pub type Communicator = *mut c_void;

fn invalid(message: impl Into<Arc<str>>) -> Error<NcclStatus> {
    Error::new(NcclStatus::InvalidArgument, message)
}

fn comm(comm: Communicator) -> CommHandle {
    CommHandle(comm as u64)
}

/// Writes a result to the address that the caller passed.
fn give<T: Copy>(to: Out<T>, value: T) -> NcclResult<()> {
    to.give(value).map_err(|error| invalid(error.message))
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

/// Returns NCCL for a call on a communicator that must exist, which NCCL checks before the other arguments.
fn member(of: Communicator) -> NcclResult<&'static Nccl> {
    let nccl = started_for(of)?;
    nccl.identity(comm(of))?;
    Ok(nccl)
}

/// Returns what writes a new handle to the caller's variable, which outlives the call, as NCCL requires.
fn deliver_to(to: Out<*mut c_void>) -> Deliver {
    let to = to.address();
    Box::new(move |made: CommHandle| {
        let _ = Out::at(to).give(made.0 as *mut c_void);
    })
}

fn element(function: &str, data_type: c_uint) -> NcclResult<DataType> {
    DataType::from_value(data_type)
        .ok_or_else(|| invalid(format!("{function}: datatype {data_type} is unknown")))
}

pub(crate) fn version(to: Out<c_int>) -> NcclResult<()> {
    let version = engine::nccl_version().map_err(|message| Error::new(NcclStatus::SystemError, message))?;
    give(to, version)
}

pub(crate) fn group_start() -> NcclResult<()> {
    started()?.group_start();
    Ok(())
}

pub(crate) fn group_end() -> NcclResult<()> {
    started()?.group_end()
}

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
    let given = given.map_err(|error| invalid(error.message))?;
    let is_initialized = given.magic == MAGIC && given.size >= size_of::<SimulationInfo>();
    match nccl.simulate_group_end(is_initialized)? {
        Some(time) => give(info, SimulationInfo { time, ..given }),
        None => Ok(()),
    }
}
