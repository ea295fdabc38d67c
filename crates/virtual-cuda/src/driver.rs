//! The driver functions' bodies: C arguments to Rust ones, one call of the engine, results out.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use virtual_gpu::device;
use virtual_gpu::engine::{ContextHandle, Engine, EventHandle, FunctionHandle, LaunchShape, ModuleHandle};
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

use crate::engine;
use crate::guard::Rights;
use crate::host::HostRange;
use crate::pointer::{Arguments, Out, Source, Text};

/// `CUdevice`
pub type Device = c_int;
/// `CUcontext`
pub type Context = *mut c_void;
/// `CUstream`
pub type Stream = *mut c_void;
/// `CUevent`
pub type Event = *mut c_void;
/// `CUmodule`
pub type Module = *mut c_void;
/// `CUfunction`
pub type Function = *mut c_void;
/// `CUdeviceptr`
pub type DevicePointer = u64;

/// `CU_STREAM_NON_BLOCKING`, the only stream flag.
const STREAM_NON_BLOCKING: c_uint = 1;
/// All of `CUevent_flags`: blocking sync, disable timing, interprocess.
const EVENT_FLAGS: c_uint = 0b111;
/// `CU_EVENT_DISABLE_TIMING`
const EVENT_DISABLE_TIMING: c_uint = 0b010;
/// `CU_EVENT_INTERPROCESS`
const EVENT_INTERPROCESS: c_uint = 0b100;

fn invalid(message: impl Into<String>) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidValue, message.into())
}

fn stream(stream: Stream) -> StreamHandle {
    StreamHandle(stream as u64)
}

fn handle(value: u64) -> *mut c_void {
    value as *mut c_void
}

fn checked(device: Device) -> CudaResult<&'static Engine> {
    let engine = engine::get()?;
    engine.check_device(device)?;
    Ok(engine)
}

pub(crate) fn init(flags: c_uint) -> CudaResult<()> {
    if flags != 0 {
        return Err(invalid(format!("cuInit: flags must be 0, not {flags}")));
    }
    engine::start()
}

pub(crate) fn version(to: Out<c_int>) -> CudaResult<()> {
    to.give(device::DRIVER_VERSION)
}

pub(crate) fn device(to: Out<Device>, ordinal: c_int) -> CudaResult<()> {
    checked(ordinal)?;
    to.give(ordinal)
}

pub(crate) fn device_count(to: Out<c_int>) -> CudaResult<()> {
    to.give(engine::get()?.device_count() as c_int)
}

pub(crate) fn device_name(to: Out<c_char>, len: c_int, device: Device) -> CudaResult<()> {
    checked(device)?;
    let len = usize::try_from(len).ok().filter(|&len| len > 0);
    let (Some(len), false) = (len, to.is_null()) else {
        return Err(invalid("cuDeviceGetName: no room for the name"));
    };
    let mut name: Vec<c_char> = device::NAME.bytes().take(len - 1).map(|byte| byte as c_char).collect();
    name.push(0);
    to.give_all(&name)
}

pub(crate) fn device_uuid(to: Out<[u8; 16]>, device: Device) -> CudaResult<()> {
    let engine = engine::get()?;
    to.give(device::uuid(engine.physical(engine.check_device(device)?)))
}

pub(crate) fn compute_capability(major: Out<c_int>, minor: Out<c_int>, device: Device) -> CudaResult<()> {
    use device::{COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR};
    device_attribute(major, COMPUTE_CAPABILITY_MAJOR, device)?;
    device_attribute(minor, COMPUTE_CAPABILITY_MINOR, device)
}

pub(crate) fn device_attribute(to: Out<c_int>, attribute: c_int, device: Device) -> CudaResult<()> {
    let engine = engine::get()?;
    let physical = engine.physical(engine.check_device(device)?);
    if !(1..device::ATTRIBUTES).contains(&attribute) {
        return Err(invalid(format!("{attribute} is no device attribute")));
    }
    let value = device::attribute(attribute, physical).ok_or_else(|| {
        let message = format!("virtual GPU: device attribute {attribute} is not supported");
        Error::new(CudaStatus::NotSupported, message)
    })?;
    to.give(value)
}

pub(crate) fn device_total_memory(to: Out<usize>, device: Device) -> CudaResult<()> {
    checked(device)?;
    to.give(device::TOTAL_MEMORY as usize)
}

pub(crate) fn retain_primary(to: Out<Context>, device: Device) -> CudaResult<()> {
    to.give(handle(engine::get()?.retain_primary(device)?.0))
}

pub(crate) fn release_primary(device: Device) -> CudaResult<()> {
    engine::get()?.release_primary(device)
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

pub(crate) fn create_stream(to: Out<Stream>, flags: c_uint) -> CudaResult<()> {
    if flags & !STREAM_NON_BLOCKING != 0 {
        return Err(invalid(format!("cuStreamCreate: {flags:#x} are no stream flags")));
    }
    let made = engine::get()?.create_stream(flags & STREAM_NON_BLOCKING != 0)?;
    to.give(handle(made.0))
}

/// Any priority will do, as one out of range is clamped. It changes when work runs, never what it computes: here it
/// changes nothing.
pub(crate) fn create_stream_with_priority(to: Out<Stream>, flags: c_uint, _: c_int) -> CudaResult<()> {
    create_stream(to, flags)
}

pub(crate) fn destroy_stream(of: Stream) -> CudaResult<()> {
    engine::get()?.destroy_stream(stream(of))
}

pub(crate) fn synchronize_stream(of: Stream) -> CudaResult<()> {
    engine::get()?.synchronize_stream(stream(of))
}

fn not_ready(done: bool) -> CudaResult<()> {
    if done { Ok(()) } else { Err(CudaStatus::NotReady.into()) }
}

pub(crate) fn query_stream(of: Stream) -> CudaResult<()> {
    not_ready(engine::get()?.query_stream(stream(of))?)
}

pub(crate) fn wait_event(of: Stream, event: Event, flags: c_uint) -> CudaResult<()> {
    match flags {
        0 => {}
        1 => return Err(invalid("cuStreamWaitEvent: CU_EVENT_WAIT_EXTERNAL is for captures only")),
        _ => return Err(invalid(format!("cuStreamWaitEvent: {flags:#x} are no flags of it"))),
    }
    engine::get()?.wait_event(stream(of), EventHandle(event as u64))
}

pub(crate) fn create_event(to: Out<Event>, flags: c_uint) -> CudaResult<()> {
    if flags & !EVENT_FLAGS != 0 {
        return Err(invalid(format!("cuEventCreate: {flags:#x} are no event flags")));
    }
    if flags & EVENT_INTERPROCESS != 0 && flags & EVENT_DISABLE_TIMING == 0 {
        return Err(invalid("cuEventCreate: CU_EVENT_INTERPROCESS needs CU_EVENT_DISABLE_TIMING"));
    }
    to.give(handle(engine::get()?.create_event(flags & EVENT_DISABLE_TIMING == 0)?.0))
}

pub(crate) fn destroy_event(event: Event) -> CudaResult<()> {
    engine::get()?.destroy_event(EventHandle(event as u64))
}

pub(crate) fn record_event(event: Event, of: Stream) -> CudaResult<()> {
    engine::get()?.record_event(EventHandle(event as u64), stream(of))
}

pub(crate) fn synchronize_event(event: Event) -> CudaResult<()> {
    engine::get()?.synchronize_event(EventHandle(event as u64))
}

pub(crate) fn query_event(event: Event) -> CudaResult<()> {
    not_ready(engine::get()?.query_event(EventHandle(event as u64))?)
}

pub(crate) fn elapsed(to: Out<f32>, start: Event, end: Event) -> CudaResult<()> {
    to.give(engine::get()?.elapsed(EventHandle(start as u64), EventHandle(end as u64))?)
}

pub(crate) fn allocate(to: Out<DevicePointer>, bytes: usize) -> CudaResult<()> {
    to.give(engine::get()?.allocate(bytes as u64)?)
}

pub(crate) fn allocate_in(to: Out<DevicePointer>, bytes: usize, of: Stream) -> CudaResult<()> {
    to.give(engine::get()?.allocate_in(stream(of), bytes as u64)?)
}

pub(crate) fn free(address: DevicePointer) -> CudaResult<()> {
    engine::get()?.free(address)
}

pub(crate) fn free_in(address: DevicePointer, of: Stream) -> CudaResult<()> {
    engine::get()?.free_in(stream(of), address)
}

pub(crate) fn memory_info(free: Out<usize>, total: Out<usize>) -> CudaResult<()> {
    let (free_bytes, total_bytes) = engine::get()?.memory_info()?;
    free.give(free_bytes as usize)?;
    total.give(total_bytes as usize)
}

pub(crate) fn copy_from_host(to: DevicePointer, from: Source<u8>, bytes: usize) -> CudaResult<()> {
    let host = HostRange::new(from.address(), bytes)?;
    engine::get()?.copy_from_host_now(to, bytes as u64, || host.read())
}

pub(crate) fn copy_from_host_in(
    to: DevicePointer,
    from: Source<u8>,
    bytes: usize,
    of: Stream,
) -> CudaResult<()> {
    let host = HostRange::new(from.address(), bytes)?;
    let kind = host.kind(Rights::Read)?;
    engine::get()?.copy_from_host(stream(of), to, bytes as u64, Arc::new(move || host.read()), kind)
}

/// Waits for the bytes, whatever memory they go to.
pub(crate) fn copy_to_host(to: Out<u8>, from: DevicePointer, bytes: usize) -> CudaResult<()> {
    let host = HostRange::new(to.address(), bytes)?;
    host.write(&engine::get()?.copy_to_host_now(from, bytes as u64)?);
    Ok(())
}

pub(crate) fn copy_to_host_in(to: Out<u8>, from: DevicePointer, bytes: usize, of: Stream) -> CudaResult<()> {
    let host = HostRange::new(to.address(), bytes)?;
    let kind = host.kind(Rights::None)?;
    let write = Arc::new(move |bytes: &[u8]| host.write(bytes));
    engine::get()?.copy_to_host(stream(of), from, bytes as u64, write, kind)
}

pub(crate) fn copy(to: DevicePointer, from: DevicePointer, bytes: usize) -> CudaResult<()> {
    copy_in(to, from, bytes, std::ptr::null_mut())?;
    wait_if_asked()
}

/// The end of a copy between GPU addresses, or of a memset, that names no stream: it returns at once, unless the
/// context asks for more.
fn wait_if_asked() -> CudaResult<()> {
    match engine::get()?.has_synchronous_copies()? {
        true => synchronize_stream(std::ptr::null_mut()),
        false => Ok(()),
    }
}

pub(crate) fn copy_in(to: DevicePointer, from: DevicePointer, bytes: usize, of: Stream) -> CudaResult<()> {
    engine::get()?.copy(stream(of), to, from, bytes as u64)
}

/// With unified addressing the addresses alone tell the contexts.
pub(crate) fn copy_peer(
    to: DevicePointer,
    _: Context,
    from: DevicePointer,
    _: Context,
    bytes: usize,
    of: Stream,
) -> CudaResult<()> {
    copy_in(to, from, bytes, of)
}

pub(crate) fn set_8(at: DevicePointer, value: u8, count: usize) -> CudaResult<()> {
    set_8_in(at, value, count, std::ptr::null_mut())?;
    wait_if_asked()
}

pub(crate) fn set_8_in(at: DevicePointer, value: u8, count: usize, of: Stream) -> CudaResult<()> {
    engine::get()?.set(stream(of), at, [value], count as u64)
}

pub(crate) fn set_16(at: DevicePointer, value: u16, count: usize) -> CudaResult<()> {
    set_16_in(at, value, count, std::ptr::null_mut())?;
    wait_if_asked()
}

pub(crate) fn set_16_in(at: DevicePointer, value: u16, count: usize, of: Stream) -> CudaResult<()> {
    engine::get()?.set(stream(of), at, value.to_le_bytes(), count as u64)
}

pub(crate) fn set_32(at: DevicePointer, value: c_uint, count: usize) -> CudaResult<()> {
    set_32_in(at, value, count, std::ptr::null_mut())?;
    wait_if_asked()
}

pub(crate) fn set_32_in(at: DevicePointer, value: c_uint, count: usize, of: Stream) -> CudaResult<()> {
    engine::get()?.set(stream(of), at, value.to_le_bytes(), count as u64)
}

pub(crate) fn load_module_file(to: Out<Module>, path: Text) -> CudaResult<()> {
    let path = path.text().ok_or_else(|| invalid("cuModuleLoad: the path is null or no UTF-8"))?;
    let source = std::fs::read(path)
        .map_err(|error| Error::new(CudaStatus::FileNotFound, format!("cuModuleLoad: {path}: {error}")))?;
    let source = ptx_text(&source)?;
    to.give(handle(engine::get()?.load_module(source)?.0))
}

pub(crate) fn load_module(to: Out<Module>, image: Text) -> CudaResult<()> {
    // Machine code begins with four bytes of magic, none of them 0, and so is a C string of at least these.
    let source = image.bytes().ok_or_else(|| invalid("cuModuleLoadData: the image is null"))?;
    to.give(handle(engine::get()?.load_module(ptx_text(source)?)?.0))
}

/// The options say how to compile and where to log; what is wrong with the image, the error says here.
pub(crate) fn load_module_with(
    to: Out<Module>,
    image: Text,
    _count: c_uint,
    _options: Out<c_uint>,
    _values: Arguments,
) -> CudaResult<()> {
    load_module(to, image)
}

/// The text of a PTX image; machine code is refused by its kind.
fn ptx_text(image: &[u8]) -> CudaResult<&str> {
    let machine_code = match image {
        [0x7f, b'E', b'L', b'F', ..] => Some("a cubin"),
        [0x50, 0xed, 0x55, 0xba, ..] => Some("a fatbin"),
        _ => None,
    };
    if let Some(kind) = machine_code {
        let message = format!("virtual GPU: {kind} is not supported: load PTX (nvcc -ptx, NVRTC)");
        return Err(Error::new(CudaStatus::NoBinaryForGpu, message));
    }
    str::from_utf8(image).map_err(|error| {
        let message = format!("this is no PTX: byte {} is no UTF-8", error.valid_up_to());
        Error::new(CudaStatus::InvalidPtx, message)
    })
}

pub(crate) fn unload_module(module: Module) -> CudaResult<()> {
    engine::get()?.unload_module(ModuleHandle(module as u64))
}

pub(crate) fn function(to: Out<Function>, module: Module, name: Text) -> CudaResult<()> {
    let name = name.text().ok_or_else(|| invalid("cuModuleGetFunction: the name is null or no UTF-8"))?;
    to.give(handle(engine::get()?.function(ModuleHandle(module as u64), name)?.0))
}

#[expect(clippy::too_many_arguments, reason = "as many as cuLaunchKernel has")]
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
    if !extra.is_null() {
        let message = "virtual GPU: cuLaunchKernel's `extra` is not supported: pass kernelParams";
        return Err(Error::new(CudaStatus::NotSupported, message));
    }
    let function = FunctionHandle(function as u64);
    let packed = pack(function, arguments)?;
    let shape =
        LaunchShape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], dynamic_shared };
    engine::get()?.launch(function, shape, stream(of), packed)
}

#[expect(clippy::too_many_arguments, reason = "as many as cuLaunchCooperativeKernel has")]
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
    let function = FunctionHandle(function as u64);
    let packed = pack(function, arguments)?;
    let shape =
        LaunchShape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], dynamic_shared };
    engine::get()?.launch_cooperative(function, shape, stream(of), packed)
}

/// A launch's parameters, one after the other as the kernel's own list says.
fn pack(function: FunctionHandle, arguments: Arguments) -> CudaResult<Vec<u8>> {
    let kernel = engine::get()?.kernel(function)?;
    let mut packed = vec![0; kernel.parameter_bytes()];
    for (index, parameter) in kernel.parameters().iter().enumerate() {
        let (start, size) = (parameter.offset as usize, parameter.size as usize);
        let bytes = arguments.value(index, size).ok_or_else(|| {
            invalid(format!("launch of `{}`: the pointer to parameter {index} is null", kernel.name()))
        })?;
        packed[start..start + size].copy_from_slice(bytes);
    }
    Ok(packed)
}
