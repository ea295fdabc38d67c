//! Host memory that copies read and write.

use std::sync::Arc;

use virtual_gpu::engine::{self as gpu, HostKind, HostSide, Memory, Region};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

use crate::engine;
use crate::guard::{Guard, Rights};
use crate::pinned::Pinned;

/// Rows of host memory that a copy reads or writes.
///
/// Pageable bytes are accessed before the call returns, or at each launch of the graph that captured the copy. The
/// program must keep the memory until then.
pub(crate) struct HostRange {
    region: Region,
    /// The pinned memory that contains the rows. Holding it keeps the memory alive.
    pinned: Option<Arc<Pinned>>,
}

impl HostRange {
    /// Describes contiguous memory; see [`Self::of`].
    pub(crate) fn new(address: usize, len: usize) -> CudaResult<Self> {
        Self::of(Region::line(address as u64, len as u64))
    }

    /// # Errors
    /// Returns `InvalidValue` if the address is null or a GPU address, or if the rows extend past the end of pinned
    /// memory or of the address space.
    pub(crate) fn of(region: Region) -> CudaResult<Self> {
        let invalid = |message: String| Err(Error::new(CudaStatus::InvalidValue, message));
        let address = region.start;
        if address == 0 && region.bytes() > 0 {
            return invalid("the copy's host pointer is null".to_owned());
        }
        let engine = engine::get()?;
        if engine.is_device_address(address) {
            return invalid(format!("the copy's host pointer, {address:#x}, is a GPU address"));
        }
        let Some(extent) = region.extent() else {
            return invalid(format!("the copy's rows at {address:#x} extend beyond the address space"));
        };
        let pinned: Option<Memory> = engine.pinned(address, extent)?;
        Ok(Self { region, pinned: pinned.and_then(|memory| memory.downcast().ok()) })
    }

    /// Returns where the bytes are if the memory is pinned.
    pub(crate) fn pinned(&self) -> Option<Region> {
        self.pinned.as_ref().map(|_| self.region)
    }

    /// Returns the memory as one side of a copy in a graph.
    pub(crate) fn side(&self) -> HostSide {
        HostSide { at: self.region, is_pinned: self.pinned.is_some() }
    }

    /// Returns the kind of memory. Until the program has waited for the copy, it has only the access to contiguous
    /// pinned memory that `rights` allows.
    pub(crate) fn kind(&self, rights: Rights) -> CudaResult<HostKind> {
        let Some(memory) = &self.pinned else {
            return Ok(HostKind::Pageable { at: self.region });
        };
        let is_contiguous = self.region.extent() == Some(self.region.bytes());
        let watched = engine::get()?.watches_the_host() && is_contiguous && !memory.is_registered();
        let start = self.region.start as usize;
        let bytes = start..start + self.region.bytes() as usize;
        let guard = watched.then(|| Guard::close(memory, bytes, rights)).flatten();
        let guard = guard.map(|guard| gpu::Guard { id: guard.id, closed: Box::new(guard) });
        Ok(HostKind::Pinned { at: self.region, guard })
    }

    /// Returns the address at which copies access each row.
    fn rows(&self) -> impl Iterator<Item = usize> {
        let shift = self.pinned.as_ref().map_or(0, |memory| memory.own.wrapping_sub(memory.view));
        self.region.rows().map(move |row| (row as usize).wrapping_add(shift))
    }

    /// Returns a copy of the bytes of all rows.
    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.region.bytes() as usize];
        for (row, out) in self.rows().zip(bytes.chunks_mut((self.region.width as usize).max(1))) {
            // SAFETY: the program passed a pointer to rows of this many readable bytes, and nothing else refers to
            // `bytes`.
            unsafe { std::ptr::copy_nonoverlapping(row as *const u8, out.as_mut_ptr(), out.len()) };
        }
        bytes
    }

    /// Writes bytes to the rows, one row after another.
    pub(crate) fn write(&self, bytes: &[u8]) {
        for (row, bytes) in self.rows().zip(bytes.chunks((self.region.width as usize).max(1))) {
            // SAFETY: as in `read`, but the bytes are writable.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), row as *mut u8, bytes.len()) };
        }
    }
}
