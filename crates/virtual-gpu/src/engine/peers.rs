//! Which GPUs' kernels can access which other GPUs' memory.

use std::collections::BTreeSet;
use std::ops::Range;

use super::context::ContextHandle;
use super::pool::PoolHandle;
use super::virtual_memory::MemoryAccess;
use super::{Engine, State};
use crate::time::preset::LinkKind;
use virtual_gpu_core::memory::Allocation;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

/// The other GPUs' memory that a kernel can access.
#[derive(Default)]
pub(super) struct Reach {
    /// The GPUs, in ascending order.
    pub(super) gpus: Vec<usize>,
    /// Those whose memory the kernel's context can access, apart from memory in pools.
    enabled: BTreeSet<usize>,
    /// The allocations from pools that the kernel's GPU can access, by address.
    pooled: BTreeSet<u64>,
    /// The mappings that the kernel's GPU can access.
    mapped: Vec<Range<u64>>,
}

/// A mapping that other GPUs than its own can access.
pub(super) struct SharedMapping {
    size: u64,
    owner: usize,
    shared_with: BTreeSet<usize>,
}

impl Reach {
    /// Returns whether the kernel can access an allocation in the memory of another GPU.
    pub(super) fn includes(&self, gpu: usize, allocation: &Allocation) -> bool {
        let (start, end) = (allocation.base(), allocation.base() + allocation.size());
        match allocation.is_pooled() {
            // Neighboring mappings are one allocation.
            true => {
                self.pooled.contains(&start)
                    || self.mapped.iter().any(|range| range.start < end && start < range.end)
            }
            false => self.enabled.contains(&gpu),
        }
    }
}

impl Engine {
    /// `cuDeviceCanAccessPeer`: whether kernels on one GPU can access the memory of another one. They can if NVLink connects
    /// the GPUs of a node; whether GPUs on a PCI bus can depends on the machine.
    pub fn can_access_peer(&self, from: usize, to: usize) -> bool {
        let preset = &self.config().preset;
        let node = |gpu: usize| self.physical(gpu) / preset.gpus_per_node.max(1);
        from != to && node(from) == node(to) && preset.links.kind == LinkKind::NvLink
    }

    /// `cuCtxEnablePeerAccess`: lets kernels in the current context access memory that `cuMemAlloc` allocates in `peer`.
    ///
    /// # Errors
    /// Returns `PeerAccessUnsupported`, `PeerAccessAlreadyEnabled`, or an error about a context.
    pub fn enable_peer_access(&self, peer: ContextHandle) -> CudaResult<()> {
        let mut state = self.state();
        let [current, own, other] = state.check_peer(peer)?;
        let (own, other) = (own as usize, other as usize);
        if !self.can_access_peer(own, other) {
            let message =
                format!("GPU {own} can't access the memory of GPU {other}: cuDeviceCanAccessPeer returns 0");
            return Err(Error::new(CudaStatus::PeerAccessUnsupported, message));
        }
        match state.peer_access.insert((ContextHandle(current), peer)) {
            true => Ok(()),
            false => {
                let message = format!("GPU {own} can already access the memory of GPU {other}");
                Err(Error::new(CudaStatus::PeerAccessAlreadyEnabled, message))
            }
        }
    }

    /// `cuCtxDisablePeerAccess`.
    ///
    /// # Errors
    /// Returns `PeerAccessNotEnabled`, or an error about a context.
    pub fn disable_peer_access(&self, peer: ContextHandle) -> CudaResult<()> {
        let mut state = self.state();
        let [current, own, other] = state.check_peer(peer)?;
        match state.peer_access.remove(&(ContextHandle(current), peer)) {
            true => Ok(()),
            false => {
                let message =
                    format!("GPU {own} has no access to the memory of GPU {other} that could be disabled");
                Err(Error::new(CudaStatus::PeerAccessNotEnabled, message))
            }
        }
    }

    /// `cuMemPoolSetAccess` for one GPU other than the pool's own.
    ///
    /// # Errors
    /// Returns `InvalidDevice` if the GPUs can't access each other's memory.
    pub fn set_pool_access(&self, pool: PoolHandle, gpu: usize, can_access: bool) -> CudaResult<()> {
        let owner = self.device_of_pool(pool)?;
        if can_access && !self.can_access_peer(gpu, owner) {
            let message = format!("cuMemPoolSetAccess: GPU {gpu} can't access the memory of GPU {owner}");
            return Err(Error::new(CudaStatus::InvalidDevice, message));
        }
        let access = if can_access { MemoryAccess::ReadWrite } else { MemoryAccess::None };
        let mut state = self.state();
        for range in state.imports_of_pool(pool) {
            state.share_mapping(range, owner, gpu, access);
        }
        state.pools.set_access(pool, gpu, can_access)
    }

    /// `cuMemPoolGetAccess`: returns whether a GPU can access a pool's memory.
    pub fn pool_access(&self, pool: PoolHandle, gpu: usize) -> CudaResult<bool> {
        let owner = self.device_of_pool(pool)?;
        Ok(gpu == owner || self.state().pools.can_access(pool, gpu))
    }
}

impl State {
    /// Returns the current context, its GPU, and the GPU of another context.
    fn check_peer(&mut self, peer: ContextHandle) -> CudaResult<[u64; 3]> {
        let current = self.current_context()?;
        let own = self.context(current)?.device as u64;
        let other = self.context(peer)?.device as u64;
        match current == peer || own == other {
            true if current == peer => {
                Err(Error::new(CudaStatus::InvalidContext, "the peer is the current context itself"))
            }
            true => {
                let message = format!("both contexts are on GPU {own}");
                Err(Error::new(CudaStatus::InvalidDevice, message))
            }
            false => Ok([current.0, own, other]),
        }
    }

    /// Returns the other GPUs' memory that kernels of a context can access.
    pub(super) fn reach_of(&self, context: ContextHandle) -> Reach {
        let of_peer = |&(from, to): &(ContextHandle, ContextHandle)| {
            (from == context).then(|| self.contexts.get(&to).map(|peer| peer.device)).flatten()
        };
        let enabled: BTreeSet<usize> = self.peer_access.iter().filter_map(of_peer).collect();
        let own = self.contexts.get(&context).map(|own| own.device);
        let mut gpus = enabled.clone();
        let mut pooled = BTreeSet::new();
        for (owner, address) in own.iter().flat_map(|&own| self.pools.accessible_to(own)) {
            gpus.insert(owner);
            pooled.insert(address);
        }
        let mut mapped = Vec::new();
        for (&start, mapping) in &self.shared_mappings {
            if own.is_some_and(|own| mapping.shared_with.contains(&own)) {
                gpus.insert(mapping.owner);
                mapped.push(start..start + mapping.size);
            }
        }
        Reach { gpus: gpus.into_iter().collect(), enabled, pooled, mapped }
    }

    /// Lets another GPU than its own access a mapping, or forbids it.
    pub(super) fn share_mapping(
        &mut self,
        range: Range<u64>,
        owner: usize,
        gpu: usize,
        access: MemoryAccess,
    ) {
        let size = range.end - range.start;
        let new = || SharedMapping { size, owner, shared_with: BTreeSet::new() };
        let shared_with = &mut self.shared_mappings.entry(range.start).or_insert_with(new).shared_with;
        match access {
            MemoryAccess::ReadWrite => shared_with.insert(gpu),
            MemoryAccess::None => shared_with.remove(&gpu),
        };
        self.shared_mappings.retain(|_, mapping| !mapping.shared_with.is_empty());
    }

    /// Forgets mappings that are about to be removed.
    pub(super) fn unshare_mappings(&mut self, range: &Range<u64>) {
        self.shared_mappings.retain(|start, _| !range.contains(start));
    }

    /// Returns whether another GPU than its own can access the mapping that contains an address.
    pub(super) fn shares_mapping(&self, address: u64, gpu: usize) -> bool {
        self.shared_mappings.range(..=address).next_back().is_some_and(|(start, mapping)| {
            address - start < mapping.size && mapping.shared_with.contains(&gpu)
        })
    }

    /// Returns whether kernels of a context access memory of other GPUs or processes, or whether kernels of other GPUs
    /// or processes access their memory. They may wait for a write there.
    pub(super) fn may_wait_for_others(&self, context: ContextHandle) -> bool {
        self.shares_with_processes || self.shares_memory(context)
    }

    /// Returns whether kernels of a context access other GPUs' memory, or the other way around.
    pub(super) fn shares_memory(&self, context: ContextHandle) -> bool {
        if self.peer_access.is_empty() && self.shared_mappings.is_empty() && !self.pools.are_shared() {
            return false;
        }
        let own = self.contexts.get(&context).map(|own| own.device);
        self.peer_access.iter().any(|&(from, to)| from == context || to == context)
            || own.is_some_and(|own| {
                let shares =
                    |mapping: &SharedMapping| mapping.owner == own || mapping.shared_with.contains(&own);
                self.pools.shares(own) || self.shared_mappings.values().any(shares)
            })
    }
}
