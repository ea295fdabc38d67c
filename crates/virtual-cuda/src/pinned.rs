//! Pinned host memory.

use std::ffi::{c_uint, c_void};
use std::fmt;
use std::sync::Arc;

use virtual_gpu::report::size;
use virtual_gpu_core::memory::HostBytes;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

/// The page size. Pinned memory is aligned to it.
pub(crate) const PAGE: usize = 4096;

/// Host memory that copies and kernels read and write, on any thread. Memory from `cuMemHostAlloc` is mapped twice, so
/// that the program's view can be protected while a copy uses the other view. Memory that the program has registered is
/// its own, and has only one view.
pub(crate) struct Pinned {
    pub(crate) view: usize,
    pub(crate) own: usize,
    len: usize,
    /// The flags `CU_MEMHOSTALLOC_…` that the program passed.
    pub(crate) flags: c_uint,
}

/// Pinned memory's bytes, as kernels access them.
pub(crate) struct PinnedBytes(pub(crate) Arc<Pinned>);

impl fmt::Debug for PinnedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of pinned memory", self.0.len)
    }
}

impl HostBytes for PinnedBytes {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the memory has this many bytes. If the program accesses them at the same time, that is a race in the
        // program.
        unsafe { std::slice::from_raw_parts(self.0.own as *const u8, self.0.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the same as above.
        unsafe { std::slice::from_raw_parts_mut(self.0.own as *mut u8, self.0.len) }
    }
}

/// Returns whether the program can read and write all `len` bytes at `address`.
fn is_accessible(address: usize, len: usize) -> bool {
    let Some(end) = address.checked_add(len) else { return false };
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    let mut covered = address;
    for line in maps.lines() {
        let mut words = line.split(' ');
        let (Some(range), Some(rights)) = (words.next(), words.next()) else { continue };
        let Some((start, until)) = range.split_once('-') else { continue };
        let ends = (usize::from_str_radix(start, 16), usize::from_str_radix(until, 16));
        if let (Ok(start), Ok(until)) = ends
            && (start..until).contains(&covered)
            && rights.starts_with("rw")
        {
            covered = until;
        }
    }
    covered >= end
}

impl Pinned {
    /// Describes memory that the program has allocated itself (`cuMemHostRegister`).
    ///
    /// # Errors
    /// Returns `InvalidValue` unless the program can read and write all of its bytes.
    pub(crate) fn registered(address: usize, len: usize, flags: c_uint) -> CudaResult<Self> {
        if !is_accessible(address, len) {
            let message = format!(
                "cuMemHostRegister: the program can't read and write all of the {} at {address:#x}",
                size(len as u64)
            );
            return Err(Error::new(CudaStatus::InvalidValue, message));
        }
        Ok(Self { view: address, own: address, len, flags })
    }

    /// Returns whether the memory is the program's own.
    pub(crate) fn is_registered(&self) -> bool {
        self.view == self.own
    }

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
        if self.is_registered() {
            return;
        }
        for start in [self.view, self.own] {
            if start != libc::MAP_FAILED as usize {
                // SAFETY: the memory was mapped with this length and is unmapped only once.
                unsafe { libc::munmap(start as *mut c_void, self.len.next_multiple_of(PAGE)) };
            }
        }
    }
}
