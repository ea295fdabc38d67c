//! Reads a GPU's memory pool statistics. cudarc allocates from the pool, but has no safe call to query it.

use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::sys::{CUmemPool_attribute as Attribute, CUmemoryPool};
use cudarc::driver::{CudaContext, result};

/// The pool that a GPU's memory is allocated from.
#[derive(Debug)]
pub struct MemoryPool {
    pool: CUmemoryPool,
    /// The context of the pool's GPU. The pool belongs to the GPU, and lives as long as the GPU does.
    context: Arc<CudaContext>,
}

impl MemoryPool {
    /// Returns the current pool of a GPU, with the driver's number for the GPU.
    ///
    /// # Errors
    /// Fails if there is no such GPU, or if it has no memory pools.
    pub fn of_gpu(ordinal: usize) -> anyhow::Result<Self> {
        let context = CudaContext::new(ordinal).with_context(|| format!("GPU {ordinal}"))?;
        // SAFETY: the device comes from a context.
        let pool = unsafe { result::device::get_mem_pool(context.cu_device()) }
            .with_context(|| format!("GPU {ordinal} has no memory pools"))?;
        Ok(Self { pool, context })
    }

    /// Returns one of the pool's statistics, in bytes. `USED_MEM` counts memory that has been allocated but not yet
    /// freed, and `RESERVED_MEM` counts memory that the pool holds on the GPU. Each statistic has a current value
    /// (`CURRENT`) and a maximum since its last reset (`HIGH`).
    ///
    /// # Errors
    /// Fails if a driver call fails.
    pub fn figure(&self, attribute: Attribute) -> anyhow::Result<u64> {
        self.context.bind_to_thread()?;
        let mut value = 0_u64;
        // SAFETY: the pool is alive, and no attribute is longer than 8 bytes.
        unsafe { result::mem_pool::get_attribute(self.pool, attribute, (&raw mut value).cast()) }?;
        Ok(value)
    }

    /// Resets a high-water mark (`…_HIGH`) to the statistic's current value.
    ///
    /// # Errors
    /// Fails if the attribute is not a high-water mark, or if a driver call fails.
    pub fn reset(&self, attribute: Attribute) -> anyhow::Result<()> {
        self.context.bind_to_thread()?;
        // The driver accepts only 0 here, and then sets the mark to the current value.
        let mut zero = 0_u64;
        // SAFETY: the pool is alive, and a high-water mark has 8 bytes.
        Ok(unsafe { result::mem_pool::set_attribute(self.pool, attribute, (&raw mut zero).cast()) }?)
    }
}
