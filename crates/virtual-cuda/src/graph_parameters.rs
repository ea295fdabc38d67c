//! `cuGraphAddNode`: adds a node of any type to a graph.

use std::ffi::{c_int, c_longlong, c_uint};

use virtual_gpu::engine::EventHandle;
use virtual_gpu_core::status::{CudaResult, invalid, unsupported};

use crate::engine;
use crate::graph::Graph;
use crate::graph_edges::{EdgeData, check};
use crate::graph_memory::{AllocationNodeParameters, new_allocation};
use crate::graph_node::{
    GraphNode, HostParameters, KernelParameters, SetParameters, dependencies, graph, new_copy, new_host,
    new_kernel, new_set,
};
use crate::graph_values::{BatchNodeParameters, new_values};
use crate::pointer::{Out, Source};
use crate::rows::Copy3D;
use crate::types::{Context, DevicePointer, Event, handle};

/// `CUgraphNodeParams`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NodeParameters {
    pub(crate) kind: c_uint,
    pub(crate) reserved: [c_int; 3],
    /// The parameters of the node's type, which come first.
    pub(crate) body: [c_longlong; 29],
    pub(crate) more: c_longlong,
}

/// `CUDA_MEMCPY_NODE_PARAMS`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CopyNodeParameters {
    pub(crate) flags: c_int,
    pub(crate) reserved: c_int,
    pub(crate) context: Context,
    pub(crate) copy: Copy3D,
}

/// `CUDA_MEMSET_NODE_PARAMS_v2`
#[derive(Clone, Copy)]
#[repr(C)]
struct SetNodeParameters {
    set: SetParameters,
    context: Context,
}

/// `CUDA_CHILD_GRAPH_NODE_PARAMS`
#[derive(Clone, Copy)]
#[repr(C)]
struct ChildParameters {
    graph: Graph,
    /// `CUgraphChildGraphNodeOwnership`: 0 if the node gets a copy of the graph.
    ownership: c_int,
}

impl NodeParameters {
    /// Replaces the parameters of the node's type.
    ///
    /// # Safety
    /// `T` is plain data, no larger than the body.
    unsafe fn set_body<T: Copy>(&mut self, body: T) {
        const { assert!(size_of::<T>() <= 29 * size_of::<c_longlong>()) };
        // SAFETY: the body is large enough and aligned for `T`.
        unsafe { (&raw mut self.body).cast::<T>().write(body) }
    }

    /// Returns the parameters of the node's type.
    ///
    /// # Safety
    /// `T` is plain data, no larger than the body.
    unsafe fn of_type<T: Copy>(&self) -> T {
        const { assert!(size_of::<T>() <= 29 * size_of::<c_longlong>()) };
        // SAFETY: the body is large enough and aligned for `T`, and all its bytes are initialized.
        unsafe { (&raw const self.body).cast::<T>().read() }
    }
}

/// The parameters of a node, by its type.
pub(crate) enum Body {
    Kernel(KernelParameters),
    Copy(Copy3D, Context),
    Set(SetParameters, Context),
    Values(BatchNodeParameters),
    Host(HostParameters),
    /// A graph that the node copies.
    Child(Graph),
    /// A graph that becomes the node's own.
    MovedChild(Graph),
    Empty,
    Wait(Event),
    Record(Event),
    Allocation(AllocationNodeParameters),
    Free(DevicePointer),
}

impl NodeParameters {
    /// Returns the parameters by their type. `caller` is the function that received them.
    ///
    /// # Errors
    /// Returns `InvalidValue` for a type that does not exist and for reserved fields that are not 0, and `NotSupported`
    /// for a type that the virtual GPU does not have.
    pub(crate) fn body(&self, caller: &str) -> CudaResult<Body> {
        if self.reserved != [0; 3] || self.more != 0 {
            return Err(invalid(format!("{caller}: the reserved fields of the parameters must be 0")));
        }
        // SAFETY: all of these are plain data as C programs fill them.
        Ok(unsafe {
            match self.kind {
                0 => Body::Kernel(self.of_type()),
                1 => {
                    let CopyNodeParameters { flags, reserved, context, copy } = self.of_type();
                    if flags != 0 || reserved != 0 {
                        let message = format!("{caller}: the flags and reserved fields of a copy must be 0");
                        return Err(invalid(message));
                    }
                    Body::Copy(copy, context)
                }
                2 => {
                    let SetNodeParameters { set, context } = self.of_type();
                    Body::Set(set, context)
                }
                3 => Body::Host(self.of_type()),
                4 => {
                    let ChildParameters { graph, ownership } = self.of_type();
                    match ownership {
                        0 => Body::Child(graph),
                        1 => Body::MovedChild(graph),
                        _ => {
                            let message =
                                format!("{caller}: {ownership} is not a CUgraphChildGraphNodeOwnership");
                            return Err(invalid(message));
                        }
                    }
                }
                5 => Body::Empty,
                6 => Body::Wait(self.of_type()),
                7 => Body::Record(self.of_type()),
                8 | 9 => return Err(unsupported("a node for an external semaphore")),
                10 => Body::Allocation(self.of_type()),
                11 => Body::Free(self.of_type()),
                12 => Body::Values(self.of_type()),
                13 => return Err(unsupported("a conditional node")),
                kind => return Err(invalid(format!("{caller}: there is no type of node {kind}"))),
            }
        })
    }
}

/// `cuGraphAddNode`. The address of memory that the node allocates is written to the parameters.
///
/// # Errors
/// Returns `InvalidValue` for parameters that the node's own function refuses, and `NotSupported` for a type of node
/// that the virtual GPU does not have.
pub(crate) fn add(
    to: Out<GraphNode>,
    of: Graph,
    after: Source<GraphNode>,
    count: usize,
    parameters: Out<NodeParameters>,
) -> CudaResult<()> {
    let after = dependencies(to, after, count)?;
    let given = Source::at(parameters.address());
    let mut given: NodeParameters = given.value("the pointer to the parameters of the node")?;
    let (engine, of) = (engine::get()?, graph(of));
    let added = match given.body("cuGraphAddNode")? {
        Body::Kernel(kernel) => new_kernel(of, &after, kernel)?,
        Body::Copy(copy, context) => new_copy(of, &after, &copy, context)?,
        Body::Set(set, context) => new_set(of, &after, set, context)?,
        Body::Values(given) => new_values("cuGraphAddNode", of, &after, given)?,
        Body::Host(given) => new_host(of, &after, given)?,
        Body::Child(child) => engine.add_child_graph_node(of, &after, graph(child))?,
        Body::MovedChild(child) => engine.move_child_graph(of, &after, graph(child))?,
        Body::Empty => engine.add_empty_node(of, &after)?,
        Body::Wait(event) => engine.add_wait_node(of, &after, EventHandle(event as u64))?,
        Body::Record(event) => engine.add_record_node(of, &after, EventHandle(event as u64))?,
        Body::Allocation(allocation) => {
            let (node, address) = new_allocation(of, &after, &allocation)?;
            // SAFETY: the parameters are plain data.
            unsafe { given.set_body(AllocationNodeParameters { address, ..allocation }) };
            parameters.give(given)?;
            node
        }
        Body::Free(address) => engine.add_free_node(of, &after, address)?,
    };
    to.give(handle(added.0))
}

/// `cuGraphAddNode_v2`: also takes the data of the edges.
pub(crate) fn add_with_data(
    to: Out<GraphNode>,
    of: Graph,
    after: Source<GraphNode>,
    data: Source<EdgeData>,
    count: usize,
    parameters: Out<NodeParameters>,
) -> CudaResult<()> {
    check(data, count)?;
    add(to, of, after, count, parameters)
}
