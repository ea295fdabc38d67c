//! Memory pools: which allocation came from which pool, and how much each pool holds.
//!
//! A pool only does bookkeeping. An allocation takes its memory when it is made, regardless of what a pool holds in
//! reserve, and `cuMemGetInfo` counts a pool's unused memory as free.

use std::collections::HashMap;

use super::{Engine, State};
use crate::report::size;
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

/// A `CUmemoryPool`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolHandle(pub u64);

/// A pool takes and returns memory in pieces of this many bytes, the smallest size that GPUs map.
const PIECE: u64 = 2 << 20;

/// A figure of a pool: a number of bytes, or one of its switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolFigure {
    /// `CU_MEMPOOL_ATTR_REUSE_…`: whether freed memory may be reused, in one of three ways, by number.
    Reuse(usize),
    /// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`
    ReleaseThreshold,
    /// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`
    Reserved,
    /// `CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH`
    ReservedHigh,
    /// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`
    Used,
    /// `CU_MEMPOOL_ATTR_USED_MEM_HIGH`
    UsedHigh,
}

impl PoolFigure {
    /// Returns the figure with this number in `cuda.h`.
    ///
    /// # Errors
    /// Returns `InvalidValue`, with a message that names the number.
    pub fn from_number(number: u32) -> CudaResult<Self> {
        Ok(match number {
            1..=3 => Self::Reuse(number as usize - 1),
            4 => Self::ReleaseThreshold,
            5 => Self::Reserved,
            6 => Self::ReservedHigh,
            7 => Self::Used,
            8 => Self::UsedHigh,
            _ => return Err(invalid(format!("{number} is no attribute of a memory pool"))),
        })
    }
}

/// An amount, and its highest value so far.
#[derive(Clone, Copy, Debug, Default)]
struct Gauge {
    now: u64,
    high: u64,
}

impl Gauge {
    fn set(&mut self, amount: u64) {
        self.now = amount;
        self.high = self.high.max(amount);
    }
}

struct Pool {
    device: usize,
    /// The maximum number of bytes in use at the same time.
    most: u64,
    reuse: [bool; 3],
    release_threshold: u64,
    reserved: Gauge,
    used: Gauge,
    /// Whether the pool was destroyed while some of its memory was in use.
    destroyed: bool,
}

impl Pool {
    fn new(device: usize, most: u64) -> Self {
        let (reserved, used) = (Gauge::default(), Gauge::default());
        Self { device, most, reuse: [true; 3], release_threshold: 0, reserved, used, destroyed: false }
    }

    fn check_room(&self, bytes: u64) -> CudaResult<()> {
        if self.used.now.saturating_add(bytes) <= self.most {
            return Ok(());
        }
        let left = size(self.most.saturating_sub(self.used.now));
        let message =
            format!("the memory pool of GPU {} has {left} left, {} were asked for", self.device, size(bytes));
        Err(Error::new(CudaStatus::OutOfMemory, message))
    }

    /// Counts the bytes of a new allocation.
    fn take(&mut self, bytes: u64) {
        let used = self.used.now + bytes;
        self.used.set(used);
        self.reserved.set(self.reserved.now.max(used.next_multiple_of(PIECE)));
    }

    /// Releases memory held in reserve until no more than `keep` bytes are held, in addition to those in use.
    fn trim(&mut self, keep: u64) {
        let needed = self.used.now.next_multiple_of(PIECE);
        self.reserved.now = needed.max(self.reserved.now.min(keep));
    }
}

/// All pools, and what was allocated from them.
#[derive(Default)]
pub(super) struct Pools {
    all: HashMap<PoolHandle, Pool>,
    /// The default pool and the current pool of each GPU.
    of_device: HashMap<usize, (PoolHandle, PoolHandle)>,
    /// The pool and the size of each allocation, by its address.
    allocations: HashMap<u64, (PoolHandle, u64)>,
}

impl Pools {
    fn get(&mut self, pool: PoolHandle) -> CudaResult<&mut Pool> {
        let found = self.all.get_mut(&pool).filter(|pool| !pool.destroyed);
        found.ok_or_else(|| invalid(format!("{:#x} is not a memory pool, or no longer one", pool.0)))
    }

    fn return_bytes(&mut self, pool: PoolHandle, bytes: u64) {
        let Some(entry) = self.all.get_mut(&pool) else { return };
        entry.used.now = entry.used.now.saturating_sub(bytes);
        if entry.destroyed && entry.used.now == 0 {
            self.all.remove(&pool);
        }
    }

    /// Returns the bytes of a freed allocation to its pool.
    pub(super) fn freed(&mut self, address: u64) {
        if let Some((pool, bytes)) = self.allocations.remove(&address) {
            self.return_bytes(pool, bytes);
        }
    }
}

fn invalid(message: String) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidValue, message)
}

impl State {
    /// Returns a GPU's default pool and its current pool.
    fn pools_of(&mut self, device: usize) -> (PoolHandle, PoolHandle) {
        if let Some(&pools) = self.pools.of_device.get(&device) {
            return pools;
        }
        let default = PoolHandle(self.new_handle());
        self.pools.all.insert(default, Pool::new(device, u64::MAX));
        self.pools.of_device.insert(device, (default, default));
        (default, default)
    }
}

impl Engine {
    /// `cuDeviceGetDefaultMemPool`.
    pub fn default_pool(&self, device: i32) -> CudaResult<PoolHandle> {
        let device = self.check_device(device)?;
        Ok(self.state().pools_of(device).0)
    }

    /// `cuDeviceGetMemPool`: returns the pool that [`Engine::allocate_in`] takes from.
    pub fn current_pool(&self, device: i32) -> CudaResult<PoolHandle> {
        let device = self.check_device(device)?;
        Ok(self.state().pools_of(device).1)
    }

    /// `cuDeviceSetMemPool`.
    ///
    /// # Errors
    /// Returns `InvalidValue` if the pool is on another GPU.
    pub fn set_current_pool(&self, device: i32, pool: PoolHandle) -> CudaResult<()> {
        let device = self.check_device(device)?;
        let mut state = self.state();
        let of_pool = state.pools.get(pool)?.device;
        if of_pool != device {
            let message = format!("a memory pool of GPU {of_pool} can't be the current one of GPU {device}");
            return Err(invalid(message));
        }
        let default = state.pools_of(device).0;
        state.pools.of_device.insert(device, (default, pool));
        Ok(())
    }

    /// `cuMemPoolCreate`, on a GPU. `most` limits the bytes in use; if it is 0, only the GPU's memory limits them.
    pub fn create_pool(&self, device: i32, most: u64) -> CudaResult<PoolHandle> {
        let device = self.check_device(device)?;
        let most = if most == 0 { u64::MAX } else { most };
        let mut state = self.state();
        let pool = PoolHandle(state.new_handle());
        state.pools.all.insert(pool, Pool::new(device, most));
        Ok(pool)
    }

    /// `cuMemPoolDestroy`: memory in use stays in use until it is freed. If the pool was its GPU's current pool, the
    /// default pool becomes current again.
    ///
    /// # Errors
    /// Returns `InvalidValue` for a default pool.
    pub fn destroy_pool(&self, pool: PoolHandle) -> CudaResult<()> {
        let mut state = self.state();
        let device = state.pools.get(pool)?.device;
        let (default, current) = state.pools_of(device);
        if pool == default {
            return Err(invalid(format!("the default memory pool of GPU {device} can't be destroyed")));
        }
        if pool == current {
            state.pools.of_device.insert(device, (default, default));
        }
        state.pools.get(pool)?.destroyed = true;
        state.pools.return_bytes(pool, 0);
        Ok(())
    }

    /// `cuMemPoolTrimTo`.
    pub fn trim_pool(&self, pool: PoolHandle, keep: u64) -> CudaResult<()> {
        self.state().pools.get(pool)?.trim(keep);
        Ok(())
    }

    /// Releases the unused memory that pools hold above their thresholds, as each synchronization does.
    pub(super) fn release_unused(&self) {
        for pool in self.state().pools.all.values_mut() {
            pool.trim(pool.release_threshold);
        }
    }

    /// `cuMemPoolGetAttribute`.
    pub fn pool_figure(&self, pool: PoolHandle, figure: PoolFigure) -> CudaResult<u64> {
        let mut state = self.state();
        let pool = state.pools.get(pool)?;
        Ok(match figure {
            PoolFigure::Reuse(way) => u64::from(pool.reuse[way]),
            PoolFigure::ReleaseThreshold => pool.release_threshold,
            PoolFigure::Reserved => pool.reserved.now,
            PoolFigure::ReservedHigh => pool.reserved.high,
            PoolFigure::Used => pool.used.now,
            PoolFigure::UsedHigh => pool.used.high,
        })
    }

    /// `cuMemPoolSetAttribute`. Setting a high-water mark to 0 resets it to the current amount.
    ///
    /// # Errors
    /// Returns `InvalidValue` for attributes that can only be read, and for a mark that is not 0.
    pub fn set_pool_figure(&self, pool: PoolHandle, figure: PoolFigure, value: u64) -> CudaResult<()> {
        let mut state = self.state();
        let pool = state.pools.get(pool)?;
        match figure {
            PoolFigure::Reuse(way) => pool.reuse[way] = value != 0,
            PoolFigure::ReleaseThreshold => pool.release_threshold = value,
            PoolFigure::ReservedHigh | PoolFigure::UsedHigh if value != 0 => {
                let message = format!("a memory pool's high-water mark can only be set to 0, not to {value}");
                return Err(invalid(message));
            }
            PoolFigure::ReservedHigh => pool.reserved.high = pool.reserved.now,
            PoolFigure::UsedHigh => pool.used.high = pool.used.now,
            PoolFigure::Reserved | PoolFigure::Used => {
                return Err(invalid("a memory pool's current figures can only be read".to_owned()));
            }
        }
        Ok(())
    }

    /// `cuMemAllocAsync`: allocates as [`Self::allocate_from`] does, from the current pool of the stream's GPU.
    pub fn allocate_in(&self, stream: StreamHandle, bytes: u64) -> CudaResult<u64> {
        let device = self.usable_stream_device(stream)?;
        let pool = self.state().pools_of(device).1;
        self.allocate_from(pool, stream, bytes)
    }

    /// `cuMemAllocFromPoolAsync`: allocates `bytes` from a pool, on its GPU. None of the bytes count as written.
    ///
    /// Later work in this stream can use the address at once, as CUDA promises. The engine does not reuse an address
    /// until the operation that frees it has run.
    ///
    /// # Errors
    /// Returns `NotSupported` in a captured stream, because a graph would own the memory.
    pub fn allocate_from(&self, pool: PoolHandle, stream: StreamHandle, bytes: u64) -> CudaResult<u64> {
        self.usable_stream_device(stream)?;
        let device = {
            let mut state = self.state();
            let resolved = state.resolve_stream(stream)?;
            if state.is_capturing(resolved) {
                let message = "virtual GPU: cuMemAllocAsync in a stream that is captured (memory that a graph owns) is not \
                               supported: allocate before begin_capture";
                return Err(Error::new(CudaStatus::NotSupported, message));
            }
            state.pools.get(pool)?.check_room(bytes)?;
            state.pools.get(pool)?.device
        };
        let address = self.allocate_on(device, bytes, CallSite::here())?;
        let mut state = self.state();
        if let Ok(entry) = state.pools.get(pool) {
            entry.take(bytes);
            state.pools.allocations.insert(address, (pool, bytes));
        }
        Ok(address)
    }
}
