//! The bodies of the functions for memory that graphs own.

use std::ffi::c_uint;

use virtual_gpu::engine::{GraphHandle, GraphMemoryFigure, GraphNodeHandle, MemoryAccess};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::engine;
use crate::graph::Graph;
use crate::graph_node::{GraphNode, dependencies, graph, node};
use crate::pointer::{Out, Source};
use crate::pool::{self, PoolProperties};
use crate::types::{Device, DevicePointer, handle};
use crate::virtual_memory::{AccessDescription, accesses};

/// `CUDA_MEM_ALLOC_NODE_PARAMS`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AllocationNodeParameters {
    pub(crate) pool: PoolProperties,
    pub(crate) accesses: Source<AccessDescription>,
    pub(crate) access_count: usize,
    pub(crate) bytes: usize,
    pub(crate) address: DevicePointer,
}

pub(crate) fn add_allocation(
    to: Out<GraphNode>,
    of: Graph,
    after: Source<GraphNode>,
    count: usize,
    parameters: Out<AllocationNodeParameters>,
) -> CudaResult<()> {
    let after = dependencies(to, after, count)?;
    let given: AllocationNodeParameters =
        Source::at(parameters.address()).value("the pointer to the parameters of the allocation")?;
    let (made, address) = new_allocation(graph(of), &after, &given)?;
    parameters.give(AllocationNodeParameters { address, ..given })?;
    to.give(handle(made.0))
}

/// Adds an allocation node. Returns the node and the address of the memory.
///
/// # Errors
/// Returns the errors of `cuMemPoolCreate` for properties that a pool can't have, and `NotSupported` if another GPU
/// gets access.
pub(crate) fn new_allocation(
    of: GraphHandle,
    after: &[GraphNodeHandle],
    given: &AllocationNodeParameters,
) -> CudaResult<(GraphNodeHandle, DevicePointer)> {
    let device = pool::check_properties(&given.pool)?;
    if given.pool.handle_types != 0 {
        return Err(invalid("the memory of a graph can't be shared through handles"));
    }
    if given.pool.max_size != 0 {
        return Err(invalid("an allocation node's maxSize must be 0"));
    }
    let listed = match given.access_count {
        0 => Vec::new(),
        count => accesses(given.accesses, count, "cuGraphAddMemAllocNode")?,
    };
    for (other, access) in listed {
        if other != device || access == MemoryAccess::None {
            let message = format!(
                "virtual GPU: access by GPU {other} to memory of a graph on GPU {device} is not supported, and neither \
                 is taking it from the GPU itself"
            );
            return Err(Error::new(CudaStatus::NotSupported, message));
        }
    }
    engine::get()?.add_allocation_node(of, after, device, given.bytes as u64)
}

pub(crate) fn add_free(
    to: Out<GraphNode>,
    of: Graph,
    after: Source<GraphNode>,
    count: usize,
    address: DevicePointer,
) -> CudaResult<()> {
    let after = dependencies(to, after, count)?;
    to.give(handle(engine::get()?.add_free_node(graph(of), &after, address)?.0))
}

/// `cuGraphMemAllocNodeGetParams`. The list of accesses is empty: only the memory's own GPU has access.
pub(crate) fn allocation(of: GraphNode, to: Out<AllocationNodeParameters>) -> CudaResult<()> {
    let (address, device, bytes) = engine::get()?.allocation_node(node(of))?;
    to.give(AllocationNodeParameters {
        pool: PoolProperties::on(device),
        accesses: Source::null(),
        access_count: 0,
        bytes: bytes as usize,
        address,
    })
}

pub(crate) fn freed(of: GraphNode, to: Out<DevicePointer>) -> CudaResult<()> {
    to.give(engine::get()?.free_node(node(of))?)
}

pub(crate) fn trim(device: Device) -> CudaResult<()> {
    engine::get()?.trim_graph_memory(device)
}

/// Reads an attribute, which has 8 bytes.
pub(crate) fn attribute(device: Device, attribute: c_uint, value: Out<u8>) -> CudaResult<()> {
    let figure = GraphMemoryFigure::from_number(attribute)?;
    value.give_all(&engine::get()?.graph_memory_figure(device, figure)?.to_ne_bytes())
}

pub(crate) fn set_attribute(device: Device, attribute: c_uint, value: Source<u8>) -> CudaResult<()> {
    let figure = GraphMemoryFigure::from_number(attribute)?;
    let mut number = [0; 8];
    number.copy_from_slice(&value.values(8)?);
    engine::get()?.reset_graph_memory_figure(device, figure, u64::from_ne_bytes(number))
}
