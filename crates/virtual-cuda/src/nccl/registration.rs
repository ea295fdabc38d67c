//! The bodies of the functions that register buffers and windows, and allocate memory for them.

use std::ffi::{c_int, c_void};

use virtual_gpu_core::status::NcclResult;

use super::{Communicator, comm, deliver_to, give, invalid, started, started_for};
use crate::memory;
use crate::pointer::Out;
use crate::types::DevicePointer;

/// `ncclWindow_t`
pub type Window = *mut c_void;

/// Registers a buffer. Registered buffers make some real collectives faster; here, nothing changes.
///
/// # Errors
/// Returns `InvalidArgument` unless all bytes are in one buffer of the communicator's GPU.
pub(crate) fn register(
    of: Communicator,
    buffer: DevicePointer,
    bytes: usize,
    to: Out<*mut c_void>,
) -> NcclResult<()> {
    let nccl = started_for(of)?;
    if to.is_null() {
        return Err(invalid("ncclCommRegister: the pointer to the handle is null"));
    }
    give(to, nccl.register(comm(of), buffer, bytes as u64)? as *mut c_void)
}

/// # Errors
/// Returns `InvalidUsage` for a handle that the communicator doesn't have.
pub(crate) fn deregister(of: Communicator, registration: *mut c_void) -> NcclResult<()> {
    started_for(of)?.deregister(comm(of), registration as u64)
}

/// Allocates memory on the calling thread's GPU, as `cuMemAlloc` does.
pub(crate) fn allocate(to: Out<DevicePointer>, bytes: usize) -> NcclResult<()> {
    started()?;
    if to.is_null() {
        return Err(invalid("ncclMemAlloc: the pointer to the address is null"));
    }
    // As `cudaMalloc`, which NCCL then calls.
    if bytes == 0 {
        return give(to, 0);
    }
    Ok(memory::allocate(to, bytes)?)
}

/// Frees memory of [`allocate`]; a null address is ignored.
pub(crate) fn free(address: DevicePointer) -> NcclResult<()> {
    started()?;
    if address == 0 { Ok(()) } else { Ok(memory::free(address)?) }
}

/// `NCCL_WIN_COLL_SYMMETRIC`
const SYMMETRIC: c_int = 1;

/// Registers a buffer together with all ranks. Of the flags, only `NCCL_WIN_COLL_SYMMETRIC` has an effect: puts need it.
///
/// # Errors
/// Returns `InvalidArgument` for a null buffer, no bytes, or bytes that no window can have.
pub(crate) fn register_window(
    of: Communicator,
    buffer: DevicePointer,
    bytes: usize,
    to: Out<Window>,
    flags: c_int,
) -> NcclResult<()> {
    let nccl = started_for(of)?;
    if to.is_null() {
        return Err(invalid("ncclCommWindowRegister: the pointer to the window is null"));
    }
    give(to, std::ptr::null_mut())?;
    if buffer == 0 || bytes == 0 {
        return Err(invalid(format!(
            "ncclCommWindowRegister: {bytes} bytes at {buffer:#x} can't be registered: pass at least 1 byte and an address \
             that is not null"
        )));
    }
    nccl.register_window(comm(of), buffer, bytes as u64, flags & SYMMETRIC != 0, deliver_to(to))
}

pub(crate) fn deregister_window(of: Communicator, window: Window) -> NcclResult<()> {
    started_for(of)?.deregister_window(comm(of), window as u64)
}

pub(crate) fn window_pointer(of: Communicator, window: Window, to: Out<*mut c_void>) -> NcclResult<()> {
    let nccl = started_for(of)?;
    if to.is_null() {
        return Err(invalid("ncclWinGetUserPtr: the pointer to the address is null"));
    }
    give(to, nccl.window_address(comm(of), window as u64)? as *mut c_void)
}
