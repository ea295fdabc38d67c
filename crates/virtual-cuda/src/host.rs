//! The bodies of the functions about host code and host memory.

use std::ffi::c_void;

use virtual_gpu::engine::StreamHandle;
use virtual_gpu::status::{CudaResult, CudaStatus, Error};

use crate::driver::Stream;
use crate::{answer, engine};

/// `CUhostFn`
pub type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;

/// Data of the program, handed on to its function.
struct Data(*mut c_void);

// SAFETY: the program gives the pointer for a function that the driver calls on a thread of its own.
unsafe impl Send for Data {}

pub(crate) fn launch_function(of: Stream, function: HostFunction, data: *mut c_void) -> CudaResult<()> {
    let Some(function) = function else {
        return Err(Error::new(CudaStatus::InvalidValue, "cuLaunchHostFunc: the function is null"));
    };
    let data = Data(data);
    let call = move || {
        // The whole of it, which can be sent; not the pointer in it, which can't.
        let data = data;
        // SAFETY: the program passes a function that may be called with this pointer.
        answer::in_host_function(|| unsafe { function(data.0) });
    };
    engine::get()?.launch_host_function(StreamHandle(of as u64), Box::new(call))
}
