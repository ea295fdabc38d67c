//! Bytes of the program that copies read and write.

use std::sync::Arc;

use virtual_gpu::engine::{self as gpu, HostKind, Memory};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

use crate::engine;
use crate::guard::{Guard, Rights};
use crate::pinned::Pinned;

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
