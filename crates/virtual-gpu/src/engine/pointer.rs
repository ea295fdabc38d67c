//! What is known about an address: `cuPointerGetAttribute` and `cuMemGetAddressRange`.

use super::context::ContextHandle;
use super::pool::PoolHandle;
use super::{Engine, State};
use virtual_gpu_core::status::CudaResult;

/// The kind of memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// A GPU's own memory.
    Gpu,
    /// Managed memory.
    Managed,
    /// Pinned host memory.
    Pinned,
}

/// The allocation that contains an address.
#[derive(Clone, Copy, Debug)]
pub struct Pointer {
    /// The address of the allocation's first byte.
    pub base: u64,
    /// The number of bytes in the allocation.
    pub size: u64,
    /// A number that no other allocation in the process has.
    pub id: u64,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The context that it belongs to; `None` for memory from a pool.
    pub context: Option<ContextHandle>,
    /// The GPU that it belongs to.
    pub device: usize,
    /// The memory pool that it comes from.
    pub pool: Option<PoolHandle>,
}

impl Engine {
    /// Returns the live allocation that contains `address`.
    ///
    /// # Errors
    /// Returns `InvalidContext` if no context is current.
    pub fn pointer(&self, address: u64) -> CudaResult<Option<Pointer>> {
        self.current_device()?;
        let Some(memory) = self.device_of(address) else { return Ok(None) };
        let (base, size, id) = match self.memory(memory).range(address, 1) {
            Ok((allocation, _)) => (allocation.base(), allocation.size(), allocation.id()),
            Err(_) => return Ok(None),
        };
        let (base, size) = self.mapping_at(address).unwrap_or((base, size));
        let kind = match (id.is_pinned(), id.is_managed()) {
            (true, _) => MemoryKind::Pinned,
            (false, true) => MemoryKind::Managed,
            (false, false) => MemoryKind::Gpu,
        };
        let state = self.state();
        let context = state.owner_of(base).or_else(|| state.pinned_in(base));
        let of_context = context.and_then(|context| state.device_of_context(context).ok());
        let device = if kind == MemoryKind::Gpu { memory } else { of_context.unwrap_or(0) };
        let pool = state.pools.pool_of(base).or_else(|| state.pool_of_import(base));
        Ok(Some(Pointer { base, size, id: id.0, kind, context, device, pool }))
    }
}

impl State {
    /// Returns the context in which `cuMemAlloc` allocated the memory that starts at `address`.
    pub(super) fn owner_of(&self, address: u64) -> Option<ContextHandle> {
        let mut contexts = self.contexts.entries().iter();
        contexts.find(|(_, context)| context.owns(address)).map(|&(handle, _)| handle)
    }
}
