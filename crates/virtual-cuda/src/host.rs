//! The bodies of the functions about host code and host memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use virtual_gpu::engine::{HostKind, Memory, StreamHandle};
use virtual_gpu::report::size;
use virtual_gpu::status::{CudaResult, CudaStatus, Error};

use crate::driver::Stream;
use crate::pointer::Out;
use crate::{answer, engine};

/// `CUhostFn`
pub type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;

/// Data of the program, handed on to its function.
struct Data(*mut c_void);

// SAFETY: the program gives the pointer for a function that the driver calls on a thread of its own.
unsafe impl Send for Data {}
// SAFETY: as above; a graph that holds the function calls it once at a time.
unsafe impl Sync for Data {}

pub(crate) fn launch_function(of: Stream, function: HostFunction, data: *mut c_void) -> CudaResult<()> {
    let Some(function) = function else {
        return Err(Error::new(CudaStatus::InvalidValue, "cuLaunchHostFunc: the function is null"));
    };
    let data = Data(data);
    let call = move || {
        // The whole of it, which can be sent; not the pointer in it, which can't.
        let data = &data;
        // SAFETY: the program passes a function that may be called with this pointer.
        answer::in_host_function(|| unsafe { function(data.0) });
    };
    engine::get()?.launch_host_function(StreamHandle(of as u64), Arc::new(call))
}

/// All of `CU_MEMHOSTALLOC_…`: portable, device-mapped, write-combined. None of them changes what a program can do here.
const HOST_ALLOCATION_FLAGS: c_uint = 0b111;

/// Pinned memory begins at a page.
const PAGE: usize = 4096;

/// Host memory that copies on any thread read and write.
pub(crate) struct Pinned {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is raw memory, which the program shares with the copies that it enqueues, and orders itself.
unsafe impl Send for Pinned {}
// SAFETY: as above; nothing here makes references to the bytes.
unsafe impl Sync for Pinned {}

impl Pinned {
    fn new(bytes: usize) -> CudaResult<Self> {
        let no_room = || {
            let message = format!("the host has no room for {} of pinned memory", size(bytes as u64));
            Error::new(CudaStatus::OutOfMemory, message)
        };
        let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| no_room())?;
        // SAFETY: the caller asks for one byte at least.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(no_room)?;
        Ok(Self { start, layout })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: it was made with this layout, and is given back once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Bytes of the program that a copy reads or writes.
///
/// Pageable ones are touched before the call returns, or at each launch of the graph that the copy is captured in: the
/// program keeps the memory for as long.
pub(crate) struct HostRange {
    address: usize,
    len: usize,
    /// Where it lies in pinned memory, which lives as long.
    pinned: Option<Arc<Pinned>>,
}

impl HostRange {
    /// # Errors
    /// `InvalidValue` where it is null, an address of a GPU, or goes beyond the end of pinned memory.
    pub(crate) fn new(address: usize, len: usize) -> CudaResult<Self> {
        let invalid = |message: String| Err(Error::new(CudaStatus::InvalidValue, message));
        if address == 0 && len > 0 {
            return invalid("the host pointer of a copy is null".to_owned());
        }
        let engine = engine::get()?;
        if engine.is_device_address(address as u64) {
            return invalid(format!("the host pointer of a copy, {address:#x}, is an address of a GPU"));
        }
        let pinned: Option<Memory> = engine.pinned(address as u64, len as u64)?;
        Ok(Self { address, len, pinned: pinned.and_then(|memory| memory.downcast().ok()) })
    }

    pub(crate) fn kind(&self) -> HostKind {
        if self.pinned.is_some() { HostKind::Pinned } else { HostKind::Pageable }
    }

    /// Its bytes.
    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: the program passed a pointer to as many readable bytes, and `bytes` is nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(self.address as *const u8, bytes.as_mut_ptr(), self.len) };
        bytes
    }

    /// Puts as many bytes there as it has.
    pub(crate) fn write(&self, bytes: &[u8]) {
        let len = bytes.len().min(self.len);
        // SAFETY: as for `read`, of writable bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address as *mut u8, len) };
    }
}

pub(crate) fn allocate(to: Out<*mut c_void>, bytes: usize, flags: c_uint) -> CudaResult<()> {
    let invalid = |message: String| Err(Error::new(CudaStatus::InvalidValue, message));
    if flags & !HOST_ALLOCATION_FLAGS != 0 {
        return invalid(format!("cuMemHostAlloc: {flags:#x} are no flags of it"));
    }
    if bytes == 0 {
        return invalid("cuMemHostAlloc: an allocation of 0 bytes".to_owned());
    }
    if to.is_null() {
        return invalid("cuMemHostAlloc: the pointer for the result is null".to_owned());
    }
    let engine = engine::get()?;
    let memory = Pinned::new(bytes)?;
    let start = memory.start.as_ptr();
    engine.pin(start as u64, bytes as u64, Arc::new(memory))?;
    to.give(start.cast())
}

pub(crate) fn free(address: *mut c_void) -> CudaResult<()> {
    engine::get()?.unpin(address as u64)
}
