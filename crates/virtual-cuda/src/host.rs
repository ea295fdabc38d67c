//! The bodies of the functions about host code and host memory.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use virtual_gpu::engine::{self as gpu, HostKind, Memory};
use virtual_gpu::report::size;
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

use crate::driver::Stream;
use crate::guard::{Guard, Rights};
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
pub(crate) const PAGE: usize = 4096;

/// Host memory that copies on any thread read and write. It is mapped twice: the program's view can be closed while a copy
/// uses the other one.
pub(crate) struct Pinned {
    view: usize,
    own: usize,
    len: usize,
    /// `CU_MEMHOSTALLOC_…`, as the program asked for.
    flags: c_uint,
}

impl Pinned {
    fn new(len: usize, flags: c_uint) -> CudaResult<Self> {
        let no_room = || {
            let message = format!("the host has no room for {} of pinned memory", size(len as u64));
            Error::new(CudaStatus::OutOfMemory, message)
        };
        let mapped = len.checked_next_multiple_of(PAGE).ok_or_else(no_room)?;
        let file_len = i64::try_from(mapped).map_err(|_| no_room())?;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: fresh mappings of a file in memory that nobody else has. The file lives as long as they do.
        unsafe {
            let file = libc::memfd_create(c"pinned memory".as_ptr(), libc::MFD_CLOEXEC);
            if file < 0 {
                return Err(no_room());
            }
            let map = || match libc::ftruncate(file, file_len) {
                0 => libc::mmap(std::ptr::null_mut(), mapped, rights, libc::MAP_SHARED, file, 0),
                _ => libc::MAP_FAILED,
            };
            let (view, own) = (map(), map());
            libc::close(file);
            let made = Self { view: view as usize, own: own as usize, len, flags };
            if view == libc::MAP_FAILED || own == libc::MAP_FAILED {
                return Err(no_room());
            }
            Ok(made)
        }
    }

    /// Where the program's view of it ends.
    pub(crate) fn end(&self) -> usize {
        self.view + self.len
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        for start in [self.view, self.own] {
            if start != libc::MAP_FAILED as usize {
                // SAFETY: it was mapped with this length, and is given back once.
                unsafe { libc::munmap(start as *mut c_void, self.len.next_multiple_of(PAGE)) };
            }
        }
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

    /// What memory it is. Where it is pinned, the program may only do with it what `rights` say, until it has waited for
    /// the copy.
    pub(crate) fn kind(&self, rights: Rights) -> CudaResult<HostKind> {
        let Some(memory) = &self.pinned else { return Ok(HostKind::Pageable) };
        let watched = engine::get()?.watches_the_host();
        let guard = watched.then(|| Guard::close(memory, self.address..self.address + self.len, rights));
        Ok(HostKind::Pinned(
            guard.flatten().map(|guard| gpu::Guard { id: guard.id, closed: Box::new(guard) }),
        ))
    }

    /// Where copies find the bytes.
    fn start(&self) -> usize {
        self.pinned.as_ref().map_or(self.address, |memory| memory.own + (self.address - memory.view))
    }

    /// Its bytes.
    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: the program passed a pointer to as many readable bytes, and `bytes` is nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(self.start() as *const u8, bytes.as_mut_ptr(), self.len) };
        bytes
    }

    /// Puts as many bytes there as it has.
    pub(crate) fn write(&self, bytes: &[u8]) {
        let len = bytes.len().min(self.len);
        // SAFETY: as for `read`, of writable bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start() as *mut u8, len) };
    }
}

/// `cuMemAllocHost`: as `cuMemHostAlloc` without flags.
pub(crate) fn allocate_plain(to: Out<*mut c_void>, bytes: usize) -> CudaResult<()> {
    allocate(to, bytes, 0)
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
    let memory = Pinned::new(bytes, flags)?;
    let start = memory.view;
    engine.pin(start as u64, bytes as u64, Arc::new(memory))?;
    to.give(start as *mut c_void)
}

pub(crate) fn flags_of(flags: Out<c_uint>, address: *mut c_void) -> CudaResult<()> {
    let memory: Option<Memory> = engine::get()?.pinned(address as u64, 1)?;
    let Some(memory) = memory.and_then(|memory| memory.downcast::<Pinned>().ok()) else {
        let message = format!("cuMemHostGetFlags: {address:p} is not in memory of cuMemHostAlloc");
        return Err(Error::new(CudaStatus::InvalidValue, message));
    };
    flags.give(memory.flags)
}

pub(crate) fn free(address: *mut c_void) -> CudaResult<()> {
    engine::get()?.unpin(address as u64)
}
