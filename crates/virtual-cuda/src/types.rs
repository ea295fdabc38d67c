//! The C names of the driver's handles, and their conversion to Rust.

use std::ffi::{c_int, c_void};

use virtual_gpu_core::handle::StreamHandle;

/// `CUdevice`
pub type Device = c_int;

/// `CUcontext`
pub type Context = *mut c_void;

/// `CUgreenCtx`
pub type GreenContext = *mut c_void;

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

pub(crate) fn stream(stream: Stream) -> StreamHandle {
    StreamHandle(stream as u64)
}

pub(crate) fn handle(value: u64) -> *mut c_void {
    value as *mut c_void
}
