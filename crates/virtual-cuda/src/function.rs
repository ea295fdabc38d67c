//! The bodies of the functions for a module's kernels and variables.

use std::ffi::{c_int, c_uint};

use virtual_gpu::engine::{CachePreference, FunctionHandle, ModuleHandle};
use virtual_gpu_core::status::{CudaResult, invalid};

use crate::pointer::{Out, Text};
use crate::types::{DevicePointer, Function, Module};
use crate::{context, engine};

fn handle(function: Function) -> FunctionHandle {
    FunctionHandle(function as u64)
}

pub(crate) fn attribute(value: Out<c_int>, attribute: c_int, of: Function) -> CudaResult<()> {
    value.give(engine::get()?.function_attribute(handle(of), attribute)?)
}

pub(crate) fn set_attribute(of: Function, attribute: c_int, value: c_int) -> CudaResult<()> {
    engine::get()?.set_function_attribute(handle(of), attribute, value)
}

pub(crate) fn set_cache_preference(of: Function, preference: c_uint) -> CudaResult<()> {
    let preference = CachePreference::from_number(preference)?;
    engine::get()?.set_function_cache_preference(handle(of), preference)
}

/// `cuFuncSetSharedMemConfig`: checks its arguments, because banks have a fixed size.
pub(crate) fn set_shared_memory_config(of: Function, config: c_uint) -> CudaResult<()> {
    engine::get()?.kernel(handle(of))?;
    context::set_shared_memory_config(config)
}

/// Finds a module's variable. Either of the two result pointers may be null, but not both.
pub(crate) fn global(
    address: Out<DevicePointer>,
    bytes: Out<usize>,
    module: Module,
    name: Text,
) -> CudaResult<()> {
    if address.is_null() && bytes.is_null() {
        return Err(invalid("cuModuleGetGlobal: both result pointers are null"));
    }
    let name = name.text().ok_or_else(|| invalid("cuModuleGetGlobal: the name is null or not UTF-8"))?;
    let (found, size) = engine::get()?.global(ModuleHandle(module as u64), name)?;
    address.give_if_wanted(found);
    bytes.give_if_wanted(size as usize);
    Ok(())
}
