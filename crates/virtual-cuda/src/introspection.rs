//! What a program can ask about its modules, functions, libraries, kernels, and streams.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong};
use std::sync::{Mutex, PoisonError};

use virtual_gpu::engine::{FunctionHandle, ModuleHandle};
use virtual_gpu_core::status::{CudaResult, invalid};

use crate::engine;
use crate::library::{self, Kernel, Library};
use crate::pointer::Out;
use crate::types::{Device, Function, Module, Stream, handle, stream};

/// `CU_MODULE_EAGER_LOADING`: a module's functions are loaded with the module.
const EAGER_LOADING: c_uint = 1;

/// `CU_FUNCTION_LOADING_STATE_LOADED`
const LOADED: c_uint = 1;

/// Names that were given out. They stay until the process ends, so that a program can keep them longer than it may.
static NAMES: Mutex<BTreeMap<String, CString>> = Mutex::new(BTreeMap::new());

/// Writes the address of a name.
fn give_name(to: Out<*const c_char>, name: &str) -> CudaResult<()> {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let text = CString::new(name).map_err(|_| invalid("the name contains a zero byte"))?;
    to.give(names.entry(name.to_owned()).or_insert(text).as_ptr())
}

/// Writes the first `number` of these handles.
fn give_first<T: Copy>(to: Out<T>, number: c_uint, all: &[T]) -> CudaResult<()> {
    to.check("the pointer to the handles")?;
    to.give_all(&all[..all.len().min(number as usize)])
}

/// Writes where a function's parameter is. The size may not be wanted.
fn give_parameter(
    function: FunctionHandle,
    index: usize,
    offset: Out<usize>,
    size: Out<usize>,
) -> CudaResult<()> {
    let kernel = engine::get()?.kernel(function)?;
    let all = kernel.parameters();
    let parameter = all.get(index).ok_or_else(|| {
        invalid(format!("`{}` has {} parameters, so none has the index {index}", kernel.name(), all.len()))
    })?;
    offset.give(parameter.offset as usize)?;
    size.give_if_wanted(parameter.size as usize);
    Ok(())
}

/// `cuModuleGetLoadingMode`
pub(crate) fn loading_mode(to: Out<c_uint>) -> CudaResult<()> {
    engine::get()?;
    to.give(EAGER_LOADING)
}

/// `cuModuleGetFunctionCount`
pub(crate) fn functions_of_module(to: Out<c_uint>, module: Module) -> CudaResult<()> {
    to.give(engine::get()?.functions_of(ModuleHandle(module as u64))?.len() as c_uint)
}

/// `cuModuleEnumerateFunctions`: in the order of their names.
pub(crate) fn list_functions(to: Out<Function>, number: c_uint, module: Module) -> CudaResult<()> {
    let functions = engine::get()?.functions_of(ModuleHandle(module as u64))?;
    let all: Vec<Function> = functions.into_iter().map(|function| handle(function.0)).collect();
    give_first(to, number, &all)
}

/// `cuFuncGetModule`
pub(crate) fn module_of_function(to: Out<Module>, function: Function) -> CudaResult<()> {
    to.give(handle(engine::get()?.module_of(library::resolve(function)?)?.0))
}

/// `cuFuncGetName`
pub(crate) fn name_of_function(to: Out<*const c_char>, function: Function) -> CudaResult<()> {
    give_name(to, engine::get()?.kernel(library::resolve(function)?)?.name())
}

/// `cuFuncGetParamInfo`
pub(crate) fn parameter_of_function(
    function: Function,
    index: usize,
    offset: Out<usize>,
    size: Out<usize>,
) -> CudaResult<()> {
    give_parameter(library::resolve(function)?, index, offset, size)
}

/// `cuFuncIsLoaded`
pub(crate) fn is_loaded(to: Out<c_uint>, function: Function) -> CudaResult<()> {
    engine::get()?.kernel(library::resolve(function)?)?;
    to.give(LOADED)
}

/// `cuFuncLoad`: there is nothing left to load.
pub(crate) fn load(function: Function) -> CudaResult<()> {
    engine::get()?.kernel(library::resolve(function)?).map(drop)
}

/// `cuLibraryGetKernelCount`
pub(crate) fn kernels_of_library(to: Out<c_uint>, of: Library) -> CudaResult<()> {
    to.give(library::names(of)?.len() as c_uint)
}

/// `cuLibraryEnumerateKernels`: in the order of their names.
pub(crate) fn list_kernels(to: Out<Kernel>, number: c_uint, of: Library) -> CudaResult<()> {
    let names = library::names(of)?;
    let all: Vec<Kernel> = names.iter().map(|name| library::find(of, name)).collect::<CudaResult<_>>()?;
    give_first(to, number, &all)
}

/// `cuKernelGetName`
pub(crate) fn name_of_kernel(to: Out<*const c_char>, kernel: Kernel) -> CudaResult<()> {
    give_name(to, &library::origin(kernel)?.1)
}

/// `cuKernelGetLibrary`
pub(crate) fn library_of_kernel(to: Out<Library>, kernel: Kernel) -> CudaResult<()> {
    to.give(handle(library::origin(kernel)?.0))
}

/// `cuKernelGetParamInfo`, in the current context.
pub(crate) fn parameter_of_kernel(
    kernel: Kernel,
    index: usize,
    offset: Out<usize>,
    size: Out<usize>,
) -> CudaResult<()> {
    library::origin(kernel)?;
    give_parameter(library::resolve(kernel)?, index, offset, size)
}

/// `cuStreamGetFlags`: 1 is `CU_STREAM_NON_BLOCKING`.
pub(crate) fn stream_flags(of: Stream, to: Out<c_uint>) -> CudaResult<()> {
    to.give(c_uint::from(!engine::get()?.stream_figures(stream(of))?.is_blocking))
}

/// `cuStreamGetPriority`
pub(crate) fn stream_priority(of: Stream, to: Out<c_int>) -> CudaResult<()> {
    to.give(engine::get()?.stream_figures(stream(of))?.priority)
}

/// `cuStreamGetId`: unique in the process.
pub(crate) fn stream_number(of: Stream, to: Out<c_ulonglong>) -> CudaResult<()> {
    to.give(engine::get()?.stream_figures(stream(of))?.number)
}

/// `cuStreamGetDevice`
pub(crate) fn stream_device(of: Stream, to: Out<Device>) -> CudaResult<()> {
    to.give(engine::get()?.stream_figures(stream(of))?.device as Device)
}
