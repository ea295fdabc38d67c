//! Libraries: PTX that is loaded into each context when the context first needs it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard};

use virtual_gpu::engine::{ContextHandle, FunctionHandle, ModuleHandle};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::jit_log::{Logs, OptionValue};
use crate::module::{ptx_at, ptx_text, read_file};
use crate::pointer::{Arguments, Bytes, Out, Source, Text};
use crate::types::{Device, DevicePointer, Function, Module, handle};
use crate::{engine, function};

/// `CUlibrary`
pub type Library = *mut c_void;

/// `CUkernel`
pub type Kernel = *mut c_void;

/// A loaded library.
struct Loaded {
    text: String,
    names: Vec<String>,
    /// Its module in each context that has needed it.
    modules: BTreeMap<u64, ModuleHandle>,
}

/// All libraries, and the library and name of each kernel that a program has asked for.
#[derive(Default)]
struct Libraries {
    all: BTreeMap<u64, Loaded>,
    kernels: BTreeMap<u64, (u64, String)>,
}

static LIBRARIES: Mutex<Option<Libraries>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Libraries>> {
    LIBRARIES.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn not_a_library(library: u64) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidHandle, format!("{library:#x} is not a library, or is no longer one"))
}

fn add(to: Out<Library>, text: &str) -> CudaResult<()> {
    let engine = engine::get()?;
    let names = engine.kernel_names(text)?;
    let made = engine.state().new_handle();
    let loaded = Loaded { text: text.to_owned(), names, modules: BTreeMap::new() };
    lock().get_or_insert_default().all.insert(made, loaded);
    to.give(handle(made))
}

/// `cuLibraryLoadData`: checks PTX. See [`Logs::of`] for the options of the compiler; the library's own have no effect.
#[expect(clippy::too_many_arguments, reason = "cuLibraryLoadData has this many parameters")]
pub(crate) fn load(
    to: Out<Library>,
    image: Bytes,
    options: Source<c_uint>,
    values: Out<OptionValue>,
    count: c_uint,
    _: Source<c_uint>,
    _: Arguments,
    _: c_uint,
) -> CudaResult<()> {
    let caller = "cuLibraryLoadData";
    logged(caller, (count, options, values), to, || ptx_at(caller, image))
}

/// `cuLibraryLoadFromFile`
#[expect(clippy::too_many_arguments, reason = "cuLibraryLoadFromFile has this many parameters")]
pub(crate) fn load_file(
    to: Out<Library>,
    path: Text,
    options: Source<c_uint>,
    values: Out<OptionValue>,
    count: c_uint,
    _: Source<c_uint>,
    _: Arguments,
    _: c_uint,
) -> CudaResult<()> {
    let caller = "cuLibraryLoadFromFile";
    let read = || Ok(Cow::Owned(ptx_text(&read_file(caller, path)?)?.into_owned()));
    logged(caller, (count, options, values), to, read)
}

/// Adds a library, and writes the logs.
fn logged<'a>(
    caller: &str,
    (count, options, values): (c_uint, Source<c_uint>, Out<OptionValue>),
    to: Out<Library>,
    text: impl Fn() -> CudaResult<Cow<'a, str>>,
) -> CudaResult<()> {
    to.check("the pointer to the library")?;
    let logs = Logs::of(caller, count, options, values)?;
    let added = text().and_then(|text| add(to, &text));
    if let Err(error) = &added {
        logs.report(&error.message)?;
    }
    added
}

/// `cuLibraryUnload`: also unloads its modules.
pub(crate) fn unload(library: Library) -> CudaResult<()> {
    let library = library as u64;
    let loaded = {
        let mut libraries = lock();
        let libraries = libraries.get_or_insert_default();
        libraries.kernels.retain(|_, (of, _)| *of != library);
        libraries.all.remove(&library).ok_or_else(|| not_a_library(library))?
    };
    let engine = engine::get()?;
    // A module whose context has been destroyed is gone.
    loaded.modules.values().for_each(|&module| drop(engine.unload_module(module)));
    Ok(())
}

/// Returns a library's module in the current context, after loading it if the context does not have it.
fn module_of(library: u64) -> CudaResult<ModuleHandle> {
    let engine = engine::get()?;
    engine.current_device()?;
    let ContextHandle(context) = engine.current().ok_or(CudaStatus::InvalidContext)?;
    let text = {
        let libraries = lock();
        let loaded = libraries.as_ref().and_then(|it| it.all.get(&library));
        let loaded = loaded.ok_or_else(|| not_a_library(library))?;
        if let Some(&module) = loaded.modules.get(&context) {
            return Ok(module);
        }
        loaded.text.clone()
    };
    let module = engine.load_module(&text)?;
    // Another thread may have loaded or unloaded it in the meantime.
    let kept = {
        let mut libraries = lock();
        let loaded = libraries.as_mut().and_then(|it| it.all.get_mut(&library));
        loaded.map(|loaded| *loaded.modules.entry(context).or_insert(module))
    };
    if kept != Some(module) {
        engine.unload_module(module)?;
    }
    kept.ok_or_else(|| not_a_library(library))
}

/// `cuLibraryGetModule`
pub(crate) fn module(to: Out<Module>, library: Library) -> CudaResult<()> {
    to.give(handle(module_of(library as u64)?.0))
}

/// `cuLibraryGetGlobal`
pub(crate) fn global(
    address: Out<DevicePointer>,
    bytes: Out<usize>,
    library: Library,
    name: Text,
) -> CudaResult<()> {
    function::global(address, bytes, handle(module_of(library as u64)?.0), name)
}

/// `cuLibraryGetKernel`: needs no context.
///
/// # Errors
/// Returns `NotFound` with the names that exist.
pub(crate) fn kernel(to: Out<Kernel>, library: Library, name: Text) -> CudaResult<()> {
    let name = name.text().ok_or_else(|| invalid("cuLibraryGetKernel: the name is null or not UTF-8"))?;
    to.give(find(library, name)?)
}

/// Returns the names of a library's kernels.
pub(crate) fn names(library: Library) -> CudaResult<Vec<String>> {
    let library = library as u64;
    let libraries = lock();
    let loaded = libraries.as_ref().and_then(|it| it.all.get(&library));
    Ok(loaded.ok_or_else(|| not_a_library(library))?.names.clone())
}

/// Returns a library's kernel.
///
/// # Errors
/// Returns `NotFound` with the names that exist.
pub(crate) fn find(library: Library, name: &str) -> CudaResult<Kernel> {
    let library = library as u64;
    let engine = engine::get()?;
    let mut libraries = lock();
    let libraries = libraries.get_or_insert_default();
    let loaded = libraries.all.get(&library).ok_or_else(|| not_a_library(library))?;
    if !loaded.names.iter().any(|known| known == name) {
        let message = format!("the library has no kernel `{name}`; it has `{}`", loaded.names.join("`, `"));
        return Err(Error::new(CudaStatus::NotFound, message));
    }
    let is_it = |(_, (of, known)): &(&u64, &(u64, String))| *of == library && known == name;
    let known = libraries.kernels.iter().find(is_it).map(|(&kernel, _)| kernel);
    let kernel = known.unwrap_or_else(|| engine.state().new_handle());
    libraries.kernels.insert(kernel, (library, name.to_owned()));
    Ok(handle(kernel))
}

/// Returns a kernel's library and name.
pub(crate) fn origin(kernel: Kernel) -> CudaResult<(u64, String)> {
    let known = lock().as_ref().and_then(|it| it.kernels.get(&(kernel as u64)).cloned());
    known.ok_or_else(|| not_a_kernel(kernel))
}

fn not_a_kernel(kernel: Kernel) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidHandle, format!("{kernel:p} is not a kernel of a library"))
}

/// Returns a kernel's function in the current context. Any other handle is the handle of a function.
pub(crate) fn resolve(function: Function) -> CudaResult<FunctionHandle> {
    let known = lock().as_ref().and_then(|it| it.kernels.get(&(function as u64)).cloned());
    match known {
        Some((library, name)) => engine::get()?.function(module_of(library)?, &name),
        None => Ok(FunctionHandle(function as u64)),
    }
}

fn checked(kernel: Kernel) -> CudaResult<Function> {
    origin(kernel)?;
    Ok(handle(resolve(kernel)?.0))
}

/// `cuKernelGetFunction`
pub(crate) fn function_of(to: Out<Function>, kernel: Kernel) -> CudaResult<()> {
    to.give(checked(kernel)?)
}

/// Checks that a kernel's attributes are those of the current context's GPU.
fn check_device(device: Device) -> CudaResult<()> {
    let engine = engine::get()?;
    let (wanted, current) = (engine.check_device(device)?, engine.current_device()?);
    if wanted != current {
        let message =
            format!("virtual GPU: kernel attributes on GPU {wanted} while GPU {current} is current");
        return Err(Error::new(CudaStatus::NotSupported, message));
    }
    Ok(())
}

/// `cuKernelGetAttribute`, on the current context's GPU.
pub(crate) fn attribute(to: Out<c_int>, attribute: c_int, kernel: Kernel, device: Device) -> CudaResult<()> {
    check_device(device)?;
    function::attribute(to, attribute, checked(kernel)?)
}

pub(crate) fn set_cache_preference(kernel: Kernel, preference: c_uint, device: Device) -> CudaResult<()> {
    check_device(device)?;
    function::set_cache_preference(checked(kernel)?, preference)
}

/// `cuLibraryGetManaged`: a library has no variables in managed memory, because a module that declares one is refused.
///
/// # Errors
/// Returns `NotFound`.
pub(crate) fn managed(
    address: Out<DevicePointer>,
    bytes: Out<usize>,
    library: Library,
    name: Text,
) -> CudaResult<()> {
    if address.is_null() && bytes.is_null() {
        return Err(invalid("cuLibraryGetManaged: both result pointers are null"));
    }
    let name = name.text().ok_or_else(|| invalid("cuLibraryGetManaged: the name is null or not UTF-8"))?;
    module_of(library as u64)?;
    let message = format!("the library has no variable `{name}` in managed memory");
    Err(Error::new(CudaStatus::NotFound, message))
}

/// `cuKernelSetAttribute`, on the current context's GPU.
pub(crate) fn set_attribute(
    attribute: c_int,
    value: c_int,
    kernel: Kernel,
    device: Device,
) -> CudaResult<()> {
    check_device(device)?;
    function::set_attribute(checked(kernel)?, attribute, value)
}
