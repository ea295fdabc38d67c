//! Pinned host memory.

use std::ffi::{c_uint, c_void};

use virtual_gpu::report::size;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

/// Pinned memory begins at a page.
pub(crate) const PAGE: usize = 4096;

/// Host memory that copies on any thread read and write. It is mapped twice: the program's view can be closed while a copy
/// uses the other one.
pub(crate) struct Pinned {
    pub(crate) view: usize,
    pub(crate) own: usize,
    len: usize,
    /// `CU_MEMHOSTALLOC_…`, as the program asked for.
    pub(crate) flags: c_uint,
}

impl Pinned {
    pub(crate) fn new(len: usize, flags: c_uint) -> CudaResult<Self> {
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
