//! The bodies of the functions that create and configure contexts.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use virtual_gpu::device::PRIORITIES;
use virtual_gpu::engine::{CachePreference, ContextHandle};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

use crate::engine;
use crate::pointer::{Out, Source};
use crate::types::{Context, Device, handle};

/// `CUexecAffinityParam`: the share of the multiprocessors that a context may use.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Affinity {
    pub(crate) kind: c_uint,
    pub(crate) multiprocessors: c_uint,
}

/// `CUctxCreateParams`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CreateParameters {
    pub(crate) affinities: Source<Affinity>,
    pub(crate) affinity_count: c_int,
    pub(crate) graphics: *const c_void,
}

/// `cuCtxCreate_v2`
pub(crate) fn create_plain(to: Out<Context>, flags: c_uint, device: Device) -> CudaResult<()> {
    create_with_affinity(to, Source::null(), 0, flags, device)
}

/// `cuCtxCreate_v3`
pub(crate) fn create_with_affinity(
    to: Out<Context>,
    affinities: Source<Affinity>,
    count: c_int,
    flags: c_uint,
    device: Device,
) -> CudaResult<()> {
    check_affinities(affinities, count)?;
    to.check("the pointer to the context")?;
    let made = engine::get_for_context()?.create_context(device, flags)?;
    to.give(made.0 as Context)
}

/// `cuCtxCreate_v4`
pub(crate) fn create(
    to: Out<Context>,
    parameters: Source<CreateParameters>,
    flags: c_uint,
    device: Device,
) -> CudaResult<()> {
    if parameters.is_null() {
        return create_with_affinity(to, Source::null(), 0, flags, device);
    }
    let parameters = parameters.value("the parameters")?;
    if !parameters.graphics.is_null() {
        let message = "virtual GPU: contexts shared with graphics (CIG) are not supported";
        return Err(Error::new(CudaStatus::NotSupported, message));
    }
    create_with_affinity(to, parameters.affinities, parameters.affinity_count, flags, device)
}

/// Rejects affinities: only MPS can give a context a share of a GPU.
fn check_affinities(affinities: Source<Affinity>, count: c_int) -> CudaResult<()> {
    let invalid = |message: String| Err(Error::new(CudaStatus::InvalidValue, message));
    match count {
        0 => Ok(()),
        ..0 => invalid(format!("{count} execution affinities")),
        _ if affinities.is_null() => {
            invalid(format!("{count} execution affinities, but the pointer to them is null"))
        }
        _ => {
            let message = "virtual GPU: execution affinities are not supported: no GPU is shared through MPS";
            Err(Error::new(CudaStatus::UnsupportedExecAffinity, message))
        }
    }
}

pub(crate) fn destroy(context: Context) -> CudaResult<()> {
    engine::get()?.destroy_context(ContextHandle(context as u64))
}

pub(crate) fn push(context: Context) -> CudaResult<()> {
    engine::get()?.push_current(ContextHandle(context as u64))
}

pub(crate) fn pop(to: Out<Context>) -> CudaResult<()> {
    let popped = engine::get()?.pop_current()?;
    to.give_if_wanted(popped.0 as Context);
    Ok(())
}

pub(crate) fn set_flags(flags: c_uint) -> CudaResult<()> {
    engine::get()?.set_flags(flags)
}

pub(crate) fn flags(to: Out<c_uint>) -> CudaResult<()> {
    to.give(engine::get()?.flags()?)
}

/// Returns the given context, or the current one if the handle is null.
fn this_or_current(context: Context) -> CudaResult<ContextHandle> {
    let engine = engine::get()?;
    let found = match context.is_null() {
        true => {
            engine.current_device()?;
            engine.current().ok_or(CudaStatus::InvalidContext)?
        }
        false => ContextHandle(context as u64),
    };
    engine.check_context(found)?;
    Ok(found)
}

/// `cuCtxGetId`: handles are never used twice, so the handle is the id.
pub(crate) fn id(context: Context, to: Out<c_ulonglong>) -> CudaResult<()> {
    to.give(this_or_current(context)?.0)
}

/// `cuCtxGetApiVersion`: 3020, the last version that changed what a context can do ("CUDA Driver API").
pub(crate) fn api_version(context: Context, to: Out<c_uint>) -> CudaResult<()> {
    this_or_current(context)?;
    to.give(3020)
}

/// `CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE`, the only size of shared memory's banks since compute capability 5.0.
const FOUR_BYTE_BANKS: c_uint = 1;

pub(crate) fn shared_memory_config(to: Out<c_uint>) -> CudaResult<()> {
    engine::get()?.current_device()?;
    to.give(FOUR_BYTE_BANKS)
}

/// `cuCtxSetSharedMemConfig`: has no effect on a GPU whose banks have a fixed size ("CUDA Driver API").
pub(crate) fn set_shared_memory_config(config: c_uint) -> CudaResult<()> {
    engine::get()?.current_device()?;
    match config {
        0..=2 => Ok(()),
        _ => {
            let message = format!("{config} is not a size of shared memory's banks: it must be 0 to 2");
            Err(Error::new(CudaStatus::InvalidValue, message))
        }
    }
}

pub(crate) fn limit(value: Out<usize>, limit: c_uint) -> CudaResult<()> {
    value.give(engine::get()?.limit(limit)? as usize)
}

pub(crate) fn set_limit(limit: c_uint, value: usize) -> CudaResult<()> {
    engine::get()?.set_limit(limit, value as u64)
}

pub(crate) fn cache_preference(to: Out<c_uint>) -> CudaResult<()> {
    to.give(engine::get()?.cache_preference()? as c_uint)
}

pub(crate) fn set_cache_preference(preference: c_uint) -> CudaResult<()> {
    engine::get()?.set_cache_preference(CachePreference::from_number(preference)?)
}

/// Returns the priority range. Either pointer may be null if its value is not needed.
pub(crate) fn priorities(least: Out<c_int>, greatest: Out<c_int>) -> CudaResult<()> {
    engine::get()?.current_device()?;
    least.give_if_wanted(PRIORITIES.0);
    greatest.give_if_wanted(PRIORITIES.1);
    Ok(())
}

/// Checks only that a context is current: `cuProfilerStart` and `cuProfilerStop` control an active profiling tool, and
/// none is ever active.
pub(crate) fn profile() -> CudaResult<()> {
    engine::get()?.current_device().map(drop)
}

pub(crate) fn retain_primary(to: Out<Context>, device: Device) -> CudaResult<()> {
    to.give(handle(engine::get_for_context()?.retain_primary(device)?.0))
}

pub(crate) fn release_primary(device: Device) -> CudaResult<()> {
    engine::get()?.release_primary(device)
}

pub(crate) fn reset_primary(device: Device) -> CudaResult<()> {
    engine::get()?.reset_primary(device)
}

pub(crate) fn set_primary_flags(device: Device, flags: c_uint) -> CudaResult<()> {
    engine::get()?.set_primary_flags(device, flags)
}

pub(crate) fn primary_state(device: Device, flags: Out<c_uint>, active: Out<c_int>) -> CudaResult<()> {
    let (found, is_active) = engine::get()?.primary_state(device)?;
    flags.give(found)?;
    active.give(c_int::from(is_active))
}

pub(crate) fn current_context(to: Out<Context>) -> CudaResult<()> {
    to.give(handle(engine::get()?.current().map_or(0, |context| context.0)))
}

pub(crate) fn set_current_context(context: Context) -> CudaResult<()> {
    engine::get()?.set_current((!context.is_null()).then_some(ContextHandle(context as u64)))
}

pub(crate) fn current_device(to: Out<Device>) -> CudaResult<()> {
    to.give(engine::get()?.current_device()? as Device)
}

pub(crate) fn synchronize_context() -> CudaResult<()> {
    engine::get()?.synchronize_context()
}
