//! Memory from `cuMemCreate` that processes share through file descriptors.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::super::{Engine, lock};
use super::{Held, Memory, MemoryHandle};
use virtual_gpu_core::memory::{Shared, SharedRecord};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

/// Returns the content of new shared memory, and its file.
pub(super) fn held_by_processes(shared: Shared) -> (Held, Option<Arc<dyn SharedRecord>>) {
    let file = shared.written.clone();
    (Held::Shared(Some(shared.into())), Some(file))
}

impl Engine {
    /// `cuMemExportToShareableHandle`: returns a new descriptor for memory that was created to be shared.
    ///
    /// # Errors
    /// Returns `InvalidValue` if it was not, and `OperatingSystem` if the process has no descriptor left.
    pub fn export_memory(&self, handle: MemoryHandle) -> CudaResult<OwnedFd> {
        let mut all = lock(&self.virtual_memory);
        let file = all.memory(handle)?.file.clone().ok_or_else(|| {
            invalid(format!(
                "cuMemExportToShareableHandle: {:#x} was not created with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
                handle.0
            ))
        })?;
        drop(all);
        self.share_with_processes()?;
        file.descriptor().ok_or_else(|| {
            let message = "cuMemExportToShareableHandle: can't duplicate the memory's file descriptor";
            Error::new(CudaStatus::OperatingSystem, message)
        })
    }

    /// `cuMemImportFromShareableHandle`: returns memory that another process, or this one, has exported. `physical` is
    /// the node-wide number of its GPU.
    ///
    /// # Errors
    /// Returns `InvalidValue` if this process does not see the GPU.
    pub fn import_memory(&self, shared: Shared, physical: usize) -> CudaResult<MemoryHandle> {
        let device = self.visible("cuMemImportFromShareableHandle", physical)?;
        let size = shared.size();
        self.share_with_processes()?;
        let (held, file) = held_by_processes(shared);
        Ok(self.add_memory(Memory {
            device,
            size,
            references: 1,
            is_mapped: false,
            held,
            file,
            is_imported: true,
            call_site: CallSite::here(),
        }))
    }

    /// Returns what this process calls the GPU with this node-wide number.
    pub(in crate::engine) fn visible(&self, function: &str, physical: usize) -> CudaResult<usize> {
        self.ordinal(physical).ok_or_else(|| {
            invalid(format!(
                "{function}: the memory is on GPU {physical} of the node, which CUDA_VISIBLE_DEVICES hides"
            ))
        })
    }

    /// Returns whether memory was created to be shared with other processes.
    ///
    /// # Errors
    /// Returns `InvalidValue` if there is no such handle.
    pub fn is_shareable(&self, handle: MemoryHandle) -> CudaResult<bool> {
        Ok(lock(&self.virtual_memory).memory(handle)?.file.is_some())
    }
}
