//! The module functions, and kernel launches.

use std::borrow::Cow;
use std::ffi::{c_uint, c_void};

use virtual_gpu::engine::{FunctionHandle, LaunchShape, ModuleHandle};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::jit_log::{Logs, OptionValue};
use crate::occupancy::{LaunchConfig, stated_cluster};
use crate::pointer::{Arguments, Bytes, Out, Source, Text};
use crate::types::{Function, Module, Stream, handle, stream};
use crate::{engine, fatbin, library};

pub(crate) fn load_module_file(to: Out<Module>, path: Text) -> CudaResult<()> {
    let source = read_file("cuModuleLoad", path)?;
    to.give(handle(engine::get()?.load_module(&ptx_text(&source)?)?.0))
}

/// Reads the file that a program passes to `function`.
///
/// # Errors
/// Returns `InvalidValue` for a path that is null or not UTF-8, and `FileNotFound` if the file can't be read.
pub(crate) fn read_file(function: &str, path: Text) -> CudaResult<Vec<u8>> {
    let path = path.text().ok_or_else(|| invalid(format!("{function}: the path is null or not UTF-8")))?;
    std::fs::read(path)
        .map_err(|error| Error::new(CudaStatus::FileNotFound, format!("{function}: {path}: {error}")))
}

pub(crate) fn load_module(to: Out<Module>, image: Bytes) -> CudaResult<()> {
    let text = ptx_at("cuModuleLoadData", image)?;
    engine::may_synchronize("cuModuleLoadData");
    to.give(handle(engine::get()?.load_module(&text)?.0))
}

/// Loads a module. See [`Logs::of`] for the options.
pub(crate) fn load_module_with(
    to: Out<Module>,
    image: Bytes,
    count: c_uint,
    options: Source<c_uint>,
    values: Out<OptionValue>,
) -> CudaResult<()> {
    let logs = Logs::of("cuModuleLoadDataEx", count, options, values)?;
    let loaded = load_module(to, image);
    if let Err(error) = &loaded {
        logs.report(&error.message)?;
    }
    loaded
}

/// Returns the PTX of an image in memory: a C string, a fat binary, or the structure that nvcc puts around a fat binary.
pub(crate) fn ptx_at<'a>(caller: &str, image: Bytes) -> CudaResult<Cow<'a, str>> {
    // No image has a 0 in its first four bytes.
    let start = |image: Bytes| image.until_zero(4);
    let image = match start(image) {
        Some(bytes) if bytes == fatbin::WRAPPER_MAGIC => {
            Bytes::at(Source::<usize>::at(image.address() + 8).value("the fat binary")?)
        }
        _ => image,
    };
    let bytes = match start(image) {
        Some(bytes) if bytes == fatbin::MAGIC => fatbin::at(image, usize::MAX),
        Some(bytes) if bytes == ELF_MAGIC => Some(bytes),
        _ => image.until_zero(usize::MAX),
    };
    ptx_text(bytes.ok_or_else(|| invalid(format!("{caller}: the image is null")))?)
}

/// The first four bytes of a cubin.
const ELF_MAGIC: [u8; 4] = [0x7f, b'E', b'L', b'F'];

/// Returns the PTX of an image.
///
/// # Errors
/// Returns `NoBinaryForGpu` for machine code, and `InvalidImage` if the image is damaged.
pub(crate) fn ptx_text(image: &[u8]) -> CudaResult<Cow<'_, str>> {
    if image.starts_with(&fatbin::MAGIC) {
        return fatbin::ptx(image).map(Cow::Owned);
    }
    if image.starts_with(&ELF_MAGIC) {
        let message = "virtual GPU: a cubin is machine code, which is not supported: load PTX (from `nvcc -ptx`; from NVRTC \
                       with `--gpu-architecture=compute_90` and nvrtcGetPTX)";
        return Err(Error::new(CudaStatus::NoBinaryForGpu, message));
    }
    str::from_utf8(image).map(Cow::Borrowed).map_err(|error| {
        let message = format!("this is not PTX: byte {} is not valid UTF-8", error.valid_up_to());
        Error::new(CudaStatus::InvalidImage, message)
    })
}

pub(crate) fn unload_module(module: Module) -> CudaResult<()> {
    engine::may_synchronize("cuModuleUnload");
    engine::get()?.unload_module(ModuleHandle(module as u64))
}

pub(crate) fn function(to: Out<Function>, module: Module, name: Text) -> CudaResult<()> {
    let name = name.text().ok_or_else(|| invalid("cuModuleGetFunction: the name is null or not UTF-8"))?;
    to.give(handle(engine::get()?.function(ModuleHandle(module as u64), name)?.0))
}

#[expect(clippy::too_many_arguments, reason = "cuLaunchKernel has this many parameters")]
pub(crate) fn launch(
    function: Function,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    dynamic_shared: c_uint,
    of: Stream,
    arguments: Arguments,
    extra: *const c_void,
) -> CudaResult<()> {
    let function = library::resolve(function)?;
    let packed = parameters(function, arguments, extra)?;
    let shape = LaunchShape::new([grid_x, grid_y, grid_z], [block_x, block_y, block_z], dynamic_shared);
    engine::get()?.launch(function, shape, stream(of), packed)
}

/// Returns a launch's packed parameters: from `arguments`, or from the buffer that `extra` names.
///
/// # Errors
/// Returns `InvalidValue` if both are given, or if the buffer's size is not that of the kernel's parameters.
pub(crate) fn parameters(
    function: FunctionHandle,
    arguments: Arguments,
    extra: *const c_void,
) -> CudaResult<Vec<u8>> {
    if extra.is_null() {
        return pack(function, arguments);
    }
    if !arguments.is_null() {
        return Err(invalid("a launch can't have both kernelParams and extra"));
    }
    let (mut buffer, mut size) = (None, None);
    let mut at = extra as usize;
    let mut next = || {
        let value = Source::<usize>::at(at).value("an element of extra");
        at += size_of::<usize>();
        value
    };
    // CU_LAUNCH_PARAM_END, _BUFFER_POINTER, and _BUFFER_SIZE, whose value points to the size.
    loop {
        match next()? {
            0 => break,
            1 => buffer = Some(next()?),
            2 => {
                size = Some(Source::<usize>::at(next()?).value("the pointer to the size of the parameters")?)
            }
            name => return Err(invalid(format!("{name} is not a CU_LAUNCH_PARAM: it must be 0, 1, or 2"))),
        }
    }
    let kernel = engine::get()?.kernel(function)?;
    let (needed, given) = (kernel.parameter_bytes(), size.unwrap_or(0));
    // A C structure may have padding at its end.
    if given < needed || given > needed.next_multiple_of(16) {
        let name = kernel.name();
        return Err(invalid(format!("launch of `{name}`: it has {needed} bytes of parameters, not {given}")));
    }
    Source::<u8>::at(buffer.unwrap_or(0)).values(needed)
}

/// `cuLaunchKernelEx`: launches a kernel with attributes. A cooperative launch is honored, and so is the size of a cluster.
/// Attributes that are only hints are ignored.
///
/// # Errors
/// Returns `NotSupported` with the number of an attribute that would change what the launch does.
pub(crate) fn launch_with_attributes(
    launch: Source<LaunchConfig>,
    function: Function,
    arguments: Arguments,
    extra: *const c_void,
) -> CudaResult<()> {
    let launch = launch.value("the pointer to the launch configuration")?;
    let mut is_cooperative = false;
    let attributes = launch.attributes.values(launch.attribute_count as usize)?;
    let cluster = stated_cluster(&attributes);
    for attribute in attributes {
        match (attribute.number, attribute.value) {
            // The size of a cluster, which is read below. Ignored entries, the cluster scheduling policy, the priority, the
            // memory synchronization domain and its map, and the carveout: none of them changes results.
            (0 | 4 | 5 | 8 | 9 | 10 | 14, _) => {}
            (2, value) => is_cooperative = value[0] != 0,
            (11, [1, 1, 1, ..]) => {}
            // Programmatic stream serialization that is turned off, which is the default.
            (6, [0, ..]) => {}
            (number @ ..=14, _) => {
                let message =
                    format!("virtual GPU: launch attribute {number} is not supported with this value");
                return Err(Error::new(CudaStatus::NotSupported, message));
            }
            (number, _) => return Err(invalid(format!("{number} is not a launch attribute"))),
        }
    }
    let function = library::resolve(function)?;
    let packed = parameters(function, arguments, extra)?;
    let LaunchConfig { grid, block, dynamic_shared, stream: of, .. } = launch;
    let (shape, engine) = (LaunchShape { grid, block, dynamic_shared, cluster }, engine::get()?);
    match is_cooperative {
        true => engine.launch_cooperative(function, shape, stream(of), packed),
        false => engine.launch(function, shape, stream(of), packed),
    }
}

#[expect(clippy::too_many_arguments, reason = "cuLaunchCooperativeKernel has this many")]
pub(crate) fn launch_cooperative(
    function: Function,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    dynamic_shared: c_uint,
    of: Stream,
    arguments: Arguments,
) -> CudaResult<()> {
    let function = library::resolve(function)?;
    let packed = pack(function, arguments)?;
    let shape = LaunchShape::new([grid_x, grid_y, grid_z], [block_x, block_y, block_z], dynamic_shared);
    engine::get()?.launch_cooperative(function, shape, stream(of), packed)
}

/// Packs a launch's parameters one after another, in the order of the kernel's parameter list.
fn pack(function: FunctionHandle, arguments: Arguments) -> CudaResult<Vec<u8>> {
    let kernel = engine::get()?.kernel(function)?;
    let mut packed = vec![0; kernel.parameter_bytes()];
    let places: Vec<_> = kernel
        .parameters()
        .iter()
        .map(|parameter| (parameter.offset as usize)..(parameter.offset + parameter.size) as usize)
        .collect();
    match arguments.read(&places, &mut packed) {
        Ok(()) => Ok(packed),
        Err((index, pointer)) => {
            let (name, count) = (kernel.name(), places.len());
            let what = match pointer.is_null() {
                true => "is null".to_owned(),
                false => format!("is {pointer:?}, where nothing can be read"),
            };
            Err(invalid(format!(
                "launch of `{name}`: the pointer to argument {index} (counted from 0) {what}; the kernel has {count} \
                 parameter{}, and a launch needs an argument for each",
                if count == 1 { "" } else { "s" }
            )))
        }
    }
}
