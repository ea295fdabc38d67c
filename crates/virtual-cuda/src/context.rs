//! The bodies of the functions that set up contexts.

use std::ffi::{c_int, c_uint};

use virtual_gpu::device::PRIORITIES;
use virtual_gpu::engine::CachePreference;
use virtual_gpu::status::CudaResult;

use crate::engine;
use crate::pointer::Out;

pub(crate) fn set_flags(flags: c_uint) -> CudaResult<()> {
    engine::get()?.set_flags(flags)
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

/// Either pointer may be null: that value is not wanted.
pub(crate) fn priorities(least: Out<c_int>, greatest: Out<c_int>) -> CudaResult<()> {
    engine::get()?.current_device()?;
    least.give_if_wanted(PRIORITIES.0);
    greatest.give_if_wanted(PRIORITIES.1);
    Ok(())
}

/// `cuProfilerStart` and `cuProfilerStop` tell the active profiling tool, and none ever is.
pub(crate) fn profile() -> CudaResult<()> {
    engine::get()?.current_device().map(drop)
}
