//! The bodies of the host function and host memory functions.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use virtual_gpu::engine::{Engine, HostFunction as Call, Memory};
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::pinned::{Pinned, PinnedBytes};
use crate::pointer::Out;
use crate::types::{DevicePointer, Stream};
use crate::{answer, engine};

/// `CUhostFn`
pub type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;

/// The program's data, which is passed to its function.
struct Data(*mut c_void);

// SAFETY: the program passes the pointer to be used by a function that the driver calls on one of its own threads.
unsafe impl Send for Data {}
// SAFETY: for the same reason. A graph that contains the function never runs it twice at the same time.
unsafe impl Sync for Data {}

pub(crate) fn launch_function(of: Stream, function: HostFunction, data: *mut c_void) -> CudaResult<()> {
    let function = self::function("cuLaunchHostFunc", function, data)?;
    engine::get()?.launch_host_function(StreamHandle(of as u64), function)
}

/// Returns a function that calls the program's function with its data. `caller` is the function that received both.
pub(crate) fn function(caller: &str, function: HostFunction, data: *mut c_void) -> CudaResult<Call> {
    let function = function.ok_or_else(|| invalid(format!("{caller}: the function is null")))?;
    let given = [function as usize, data as usize];
    let data = Data(data);
    let call = Arc::new(move || {
        // Capture the struct, which is `Send`, rather than its pointer, which isn't.
        let data = &data;
        // SAFETY: the program passes a function that may be called with this pointer.
        answer::in_host_function(|| unsafe { function(data.0) });
    });
    Ok(Call { call, given })
}

/// `CUstreamCallback`
pub type StreamCallback = Option<unsafe extern "C" fn(Stream, c_uint, *mut c_void)>;

/// `cuStreamAddCallback`: like `cuLaunchHostFunc`, but the function also receives the stream and a status. It is only called
/// if no GPU has failed, so the status is always success.
///
/// # Errors
/// Returns `StreamCaptureUnsupported` if the stream is being captured.
pub(crate) fn add_callback(
    of: Stream,
    callback: StreamCallback,
    data: *mut c_void,
    flags: c_uint,
) -> CudaResult<()> {
    if flags != 0 {
        return Err(invalid(format!("cuStreamAddCallback: the flags must be 0, not {flags:#x}")));
    }
    let Some(callback) = callback else {
        return Err(invalid("cuStreamAddCallback: the function is null"));
    };
    let engine = engine::get()?;
    let stream = StreamHandle(of as u64);
    if engine.capture_status(stream)? as c_uint != 0 {
        let message = "cuStreamAddCallback: the stream is being captured: use cuLaunchHostFunc";
        return Err(Error::new(CudaStatus::StreamCaptureUnsupported, message));
    }
    let given = [callback as usize, data as usize];
    let data = (Data(of), Data(data));
    let call = move || {
        let (stream, data) = &data;
        // SAFETY: the program passes a function that may be called with its stream and this pointer.
        answer::in_host_function(|| unsafe { callback(stream.0, 0, data.0) });
    };
    engine.launch_host_function(stream, Call { call: Arc::new(call), given })
}

/// All `CU_MEMHOSTALLOC_…` flags: portable, device-mapped, and write-combined. None of them changes what a program can
/// do here.
const HOST_ALLOCATION_FLAGS: c_uint = 0b111;

/// `CU_MEMHOSTALLOC_DEVICEMAP`
const HOST_ALLOCATION_MAPPED: c_uint = 0b010;

/// Implements `cuMemAllocHost`, which is `cuMemHostAlloc` without flags.
pub(crate) fn allocate_plain(to: Out<*mut c_void>, bytes: usize) -> CudaResult<()> {
    allocate(to, bytes, 0)
}

pub(crate) fn allocate(to: Out<*mut c_void>, bytes: usize, flags: c_uint) -> CudaResult<()> {
    let invalid = |message: String| Err(invalid(message));
    if flags & !HOST_ALLOCATION_FLAGS != 0 {
        return invalid(format!("cuMemHostAlloc: {flags:#x} contains unknown flags"));
    }
    if bytes == 0 {
        return invalid("cuMemHostAlloc: can't allocate 0 bytes".to_owned());
    }
    if to.is_null() {
        return invalid("cuMemHostAlloc: the result pointer is null".to_owned());
    }
    engine::may_synchronize("cuMemHostAlloc");
    let engine = engine::get()?;
    let memory = Pinned::new(bytes, flags)?;
    let start = memory.view;
    pin(engine, memory, bytes)?;
    to.give(start as *mut c_void)
}

fn pin(engine: &Engine, memory: Pinned, bytes: usize) -> CudaResult<()> {
    let (start, memory) = (memory.view as u64, Arc::new(memory));
    engine.pin(start, bytes as u64, memory.clone(), Box::new(PinnedBytes(memory)))
}

/// The `CU_MEMHOSTREGISTER_…` flags that change nothing: portable and device-mapped. All pinned memory is both.
const WITHOUT_EFFECT: c_uint = 0b0011;
/// The flags for I/O memory and for memory that GPUs only read.
const SPECIAL_MEMORY: c_uint = 0b1100;

/// `cuMemHostRegister`: pins memory that the program has allocated. GPUs access it at the same address.
///
/// # Errors
/// Returns `InvalidValue` for memory that the program can't read and write, `NotSupported` for I/O memory and read-only
/// memory, and `HostMemoryAlreadyRegistered` if a part of it is already pinned.
pub(crate) fn register(address: *mut c_void, bytes: usize, flags: c_uint) -> CudaResult<()> {
    let engine = engine::get()?;
    engine.current_device()?;
    if flags & !(WITHOUT_EFFECT | SPECIAL_MEMORY) != 0 {
        return Err(invalid(format!("cuMemHostRegister: {flags:#x} contains unknown flags")));
    }
    if flags & SPECIAL_MEMORY != 0 {
        let message = format!(
            "virtual GPU: cuMemHostRegister: flags {flags:#x}: I/O memory and read-only memory are not supported"
        );
        return Err(Error::new(CudaStatus::NotSupported, message));
    }
    if address.is_null() || bytes == 0 {
        return Err(invalid(format!("cuMemHostRegister: {bytes} bytes at {address:p} can't be registered")));
    }
    if engine.device_of(address as u64).is_some() && pinned_at(address)?.is_none() {
        return Err(invalid(format!("cuMemHostRegister: {address:p} is a GPU address")));
    }
    pin(engine, Pinned::registered(address as usize, bytes, flags)?, bytes)
}

/// `cuMemHostUnregister`
///
/// # Errors
/// Returns `HostMemoryNotRegistered` unless the address is the first byte of registered memory.
pub(crate) fn unregister(address: *mut c_void) -> CudaResult<()> {
    let engine = engine::get()?;
    let is_it = pinned_at(address)?.is_some_and(|it| it.is_registered() && it.view == address as usize);
    if !is_it {
        let message = format!("cuMemHostUnregister: {address:p} is not the start of registered host memory");
        return Err(Error::new(CudaStatus::HostMemoryNotRegistered, message));
    }
    engine.unpin(address as u64)
}

/// Returns the pinned memory that contains an address.
fn pinned_at(address: *mut c_void) -> CudaResult<Option<Arc<Pinned>>> {
    let memory: Option<Memory> = engine::get()?.pinned(address as u64, 1)?;
    Ok(memory.and_then(|memory| memory.downcast().ok()))
}

/// `cuMemHostGetDevicePointer`: GPUs access pinned memory at the host's addresses.
///
/// # Errors
/// Returns `InvalidValue` unless the address is in pinned memory.
pub(crate) fn device_pointer(to: Out<DevicePointer>, address: *mut c_void, flags: c_uint) -> CudaResult<()> {
    engine::get()?.current_device()?;
    if flags != 0 {
        return Err(invalid(format!("cuMemHostGetDevicePointer: the flags must be 0, not {flags:#x}")));
    }
    if pinned_at(address)?.is_none() {
        return Err(invalid(format!("cuMemHostGetDevicePointer: {address:p} is not in pinned host memory")));
    }
    to.give(address as DevicePointer)
}

pub(crate) fn flags_of(flags: Out<c_uint>, address: *mut c_void) -> CudaResult<()> {
    let Some(memory) = pinned_at(address)?.filter(|memory| !memory.is_registered()) else {
        let message = format!("cuMemHostGetFlags: {address:p} is not in memory from cuMemHostAlloc");
        return Err(Error::new(CudaStatus::InvalidValue, message));
    };
    // All pinned memory can be used by GPUs, whether that was asked for or not, and the driver says so.
    flags.give(memory.flags | HOST_ALLOCATION_MAPPED)
}

pub(crate) fn free(address: *mut c_void) -> CudaResult<()> {
    engine::may_synchronize("cuMemFreeHost");
    if pinned_at(address)?.is_some_and(|memory| memory.is_registered()) {
        return Err(invalid(format!(
            "cuMemFreeHost: {address:p} is registered memory: unregister it (cuMemHostUnregister)"
        )));
    }
    engine::get()?.unpin(address as u64)
}
