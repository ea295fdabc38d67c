//! `cuGraphAddNode`: adds a node of any type to a graph.

use std::ffi::{c_int, c_longlong, c_uint};

use virtual_gpu::engine::EventHandle;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

use crate::engine;
use crate::graph::Graph;
use crate::graph_edges::{EdgeData, check};
use crate::graph_memory::{AllocationNodeParameters, new_allocation};
use crate::graph_node::{
    GraphNode, HostParameters, KernelParameters, SetParameters, dependencies, graph, new_copy, new_host,
    new_kernel, new_set,
};
use crate::pointer::{Out, Source};
use crate::rows::Copy3D;
use crate::types::{Context, DevicePointer, Event, handle, invalid};

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

/// `cuGraphAddNode`
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
    let results = parameters;
    let parameters = Source::at(results.address());
    let mut parameters: NodeParameters = parameters.value("the pointer to the parameters of the node")?;
    if parameters.reserved != [0; 3] || parameters.more != 0 {
        return Err(invalid("cuGraphAddNode: the reserved fields of the parameters must be 0"));
    }
    let (engine, of) = (engine::get()?, graph(of));
    // SAFETY: all of these are plain data as C programs fill them.
    let added = unsafe {
        match parameters.kind {
            0 => new_kernel(of, &after, parameters.of_type::<KernelParameters>()),
            1 => {
                let CopyNodeParameters { flags, reserved, context, copy } = parameters.of_type();
                if flags != 0 || reserved != 0 {
                    return Err(invalid("cuGraphAddNode: the flags and reserved fields of a copy must be 0"));
                }
                new_copy(of, &after, &copy, context)
            }
            2 => {
                let SetNodeParameters { set, context } = parameters.of_type();
                new_set(of, &after, set, context)
            }
            3 => new_host(of, &after, parameters.of_type::<HostParameters>()),
            4 => {
                let ChildParameters { graph: child, ownership } = parameters.of_type();
                if ownership != 0 {
                    return Err(unsupported("a child graph that is moved into its node"));
                }
                engine.add_child_graph_node(of, &after, graph(child))
            }
            5 => engine.add_empty_node(of, &after),
            6 => engine.add_wait_node(of, &after, EventHandle(parameters.of_type::<Event>() as u64)),
            7 => engine.add_record_node(of, &after, EventHandle(parameters.of_type::<Event>() as u64)),
            8 | 9 => Err(unsupported("a node for an external semaphore")),
            10 => {
                let given = parameters.of_type::<AllocationNodeParameters>();
                new_allocation(of, &after, &given).and_then(|(node, address)| {
                    parameters.set_body(AllocationNodeParameters { address, ..given });
                    results.give(parameters).map(|()| node)
                })
            }
            11 => engine.add_free_node(of, &after, parameters.of_type::<DevicePointer>()),
            12 => Err(unsupported("a node for memory operations")),
            13 => Err(unsupported("a conditional node")),
            kind => Err(invalid(format!("cuGraphAddNode: there is no type of node {kind}"))),
        }
    };
    to.give(handle(added?.0))
}

fn unsupported(what: &str) -> Error<CudaStatus> {
    Error::new(CudaStatus::NotSupported, format!("virtual GPU: {what} is not supported"))
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
