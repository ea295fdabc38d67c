//! The bodies of the host function and host memory functions.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use virtual_gpu::engine::Memory;
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

use crate::pinned::Pinned;
use crate::pointer::Out;
use crate::types::Stream;
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
    let Some(function) = function else {
        return Err(Error::new(CudaStatus::InvalidValue, "cuLaunchHostFunc: the function is null"));
    };
    let data = Data(data);
    let call = move || {
        // Capture the struct, which is `Send`, rather than its pointer, which isn't.
        let data = &data;
        // SAFETY: the program passes a function that may be called with this pointer.
        answer::in_host_function(|| unsafe { function(data.0) });
    };
    engine::get()?.launch_host_function(StreamHandle(of as u64), Arc::new(call))
}

/// All `CU_MEMHOSTALLOC_…` flags: portable, device-mapped, and write-combined. None of them changes what a program can
/// do here.
const HOST_ALLOCATION_FLAGS: c_uint = 0b111;

/// Implements `cuMemAllocHost`, which is `cuMemHostAlloc` without flags.
pub(crate) fn allocate_plain(to: Out<*mut c_void>, bytes: usize) -> CudaResult<()> {
    allocate(to, bytes, 0)
}

pub(crate) fn allocate(to: Out<*mut c_void>, bytes: usize, flags: c_uint) -> CudaResult<()> {
    let invalid = |message: String| Err(Error::new(CudaStatus::InvalidValue, message));
    if flags & !HOST_ALLOCATION_FLAGS != 0 {
        return invalid(format!("cuMemHostAlloc: {flags:#x} contains unknown flags"));
    }
    if bytes == 0 {
        return invalid("cuMemHostAlloc: can't allocate 0 bytes".to_owned());
    }
    if to.is_null() {
        return invalid("cuMemHostAlloc: the result pointer is null".to_owned());
    }
    let engine = engine::get()?;
    let memory = Pinned::new(bytes, flags)?;
    let start = memory.view;
    engine.pin(start as u64, bytes as u64, Arc::new(memory))?;
    to.give(start as *mut c_void)
}

pub(crate) fn flags_of(flags: Out<c_uint>, address: *mut c_void) -> CudaResult<()> {
    let memory: Option<Memory> = engine::get()?.pinned(address as u64, 1)?;
    let Some(memory) = memory.and_then(|memory| memory.downcast::<Pinned>().ok()) else {
        let message = format!("cuMemHostGetFlags: {address:p} is not in memory from cuMemHostAlloc");
        return Err(Error::new(CudaStatus::InvalidValue, message));
    };
    flags.give(memory.flags)
}

pub(crate) fn free(address: *mut c_void) -> CudaResult<()> {
    engine::get()?.unpin(address as u64)
}
