//! Pinned host memory.

use std::ffi::{c_uint, c_void};

use virtual_gpu::report::size;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

/// The page size. Pinned memory is aligned to it.
pub(crate) const PAGE: usize = 4096;

/// Host memory that copies read and write, on any thread. It is mapped twice, so that the program's view can be
/// protected while a copy uses the other view.
pub(crate) struct Pinned {
    pub(crate) view: usize,
    pub(crate) own: usize,
    len: usize,
    /// The flags `CU_MEMHOSTALLOC_…` that the program passed.
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
        // SAFETY: these are new mappings of an in-memory file that nothing else uses. The file lives as long as the
        // mappings.
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

    /// Returns the end of the program's view.
    pub(crate) fn end(&self) -> usize {
        self.view + self.len
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        for start in [self.view, self.own] {
            if start != libc::MAP_FAILED as usize {
                // SAFETY: the memory was mapped with this length and is unmapped only once.
                unsafe { libc::munmap(start as *mut c_void, self.len.next_multiple_of(PAGE)) };
            }
        }
    }
}
