//! The bodies of the functions about host code and host memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_uint, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use virtual_gpu::engine::{Memory, StreamHandle};
use virtual_gpu::report::size;
use virtual_gpu::status::{CudaResult, CudaStatus, Error};

use crate::driver::{DevicePointer, Stream};
use crate::pointer::{Out, Source};
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

/// All of `CU_MEMHOSTALLOC_…`: portable, device-mapped, write-combined. None of them changes what a program can do here.
const HOST_ALLOCATION_FLAGS: c_uint = 0b111;

/// Pinned memory begins at a page.
const PAGE: usize = 4096;

/// Host memory that copies on any thread read and write.
struct Pinned {
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

    /// The `len` bytes at `address`, which lie in this memory.
    fn read(&self, address: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: the engine found the range in this memory, which lives, and `bytes` is nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Writes to `address`; the range lies in this memory.
    fn write(&self, address: usize, bytes: &[u8]) {
        // SAFETY: as for `read`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: it was made with this layout, and is given back once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// The pinned memory that a host range lies in; none where it is pageable.
fn pinned(address: usize, len: usize) -> CudaResult<Option<Arc<Pinned>>> {
    let memory: Option<Memory> = engine::get()?.pinned(address as u64, len as u64)?;
    Ok(memory.and_then(|memory| memory.downcast().ok()))
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

/// Enqueues a copy from pinned memory, which is read when the copy's turn comes; `false` where the memory is pageable.
pub(crate) fn copy_from_pinned(
    to: DevicePointer,
    from: Source<u8>,
    bytes: usize,
    of: Stream,
) -> CudaResult<bool> {
    let address = from.address();
    let Some(memory) = pinned(address, bytes)? else { return Ok(false) };
    let read = Box::new(move || memory.read(address, bytes));
    engine::get()?.upload_pinned(StreamHandle(of as u64), to, bytes as u64, read)?;
    Ok(true)
}

/// As [`copy_from_pinned`], to pinned memory.
pub(crate) fn copy_to_pinned(to: Out<u8>, from: DevicePointer, bytes: usize, of: Stream) -> CudaResult<bool> {
    let address = to.address();
    let Some(memory) = pinned(address, bytes)? else { return Ok(false) };
    let write = Box::new(move |read: &[u8]| memory.write(address, read));
    engine::get()?.download_pinned(StreamHandle(of as u64), from, bytes as u64, write)?;
    Ok(true)
}
