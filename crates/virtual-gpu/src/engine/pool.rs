//! Memory pools: which allocation came from which pool, and how much each pool holds.
//!
//! A pool takes memory from its GPU in granules, and places allocations in it (`layout.rs`). What it holds counts as
//! taken in `cuMemGetInfo`.

mod layout;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::transfer::out_of_memory;
use super::{Engine, State};
use crate::report::size;
pub(super) use layout::GRANULE;
use layout::{Layout, Place};
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::memory::{Capacity, OutOfMemory, SharedRecord};
use virtual_gpu_core::number_map::NumberMap;
use virtual_gpu_core::sorted::{SortedMap, SortedSet};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

/// A `CUmemoryPool`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolHandle(pub u64);

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
            _ => return Err(invalid(format!("{number} is not an attribute of a memory pool"))),
        })
    }
}

/// Why a pool can't grow.
enum Refused {
    /// The pool would exceed its maximum size.
    Full,
    /// The GPU has no memory left.
    Gpu(OutOfMemory),
}

struct Pool {
    device: usize,
    /// The capacity of its GPU.
    capacity: Arc<Capacity>,
    /// The maximum number of bytes that it may hold.
    most: u64,
    reuse: [bool; 3],
    release_threshold: u64,
    layout: Layout,
    /// The maximum number of bytes held since the last reset.
    reserved_high: u64,
    /// The maximum number of bytes in use since the last reset.
    used_high: u64,
    /// The other GPUs that can access its memory.
    shared_with: BTreeSet<usize>,
    /// The file that names the pool for other processes, if its memory can be shared.
    file: Option<Arc<dyn SharedRecord>>,
    /// Whether it is the pool of another process, from which nothing can be allocated here.
    is_imported: bool,
    /// Whether the pool was destroyed while some of its memory was in use.
    destroyed: bool,
}

impl Pool {
    fn new(device: usize, capacity: Arc<Capacity>, most: u64) -> Self {
        Self {
            device,
            capacity,
            most,
            reuse: [true; 3],
            release_threshold: 0,
            layout: Layout::default(),
            reserved_high: 0,
            used_high: 0,
            shared_with: BTreeSet::new(),
            file: None,
            is_imported: false,
            destroyed: false,
        }
    }

    /// Places an allocation. If the pool has to grow, it takes memory from its GPU.
    ///
    /// CUDA does not document that a pool that can't grow releases the memory of other pools, so it does not.
    fn place(&mut self, bytes: u64, stream: StreamHandle) -> CudaResult<Place> {
        let Self { capacity, most, layout, .. } = self;
        let left = *most - layout.reserved();
        let placed = layout.place(bytes, stream, |missing| match missing <= left {
            true => capacity.take(missing).map_err(Refused::Gpu),
            false => Err(Refused::Full),
        });
        self.reserved_high = self.reserved_high.max(layout.reserved());
        self.used_high = self.used_high.max(layout.used());
        placed.map_err(|refused| self.explain(&refused, bytes, stream))
    }

    /// Returns the error of an allocation for which the pool can't grow.
    fn explain(&self, refused: &Refused, bytes: u64, stream: StreamHandle) -> Error<CudaStatus> {
        let mut error = match refused {
            Refused::Full => {
                let (device, most) = (self.device, size(self.most));
                let message = format!(
                    "the memory pool of GPU {device} may hold {most}, but {} were requested",
                    size(bytes)
                );
                Error::new(CudaStatus::OutOfMemory, message)
            }
            &Refused::Gpu(OutOfMemory { free, .. }) => {
                out_of_memory(self.device, OutOfMemory { asked: bytes, free })
            }
        };
        if let Some(longest) = self.layout.holes(stream).max() {
            let (idle, longest) = (size(self.layout.holes(stream).sum()), size(longest));
            error.message =
                format!("{}; the pool has {idle} in holes of at most {longest}", error.message).into();
        }
        error
    }

    /// Releases free granules while at least `keep` bytes remain.
    fn trim(&mut self, keep: u64) {
        self.capacity.give_back(self.layout.trim(keep));
    }
}

/// All pools, and what was allocated from them.
pub(super) struct Pools {
    /// The capacity of each GPU.
    capacities: Vec<Arc<Capacity>>,
    all: SortedMap<PoolHandle, Pool>,
    /// The pools that other GPUs can access.
    shared: SortedSet<PoolHandle>,
    /// The default pool and the current pool of each GPU.
    of_device: SortedMap<usize, (PoolHandle, PoolHandle)>,
    /// The pool and the place of each allocation, by its address.
    allocations: NumberMap<(PoolHandle, Place)>,
}

impl Pools {
    /// Returns a GPU's capacity.
    pub(super) fn capacity(&self, device: usize) -> &Capacity {
        &self.capacities[device]
    }

    /// Returns the pool that the allocation at `address` comes from.
    pub(super) fn pool_of(&self, address: u64) -> Option<PoolHandle> {
        self.allocations.get(address).map(|(pool, _)| *pool)
    }

    pub(super) fn new(capacities: Vec<Arc<Capacity>>) -> Self {
        Self {
            capacities,
            all: SortedMap::default(),
            shared: SortedSet::default(),
            of_device: SortedMap::default(),
            allocations: NumberMap::default(),
        }
    }

    /// Lets another GPU access a pool's memory, or forbids it.
    pub(super) fn set_access(&mut self, pool: PoolHandle, gpu: usize, can_access: bool) -> CudaResult<()> {
        let shared_with = &mut self.get(pool)?.shared_with;
        match can_access {
            true => shared_with.insert(gpu),
            false => shared_with.remove(&gpu),
        };
        if shared_with.is_empty() {
            self.shared.remove(&pool);
        } else {
            self.shared.insert(pool);
        }
        Ok(())
    }

    /// Returns whether another GPU can access a pool's memory.
    pub(super) fn can_access(&self, pool: PoolHandle, gpu: usize) -> bool {
        self.all.get(&pool).is_some_and(|pool| pool.shared_with.contains(&gpu))
    }

    /// Returns the allocations of other GPUs' pools that a GPU can access, each with the GPU that has it.
    pub(super) fn accessible_to(&self, gpu: usize) -> Vec<(usize, u64)> {
        if !self.are_shared() {
            return Vec::new();
        }
        let accessible = self.allocations.range(0..u64::MAX).filter_map(|(address, (pool, _))| {
            let pool = self.all.get(pool).filter(|pool| pool.shared_with.contains(&gpu))?;
            Some((pool.device, address))
        });
        accessible.collect()
    }

    /// Returns whether any GPU can access another GPU's pool.
    pub(super) fn are_shared(&self) -> bool {
        !self.shared.is_empty()
    }

    /// Returns whether a GPU can access another GPU's pool, or the other way around.
    pub(super) fn shares(&self, gpu: usize) -> bool {
        let mut shared = self.shared.iter().filter_map(|pool| self.all.get(pool));
        shared.any(|pool| pool.device == gpu || pool.shared_with.contains(&gpu))
    }

    fn insert(&mut self, pool: PoolHandle, device: usize, most: u64) {
        self.all.insert(pool, Pool::new(device, self.capacities[device].clone(), most));
    }

    fn get(&mut self, pool: PoolHandle) -> CudaResult<&mut Pool> {
        let found = self.all.get_mut(&pool).filter(|pool| !pool.destroyed);
        found.ok_or_else(|| invalid(format!("{:#x} is not a memory pool, or is no longer one", pool.0)))
    }

    /// Removes a destroyed pool that nothing uses anymore.
    fn remove_unused(&mut self, pool: PoolHandle) {
        if let Some(entry) = self.all.get_mut(&pool)
            && entry.destroyed
            && entry.layout.used() == 0
        {
            entry.trim(0);
            self.all.remove(&pool);
            self.shared.remove(&pool);
        }
    }

    fn free(&mut self, pool: PoolHandle, place: &Place) {
        if let Some(entry) = self.all.get_mut(&pool) {
            entry.layout.free(place);
        }
        self.remove_unused(pool);
    }

    /// Lets later allocations in `stream` reuse an allocation that an operation of this stream frees.
    pub(super) fn freed_in(&mut self, address: u64, stream: StreamHandle) {
        if let Some((pool, place)) = self.allocations.get(address)
            && let Some(entry) = self.all.get_mut(pool)
        {
            entry.layout.free_in(place, stream);
        }
    }

    /// Returns the memory of a freed allocation to its pool.
    pub(super) fn freed(&mut self, address: u64) {
        if let Some((pool, place)) = self.allocations.remove(address) {
            self.free(pool, &place);
        }
    }
}

impl State {
    /// Returns a GPU's default pool and its current pool.
    fn pools_of(&mut self, device: usize) -> (PoolHandle, PoolHandle) {
        if let Some(&pools) = self.pools.of_device.get(&device) {
            return pools;
        }
        let default = PoolHandle(self.new_handle());
        self.pools.insert(default, device, u64::MAX);
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
        let entry = state.pools.get(pool)?;
        let (of_pool, is_imported) = (entry.device, entry.is_imported);
        if is_imported {
            return Err(invalid("a memory pool of another process can't be a current pool".to_owned()));
        }
        if of_pool != device {
            let message = format!("a memory pool of GPU {of_pool} can't be the current one of GPU {device}");
            return Err(invalid(message));
        }
        let default = state.pools_of(device).0;
        state.pools.of_device.insert(device, (default, pool));
        Ok(())
    }

    /// `cuMemPoolCreate`, on a GPU. `most` is the maximum size of the pool, rounded up to whole granules; if it is 0, only
    /// the GPU's memory limits the pool.
    pub fn create_pool(&self, device: i32, most: u64) -> CudaResult<PoolHandle> {
        let device = self.check_device(device)?;
        let granules = most.checked_next_multiple_of(GRANULE);
        let most = granules.filter(|_| most > 0).unwrap_or(u64::MAX);
        let mut state = self.state();
        let pool = PoolHandle(state.new_handle());
        state.pools.insert(pool, device, most);
        Ok(pool)
    }

    /// Lets the memory of a new pool be shared with other processes. `file` names the pool.
    pub fn make_pool_shareable(&self, pool: PoolHandle, file: Arc<dyn SharedRecord>) -> CudaResult<()> {
        self.state().pools.get(pool)?.file = Some(file);
        Ok(())
    }

    /// Creates a pool that stands for one of another process. `physical` is the node-wide number of its GPU.
    ///
    /// # Errors
    /// Returns `InvalidValue` if this process does not see the GPU.
    pub fn import_pool(&self, file: Arc<dyn SharedRecord>, physical: usize) -> CudaResult<PoolHandle> {
        let device = self.visible("cuMemPoolImportFromShareableHandle", physical)?;
        self.share_with_processes()?;
        let mut state = self.state();
        let pool = PoolHandle(state.new_handle());
        state.pools.insert(pool, device, u64::MAX);
        let entry = state.pools.get(pool)?;
        (entry.file, entry.is_imported) = (Some(file), true);
        Ok(pool)
    }

    /// Returns the file that names a pool.
    ///
    /// # Errors
    /// Returns `InvalidValue` if the pool's memory can't be shared.
    pub fn file_of_pool(&self, pool: PoolHandle) -> CudaResult<Arc<dyn SharedRecord>> {
        self.share_with_processes()?;
        let mut state = self.state();
        let file = state.pools.get(pool)?.file.clone();
        file.ok_or_else(|| {
            let message = "the memory pool was not created with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR";
            invalid(message.to_owned())
        })
    }

    /// Returns the other GPUs that can access a pool's memory.
    pub(super) fn others_of_pool(&self, pool: PoolHandle) -> CudaResult<BTreeSet<usize>> {
        Ok(self.state().pools.get(pool)?.shared_with.clone())
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
        state.pools.remove_unused(pool);
        Ok(())
    }

    /// `cuMemPoolTrimTo`: releases what no allocation uses, but keeps at least `keep` bytes.
    pub fn trim_pool(&self, pool: PoolHandle, keep: u64) -> CudaResult<()> {
        self.state().pools.get(pool)?.trim(keep);
        Ok(())
    }

    /// Releases the unused granules that pools hold above their thresholds, as each synchronization does.
    pub(super) fn release_unused(&self) {
        for pool in self.state().pools.all.values_mut() {
            pool.trim(pool.release_threshold);
        }
    }

    /// Returns the GPU whose memory a pool has.
    ///
    /// # Errors
    /// Returns `InvalidValue` if there is no such pool.
    pub fn device_of_pool(&self, pool: PoolHandle) -> CudaResult<usize> {
        Ok(self.state().pools.get(pool)?.device)
    }

    /// `cuMemPoolGetAttribute`.
    pub fn pool_figure(&self, pool: PoolHandle, figure: PoolFigure) -> CudaResult<u64> {
        let mut state = self.state();
        let pool = state.pools.get(pool)?;
        Ok(match figure {
            PoolFigure::Reuse(way) => u64::from(pool.reuse[way]),
            PoolFigure::ReleaseThreshold => pool.release_threshold,
            PoolFigure::Reserved => pool.layout.reserved(),
            PoolFigure::ReservedHigh => pool.reserved_high,
            PoolFigure::Used => pool.layout.used(),
            PoolFigure::UsedHigh => pool.used_high,
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
            PoolFigure::ReservedHigh => pool.reserved_high = pool.layout.reserved(),
            PoolFigure::UsedHigh => pool.used_high = pool.layout.used(),
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
    /// until the operation that frees it has run. An allocation of 0 bytes returns 0, the null address: CUDA's manual
    /// does not list it as an error, and libraries for deep learning depend on it.
    ///
    /// On a captured stream, the graph owns the memory instead of the pool.
    pub fn allocate_from(&self, pool: PoolHandle, stream: StreamHandle, bytes: u64) -> CudaResult<u64> {
        self.usable_stream_device(stream)?;
        let (device, place) = {
            let mut state = self.state();
            let stream = state.resolve_stream(stream)?;
            if state.is_capturing(stream) {
                let device = state.pools.get(pool)?.device;
                drop(state);
                return self.allocate_captured(stream, device, bytes);
            }
            let entry = state.pools.get(pool)?;
            if entry.is_imported {
                let message =
                    "this is a memory pool of another process: only that process can allocate from it";
                return Err(invalid(message.to_owned()));
            }
            if bytes == 0 {
                return Ok(0);
            }
            (entry.device, entry.place(bytes, stream)?)
        };
        let made = self.memory(device).allocate_in_pool(bytes, CallSite::here());
        let mut state = self.state();
        match made {
            Ok(address) => {
                state.pools.allocations.insert(address, (pool, place));
                Ok(address)
            }
            Err(refused) => {
                state.pools.free(pool, &place);
                Err(out_of_memory(device, refused))
            }
        }
    }
}
