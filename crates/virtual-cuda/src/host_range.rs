//! Host memory that copies read and write.

use std::sync::Arc;

use virtual_gpu::engine::{self as gpu, HostKind, Memory};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

use crate::engine;
use crate::guard::{Guard, Rights};
use crate::pinned::Pinned;

/// A range of host memory that a copy reads or writes.
///
/// Pageable bytes are accessed before the call returns, or at each launch of the graph that captured the copy. The
/// program must keep the memory until then.
pub(crate) struct HostRange {
    address: usize,
    len: usize,
    /// The pinned memory that contains the range. Holding it keeps the memory alive.
    pinned: Option<Arc<Pinned>>,
}

impl HostRange {
    /// # Errors
    /// Returns `InvalidValue` if the address is null or a GPU address, or if the range extends past the end of pinned
    /// memory.
    pub(crate) fn new(address: usize, len: usize) -> CudaResult<Self> {
        let invalid = |message: String| Err(Error::new(CudaStatus::InvalidValue, message));
        if address == 0 && len > 0 {
            return invalid("the copy's host pointer is null".to_owned());
        }
        let engine = engine::get()?;
        if engine.is_device_address(address as u64) {
            return invalid(format!("the copy's host pointer, {address:#x}, is a GPU address"));
        }
        let pinned: Option<Memory> = engine.pinned(address as u64, len as u64)?;
        Ok(Self { address, len, pinned: pinned.and_then(|memory| memory.downcast().ok()) })
    }

    /// Returns the kind of memory. Until the program has waited for the copy, it has only the access to pinned memory
    /// that `rights` allows.
    pub(crate) fn kind(&self, rights: Rights) -> CudaResult<HostKind> {
        let Some(memory) = &self.pinned else { return Ok(HostKind::Pageable) };
        let watched = engine::get()?.watches_the_host();
        let guard = watched.then(|| Guard::close(memory, self.address..self.address + self.len, rights));
        Ok(HostKind::Pinned(
            guard.flatten().map(|guard| gpu::Guard { id: guard.id, closed: Box::new(guard) }),
        ))
    }

    /// Returns the address at which copies access the bytes.
    fn start(&self) -> usize {
        self.pinned.as_ref().map_or(self.address, |memory| memory.own + (self.address - memory.view))
    }

    /// Returns a copy of the bytes.
    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        // SAFETY: the program passed a pointer to this many readable bytes, and nothing else refers to `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(self.start() as *const u8, bytes.as_mut_ptr(), self.len) };
        bytes
    }

    /// Writes bytes to the range, up to its length.
    pub(crate) fn write(&self, bytes: &[u8]) {
        let len = bytes.len().min(self.len);
        // SAFETY: as in `read`, but the bytes are writable.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start() as *mut u8, len) };
    }
}
