//! Memory that several processes use: handles to memory from `cuMemAlloc`, and what has been opened with them.
//!
//! Races between processes are not detected: each process has its own clocks.

use std::ops::Range;

use super::context::ContextHandle;
use super::pool::PoolHandle;
use super::virtual_memory::MemoryAccess;
use super::{Engine, State};
use virtual_gpu_core::memory::{FileKey, Shared};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

/// Memory of another process that is open in a context, or in a pool.
pub(super) struct Import {
    /// The context, from which the memory is closed (`cuIpcCloseMemHandle`).
    pub(super) context: Option<ContextHandle>,
    /// The pool. The memory is freed as other memory of a pool.
    pool: Option<PoolHandle>,
    /// The secret of its file.
    secret: u64,
    size: u64,
    /// How many times it has been opened.
    references: u64,
}

impl Engine {
    /// Moves the bytes of the allocation that starts at `base` to memory that other processes can open, and returns its
    /// file. `make` receives the number of bytes, and the node-wide number of the GPU.
    ///
    /// # Errors
    /// Returns `OutOfMemory` if `make` has no room, and `InvalidValue` if another process has exported the memory.
    pub fn share_allocation(
        &self,
        base: u64,
        make: impl FnOnce(u64, usize) -> std::io::Result<Shared>,
    ) -> CudaResult<FileKey> {
        let device = self.device_of(base).unwrap_or(self.managed());
        let physical = self.physical(device.min(self.device_count() - 1));
        if self.state().imports.contains_key(&base) {
            let message = format!("{base:#x} is memory of another process: that process can export it");
            return Err(Error::new(CudaStatus::InvalidValue, message));
        }
        let key = self.memory(device).share(base, |size| make(size, physical)).map_err(|error| {
            let message =
                format!("can't move the memory at {base:#x} to a file that processes share: {error}");
            Error::new(CudaStatus::OutOfMemory, message)
        })?;
        self.share_with_processes()?;
        let gone = || Error::new(CudaStatus::InvalidValue, format!("{base:#x} has been freed"));
        key.ok_or_else(gone)
    }

    /// Returns what this process calls the GPU with this node-wide number, if it sees the GPU.
    pub(super) fn ordinal(&self, physical: usize) -> Option<usize> {
        (0..self.device_count()).find(|&gpu| self.physical(gpu) == physical)
    }

    /// Lets kernels wait for other processes from now on.
    pub(super) fn share_with_processes(&self) -> CudaResult<()> {
        self.watch_elsewhere()?;
        self.state().shares_with_processes = true;
        Ok(())
    }

    /// Returns the address of memory of another process that is already open in the current context, and opens it once
    /// more.
    pub fn open_again(&self, secret: u64) -> CudaResult<Option<u64>> {
        let mut state = self.state();
        let context = state.current_context()?;
        let is_it = |import: &Import| (import.context, import.secret) == (Some(context), secret);
        let found = state.imports.iter_mut().find(|(_, import)| is_it(import));
        Ok(found.map(|(&address, import)| {
            import.references += 1;
            address
        }))
    }

    /// Opens memory of another process in the current context. `physical` is the node-wide number of its GPU.
    ///
    /// # Errors
    /// Returns `MapFailed` if the context's GPU can't access that GPU's memory.
    pub fn open_shared(&self, shared: Shared, physical: usize) -> CudaResult<u64> {
        let secret = shared.written.secret();
        let own = self.current_device()?;
        // A GPU that this process does not see has no memory here.
        let device = self.ordinal(physical).unwrap_or(own);
        if device != own && !self.can_access_peer(own, device) {
            let message =
                format!("GPU {own} can't access the memory of GPU {device}: cuDeviceCanAccessPeer returns 0");
            return Err(Error::new(CudaStatus::MapFailed, message));
        }
        let size = shared.size();
        let made = self.memory(device).insert_shared(shared, CallSite::here());
        let no_room = || Error::new(CudaStatus::MapFailed, "no addresses are left for the memory");
        let (address, allocation) = made.ok_or_else(no_room)?;
        self.share_with_processes()?;
        let mut state = self.state();
        let context = state.current_context()?;
        state.own(address, allocation)?;
        if device != own {
            state.share_mapping(address..address + size, device, own, MemoryAccess::ReadWrite);
        }
        let import = Import { context: Some(context), pool: None, secret, size, references: 1 };
        state.imports.insert(address, import);
        Ok(address)
    }

    /// `cuMemPoolImportPointer`: opens memory of a pool of another process.
    ///
    /// # Errors
    /// Returns `MapFailed` if no addresses are left.
    pub fn open_in_pool(&self, pool: PoolHandle, shared: Shared) -> CudaResult<u64> {
        let secret = shared.written.secret();
        let (device, others) = (self.device_of_pool(pool)?, self.others_of_pool(pool)?);
        let size = shared.size();
        let made = self.memory(device).insert_shared(shared, CallSite::here());
        let no_room = || Error::new(CudaStatus::MapFailed, "no addresses are left for the memory");
        let (address, _) = made.ok_or_else(no_room)?;
        let mut state = self.state();
        for gpu in others {
            state.share_mapping(address..address + size, device, gpu, MemoryAccess::ReadWrite);
        }
        let import = Import { context: None, pool: Some(pool), secret, size, references: 1 };
        state.imports.insert(address, import);
        Ok(address)
    }

    /// `cuIpcCloseMemHandle`: closes memory as many times as it has been opened. After the last time, nothing can
    /// access it. Other processes are not affected.
    ///
    /// # Errors
    /// Returns `InvalidValue` if the address is not one that was opened.
    pub fn close_shared(&self, address: u64) -> CudaResult<()> {
        let mut state = self.state();
        let found = state.imports.get_mut(&address).filter(|import| import.pool.is_none());
        let import = found.ok_or_else(|| {
            let message = format!("cuIpcCloseMemHandle: {address:#x} was not opened with cuIpcOpenMemHandle");
            Error::new(CudaStatus::InvalidValue, message)
        })?;
        import.references -= 1;
        if import.references > 0 {
            return Ok(());
        }
        state.forget_import(address);
        drop(state);
        self.free(address)
    }
}

impl State {
    /// Rejects a free of memory that has to be closed.
    ///
    /// # Errors
    /// Returns `InvalidValue` with the function to call.
    pub(super) fn check_not_open(&self, address: u64) -> CudaResult<()> {
        match self.imports.get(&address) {
            Some(Import { pool: None, .. }) => {
                let message =
                    format!("{address:#x} is memory of another process: close it with cuIpcCloseMemHandle");
                Err(Error::new(CudaStatus::InvalidValue, message))
            }
            _ => Ok(()),
        }
    }

    /// Returns the memory of another process that is open in a pool.
    pub(super) fn imports_of_pool(&self, pool: PoolHandle) -> Vec<Range<u64>> {
        let of_pool = self.imports.iter().filter(|(_, import)| import.pool == Some(pool));
        of_pool.map(|(&start, import)| start..start + import.size).collect()
    }

    /// Returns the pool that memory of another process comes from.
    pub(super) fn pool_of_import(&self, address: u64) -> Option<PoolHandle> {
        self.imports.get(&address)?.pool
    }

    /// Forgets memory of another process that has been freed.
    pub(super) fn forget_import(&mut self, address: u64) {
        if self.imports.remove(&address).is_some() {
            self.unshare_mappings(&(address..address + 1));
        }
    }
}
