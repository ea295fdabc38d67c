//! What a GPU's memory pool says about itself. cudarc allocates from it, and has no safe call that asks.

use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::sys::{CUmemPool_attribute as Attribute, CUmemoryPool};
use cudarc::driver::{CudaContext, result};

/// The pool that a GPU's allocations come from.
#[derive(Debug)]
pub struct MemoryPool {
    pool: CUmemoryPool,
    /// The pool is its GPU's, which lives as long.
    context: Arc<CudaContext>,
}

impl MemoryPool {
    /// The pool that is in use on this GPU, counted as the driver does.
    ///
    /// # Errors
    /// There is no such GPU, or it has no memory pools.
    pub fn of_gpu(ordinal: usize) -> anyhow::Result<Self> {
        let context = CudaContext::new(ordinal).with_context(|| format!("GPU {ordinal}"))?;
        // SAFETY: the device is that of a context.
        let pool = unsafe { result::device::get_mem_pool(context.cu_device()) }
            .with_context(|| format!("GPU {ordinal} has no memory pool"))?;
        Ok(Self { pool, context })
    }

    /// One of its figures, in bytes: `USED_MEM` is what was allocated and not freed yet, `RESERVED_MEM` what the pool has taken
    /// of the GPU for that; each is there as of now (`CURRENT`), and as the most since it was last reset (`HIGH`).
    ///
    /// # Errors
    /// What the driver answers.
    pub fn figure(&self, attribute: Attribute) -> anyhow::Result<u64> {
        self.context.bind_to_thread()?;
        let mut value = 0_u64;
        // SAFETY: the pool is alive, and no attribute is longer than 8 bytes.
        unsafe { result::mem_pool::get_attribute(self.pool, attribute, (&raw mut value).cast()) }?;
        Ok(value)
    }

    /// Sets a high-water mark (`…_HIGH`) to what its figure is now.
    ///
    /// # Errors
    /// The attribute is no high-water mark, or what the driver answers.
    pub fn reset(&self, attribute: Attribute) -> anyhow::Result<()> {
        self.context.bind_to_thread()?;
        // A mark can be set to 0 alone, which means to what is now.
        let mut zero = 0_u64;
        // SAFETY: as above.
        Ok(unsafe { result::mem_pool::set_attribute(self.pool, attribute, (&raw mut zero).cast()) }?)
    }
}
