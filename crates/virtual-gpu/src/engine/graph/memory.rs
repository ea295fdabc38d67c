//! Memory that graphs own. An allocation node gives it a fixed address, and each launch allocates it.
//!
//! The rules come from the CUDA Programming Guide, "Graph Memory Nodes", and from the manual of
//! `cuGraphAddMemAllocNode`. Like any other operation, the allocation and the free access all bytes, so an access that
//! is ordered after neither of them is a race.

use std::sync::Arc;

use super::executable::Executable;
use super::{Graph, GraphHandle, GraphNodeHandle, NodeWork, Place};
use crate::engine::free::Freed;
use crate::engine::pool::GRANULE;
use crate::engine::transfer::out_of_memory;
use crate::engine::work::Work;
use crate::engine::{Engine, State};
use crate::report::size;
use virtual_gpu_core::handle::{OperationNumber, StreamHandle};
use virtual_gpu_core::memory::{Lives, OutOfMemory};
use virtual_gpu_core::sorted::SortedMap;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};
use virtual_gpu_core::sync::MutexGuard;

/// The memory of an allocation node.
#[derive(Clone)]
struct Owned {
    device: usize,
    bytes: u64,
    lives: Arc<Lives>,
    /// Whether a launch has allocated it, and nothing has freed it.
    is_allocated: bool,
    call_site: CallSite,
}

/// `CUgraphMem_attribute`: a number of bytes on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphMemoryFigure {
    /// What graphs have allocated.
    Used = 0,
    /// The maximum of [`Self::Used`] since the last reset.
    UsedHigh = 1,
    /// What graphs have taken from the GPU.
    Reserved = 2,
    /// The maximum of [`Self::Reserved`] since the last reset.
    ReservedHigh = 3,
}

impl GraphMemoryFigure {
    /// Returns the figure with this number in `cuda.h`.
    ///
    /// # Errors
    /// Returns `InvalidValue`, with a message that names the number.
    pub fn from_number(number: u32) -> CudaResult<Self> {
        Ok(match number {
            0 => Self::Used,
            1 => Self::UsedHigh,
            2 => Self::Reserved,
            3 => Self::ReservedHigh,
            _ => return Err(invalid(format!("{number} is not a CUgraphMem_attribute (0 to 3)"))),
        })
    }
}

/// The memory of all allocation nodes.
#[derive(Default)]
pub(in crate::engine) struct GraphMemory {
    by_address: SortedMap<u64, Owned>,
    /// Each GPU's figures, by [`GraphMemoryFigure`].
    figures: SortedMap<usize, [u64; 4]>,
}

/// What a launch does to graphs' memory.
pub(super) struct LaunchMemory {
    /// Memory that the last launch has left allocated, and that this launch frees first.
    pub(super) freed_first: Vec<u64>,
    /// The maximum number of bytes in use at a time, on each GPU.
    peaks: SortedMap<usize, u64>,
}

impl NodeWork {
    /// Returns the address of the memory that the node allocates.
    fn allocates(&self) -> Option<u64> {
        match self {
            Self::Work(Work::Allocate { at }) => Some(*at),
            _ => None,
        }
    }

    /// Returns the address of the memory that the node frees.
    fn frees(&self) -> Option<u64> {
        match self {
            Self::Work(Work::Free { at, .. }) => Some(*at),
            _ => None,
        }
    }

    pub(super) fn is_of_memory(&self) -> bool {
        self.allocates().or(self.frees()).is_some()
    }
}

impl Graph {
    fn frees(&self, at: u64) -> bool {
        self.nodes.iter().any(|node| node.work.frees() == Some(at))
    }

    fn allocates(&self, at: u64) -> bool {
        self.nodes.iter().any(|node| node.work.allocates() == Some(at))
    }

    /// Returns whether it has a node that allocates or frees memory.
    pub(super) fn has_memory(&self) -> bool {
        self.nodes.iter().any(|node| node.work.is_of_memory())
    }
}

impl Executable {
    pub(in crate::engine) fn has_memory(&self) -> bool {
        self.nodes.iter().any(|node| node.work.is_of_memory())
    }
}

impl Engine {
    /// `cuGraphAddMemAllocNode`: adds a node that allocates `bytes` on a GPU. Returns the node and the address.
    ///
    /// # Errors
    /// Returns `OutOfMemory` if the GPU has fewer bytes in total.
    pub fn add_allocation_node(
        &self,
        graph: GraphHandle,
        after: &[GraphNodeHandle],
        device: usize,
        bytes: u64,
    ) -> CudaResult<(GraphNodeHandle, u64)> {
        self.state().graph(graph)?.indices(after)?;
        self.allocate_with(device, bytes, |state, work| {
            state.add_graph_node(graph, after, Place::Anywhere, work)
        })
    }

    /// Allocates on a captured stream: the graph owns the memory.
    pub(in crate::engine) fn allocate_captured(
        &self,
        stream: StreamHandle,
        device: usize,
        bytes: u64,
    ) -> CudaResult<u64> {
        let add = |state: &mut State, work| state.add_node(stream, work, CallSite::here());
        Ok(self.allocate_with(device, bytes, add)?.1)
    }

    /// Lets `add` add a node that allocates memory. Returns what `add` returns, and the memory's address.
    fn allocate_with<T>(
        &self,
        device: usize,
        bytes: u64,
        add: impl FnOnce(&mut State, NodeWork) -> CudaResult<T>,
    ) -> CudaResult<(T, u64)> {
        let (address, owned) = self.reserve_for_graph(device, bytes)?;
        // Memory without a node is released, so it becomes known under the same lock as the node.
        let mut state = self.state();
        state.graphs.memory.by_address.insert(address, owned);
        match add(&mut state, NodeWork::Work(Work::Allocate { at: address })) {
            Ok(added) => Ok((added, address)),
            Err(error) => {
                self.release_graph_memory(state);
                Err(error)
            }
        }
    }

    /// Chooses an address for memory that a graph will own.
    fn reserve_for_graph(&self, device: usize, bytes: u64) -> CudaResult<(u64, Owned)> {
        if bytes == 0 {
            return Err(invalid("a graph can't allocate 0 bytes"));
        }
        let (lives, call_site) = (Arc::new(Lives::default()), CallSite::here());
        let mut memory = self.memory(device);
        let total = memory.capacity().total();
        if bytes > total {
            return Err(out_of_memory(device, OutOfMemory { asked: bytes, free: total }));
        }
        let made = memory.allocate_for_graph(bytes, call_site.clone(), lives.clone());
        drop(memory);
        let address = made.map_err(|refused| out_of_memory(device, refused))?;
        Ok((address, Owned { device, bytes, lives, is_allocated: false, call_site }))
    }

    /// `cuGraphAddMemFreeNode`
    ///
    /// # Errors
    /// Returns `InvalidValue` for memory that no graph owns, that this graph already frees, or that the owning graph
    /// already frees. If this graph owns the memory, the same holds if any other graph frees it.
    pub fn add_free_node(
        &self,
        graph: GraphHandle,
        after: &[GraphNodeHandle],
        address: u64,
    ) -> CudaResult<GraphNodeHandle> {
        let mut state = self.state();
        state.check_free_node(state.graph(graph)?, address)?;
        let work = NodeWork::Work(Work::Free { at: address, of_graph: true });
        state.add_graph_node(graph, after, Place::Anywhere, work)
    }

    /// `cuGraphMemAllocNodeGetParams`: returns the address, the GPU, and the number of bytes.
    pub fn allocation_node(&self, node: GraphNodeHandle) -> CudaResult<(u64, usize, u64)> {
        let state = self.state();
        let work = &state.graph_node(node)?.work;
        let owned = work.allocates().and_then(|at| Some((at, state.graphs.memory.by_address.get(&at)?)));
        let (at, owned) =
            owned.ok_or_else(|| invalid(format!("node {:#x} allocates no memory: it is {work}", node.0)))?;
        Ok((at, owned.device, owned.bytes))
    }

    /// `cuGraphMemFreeNodeGetParams`: returns the address.
    pub fn free_node(&self, node: GraphNodeHandle) -> CudaResult<u64> {
        let state = self.state();
        let work = &state.graph_node(node)?.work;
        work.frees().ok_or_else(|| invalid(format!("node {:#x} frees no memory: it is {work}", node.0)))
    }

    /// `cuDeviceGetGraphMemAttribute`
    pub fn graph_memory_figure(&self, device: i32, figure: GraphMemoryFigure) -> CudaResult<u64> {
        let device = self.check_device(device)?;
        let state = self.state();
        Ok(state.graphs.memory.figures.get(&device).map_or(0, |figures| figures[figure as usize]))
    }

    /// `cuDeviceSetGraphMemAttribute`: resets a high-water mark.
    ///
    /// # Errors
    /// Returns `InvalidValue` for a figure that can only be read, and for a value that is not 0.
    pub fn reset_graph_memory_figure(
        &self,
        device: i32,
        figure: GraphMemoryFigure,
        value: u64,
    ) -> CudaResult<()> {
        let device = self.check_device(device)?;
        let current = match figure {
            GraphMemoryFigure::UsedHigh => GraphMemoryFigure::Used,
            GraphMemoryFigure::ReservedHigh => GraphMemoryFigure::Reserved,
            _ => return Err(invalid("the current figures of graphs' memory can only be read")),
        };
        if value != 0 {
            let message = format!("a high-water mark of graphs' memory can only be set to 0, not to {value}");
            return Err(invalid(message));
        }
        let mut state = self.state();
        let figures = state.graphs.memory.figures.get_or_insert_with(device, Default::default);
        figures[figure as usize] = figures[current as usize];
        Ok(())
    }

    /// `cuDeviceGraphMemTrim`: gives back what graphs have taken from the GPU but don't use.
    pub fn trim_graph_memory(&self, device: i32) -> CudaResult<()> {
        let device = self.check_device(device)?;
        let mut state = self.state();
        let Some(figures) = state.graphs.memory.figures.get_mut(&device) else { return Ok(()) };
        let [used, _, reserved, _] = figures;
        let kept = used.next_multiple_of(GRANULE);
        let spare = reserved.saturating_sub(kept);
        *reserved -= spare;
        state.pools.capacity(device).give_back(spare);
        Ok(())
    }

    /// Releases memory that nothing uses anymore: no graph allocates it, and it is not allocated.
    pub(in crate::engine) fn release_graph_memory(&self, mut state: MutexGuard<'_, State>) {
        let memory = &state.graphs.memory.by_address;
        let unused =
            memory.entries().iter().filter(|(at, owned)| !owned.is_allocated && !state.has_allocator(*at));
        let unused: Vec<(u64, usize)> = unused.map(|(at, owned)| (*at, owned.device)).collect();
        if unused.is_empty() {
            return;
        }
        for (at, _) in &unused {
            state.graphs.memory.by_address.remove(at);
        }
        let sequence = state.next_sequence_number();
        drop(state);
        for (base, device) in unused {
            let freed = self.memory(device).free_from(base, CallSite::here(), sequence);
            if let Ok(allocation) = freed {
                self.free_at_once(Freed { device, base, allocation, sequence, op: None });
            }
        }
    }
}

impl State {
    /// Returns whether a graph, executable or not, has the node that allocates this memory.
    fn has_allocator(&self, at: u64) -> bool {
        let mut execs = self.graphs.execs.values();
        self.graphs.all.values().any(|graph| graph.allocates(at))
            || execs.any(|exec| exec.graph.nodes.iter().any(|node| node.work.allocates() == Some(at)))
    }

    /// Returns whether memory belongs to a graph.
    pub(in crate::engine) fn is_of_graph(&self, address: u64) -> bool {
        self.graphs.memory.by_address.contains_key(&address)
    }

    /// Checks that a graph may get a node that frees this memory.
    pub(in crate::engine) fn check_free_node(&self, graph: &Graph, at: u64) -> CudaResult<()> {
        if !self.is_of_graph(at) {
            return Err(invalid(format!(
                "{at:#x} is not the address of memory that a graph allocates: a graph can't free other memory"
            )));
        }
        if graph.frees(at) {
            return Err(invalid(format!("the graph already frees the memory at {at:#x}")));
        }
        let mut others = self.graphs.all.values().filter(|other| !std::ptr::eq(*other, graph));
        match graph.allocates(at) {
            true if others.any(|other| other.frees(at)) => {
                Err(invalid(format!("another graph already frees the memory at {at:#x}")))
            }
            false if others.any(|other| other.allocates(at) && other.frees(at)) => {
                Err(invalid(format!("the graph that allocates the memory at {at:#x} already frees it")))
            }
            _ => Ok(()),
        }
    }

    /// Checks that a call may free a graph's memory.
    ///
    /// # Errors
    /// Returns `InvalidValue` if the memory is not allocated, or if its graph frees it.
    pub(in crate::engine) fn check_free_of_graph(&self, at: u64) -> CudaResult<()> {
        let frees_its_own = self.graphs.all.values().any(|graph| graph.allocates(at) && graph.frees(at));
        if frees_its_own {
            return Err(invalid(format!(
                "{at:#x} is memory that a graph allocates and frees: only the graph can free it"
            )));
        }
        match self.graphs.memory.by_address.get(&at) {
            Some(owned) if owned.is_allocated => Ok(()),
            _ => Err(invalid(format!(
                "{at:#x} is memory of a graph that is not allocated: no launch has allocated it since it was freed"
            ))),
        }
    }

    /// Checks what a launch does to graphs' memory.
    ///
    /// # Errors
    /// Returns `InvalidValue` for memory that would be allocated or freed twice in a row, unless the launch may free
    /// first what the last launch has left allocated.
    pub(super) fn memory_of_launch(&self, graph: &Executable, frees_first: bool) -> CudaResult<LaunchMemory> {
        let mut launch = LaunchMemory { freed_first: Vec::new(), peaks: SortedMap::default() };
        if !graph.has_memory() {
            return Ok(launch);
        }
        let mut allocated: SortedMap<u64, bool> = SortedMap::default();
        let mut used: SortedMap<usize, u64> = SortedMap::default();
        for node in &graph.nodes {
            let (allocates, frees) = (node.work.allocates(), node.work.frees());
            let Some(at) = allocates.or(frees) else { continue };
            let Some(owned) = self.graphs.memory.by_address.get(&at) else {
                return Err(invalid(format!("cuGraphLaunch: the memory at {at:#x} no longer exists")));
            };
            let is_allocated = allocated.get_or_insert_with(at, || owned.is_allocated);
            let known = self.graphs.memory.figures.get(&owned.device).map_or(0, |figures| figures[0]);
            let used = used.get_or_insert_with(owned.device, || known);
            if allocates.is_some() {
                if *is_allocated && frees_first {
                    launch.freed_first.push(at);
                    *used -= owned.bytes;
                } else if *is_allocated {
                    return Err(invalid(format!(
                        "cuGraphLaunch: the {} that the graph allocates{} are still allocated since its last launch: \
                         free them (cuMemFreeAsync), or instantiate the graph with \
                         CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH",
                        size(owned.bytes),
                        owned.call_site.in_parentheses()
                    )));
                }
                *used += owned.bytes;
                let peak = launch.peaks.get_or_insert_with(owned.device, || 0);
                *peak = (*peak).max(*used);
            } else {
                if !*is_allocated {
                    return Err(invalid(format!(
                        "cuGraphLaunch: the graph frees{} the {} that a graph allocates{}, \
                         but the launch has not allocated them at that point: \
                         make the free depend on the allocation, or launch the graph that allocates them first",
                        node.call_site.in_parentheses(),
                        size(owned.bytes),
                        owned.call_site.in_parentheses()
                    )));
                }
                *used -= owned.bytes;
            }
            *is_allocated = allocates.is_some();
        }
        Ok(launch)
    }

    /// Takes the bytes that a launch needs from the GPUs.
    ///
    /// # Errors
    /// Returns `OutOfMemory` if a GPU does not have them.
    pub(super) fn reserve_for_launch(&mut self, launch: &LaunchMemory) -> CudaResult<()> {
        for &(device, peak) in launch.peaks.entries() {
            let figures = self.graphs.memory.figures.get_or_insert_with(device, Default::default);
            let [_, used_high, reserved, reserved_high] = figures;
            let missing = peak.next_multiple_of(GRANULE).saturating_sub(*reserved);
            let taken = self.pools.capacity(device).take(missing);
            taken.map_err(|refused| -> Error<CudaStatus> { out_of_memory(device, refused) })?;
            *reserved += missing;
            *reserved_high = (*reserved_high).max(*reserved);
            *used_high = (*used_high).max(peak);
        }
        Ok(())
    }

    /// Records that the operation `by` allocates a graph's memory.
    pub(super) fn begin_life(&mut self, at: u64, by: OperationNumber) {
        let firsts = self.streams.values().filter_map(|stream| stream.queue.front());
        let oldest = firsts.map(|op| op.enqueued).min().unwrap_or(by);
        let GraphMemory { by_address, figures } = &mut self.graphs.memory;
        let Some(owned) = by_address.get_mut(&at) else { return };
        owned.is_allocated = true;
        owned.lives.begin(by, oldest);
        let [used, ..] = figures.get_or_insert_with(owned.device, Default::default);
        *used += owned.bytes;
    }

    /// Records that the operation or call `by` frees a graph's memory.
    pub(in crate::engine) fn end_life(&mut self, at: u64, by: OperationNumber, call_site: CallSite) {
        let GraphMemory { by_address, figures } = &mut self.graphs.memory;
        let Some(owned) = by_address.get_mut(&at) else { return };
        owned.is_allocated = false;
        owned.lives.end(by, call_site);
        let [used, ..] = figures.get_or_insert_with(owned.device, Default::default);
        *used -= owned.bytes;
    }
}
