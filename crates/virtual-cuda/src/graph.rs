//! The bodies of the functions for graphs as a whole.

use std::ffi::{c_char, c_uint, c_ulonglong, c_void};

use virtual_gpu::engine::{GraphExecHandle, GraphHandle, GraphNodeHandle};
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::status::{CudaResult, invalid};

use crate::engine;
use crate::graph_node::GraphNode;
use crate::pointer::{Out, Source};
use crate::types::Stream;

/// `CUgraph`
pub type Graph = *mut c_void;

/// `CUgraphExec`
pub type GraphExec = *mut c_void;

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct InstantiateParameters {
    pub(crate) flags: c_ulonglong,
    pub(crate) upload: Stream,
    /// The node that is wrong.
    pub(crate) node: GraphNode,
    /// `CUgraphInstantiateResult`
    pub(crate) result: c_uint,
}

/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`
const UPLOAD: c_ulonglong = 2;
/// `CUDA_GRAPH_INSTANTIATE_ERROR`
const ERROR: c_uint = 1;
/// `CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE`
const INVALID_STRUCTURE: c_uint = 2;

pub(crate) fn instantiate(exec: Out<GraphExec>, graph: Graph, flags: c_ulonglong) -> CudaResult<()> {
    exec.give(std::ptr::null_mut())?;
    if flags & UPLOAD != 0 {
        return Err(invalid(
            "cuGraphInstantiateWithFlags: CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD is for cuGraphInstantiateWithParams",
        ));
    }
    let GraphExecHandle(made) = engine::get()?.instantiate_graph(GraphHandle(graph as u64), flags)?;
    exec.give(made as GraphExec)
}

/// `cuGraphInstantiate` and its second version. No warnings are logged, and the node that is wrong is not returned: the
/// error names it.
pub(crate) fn instantiate_old(
    exec: Out<GraphExec>,
    graph: Graph,
    node: Out<GraphNode>,
    log: Out<c_char>,
    size: usize,
) -> CudaResult<()> {
    node.give_if_wanted(std::ptr::null_mut());
    if size > 0 {
        log.give_if_wanted(0);
    }
    instantiate(exec, graph, 0)
}

/// `cuGraphInstantiateWithParams`: also returns why a graph can't be instantiated, and uploads it.
pub(crate) fn instantiate_with(
    exec: Out<GraphExec>,
    graph: Graph,
    parameters: Out<InstantiateParameters>,
) -> CudaResult<()> {
    let given: InstantiateParameters =
        Source::at(parameters.address()).value("the pointer to the parameters of the instantiation")?;
    exec.give(std::ptr::null_mut())?;
    let failed = InstantiateParameters { node: std::ptr::null_mut(), result: ERROR, ..given };
    parameters.give(failed)?;
    let (engine, graph) = (engine::get()?, GraphHandle(graph as u64));
    if let Some(GraphNodeHandle(node)) = engine.node_in_cycle(graph)? {
        let node = node as GraphNode;
        parameters.give(InstantiateParameters { node, result: INVALID_STRUCTURE, ..given })?;
    }
    let GraphExecHandle(made) = engine.instantiate_graph(graph, given.flags & !UPLOAD)?;
    if given.flags & UPLOAD != 0 {
        engine.upload_graph(GraphExecHandle(made), StreamHandle(given.upload as u64))?;
    }
    parameters.give(InstantiateParameters { result: 0, ..failed })?;
    exec.give(made as GraphExec)
}

pub(crate) fn flags_of(exec: GraphExec, flags: Out<c_ulonglong>) -> CudaResult<()> {
    flags.give(engine::get()?.executable_flags(GraphExecHandle(exec as u64))?)
}

pub(crate) fn launch(exec: GraphExec, of: Stream) -> CudaResult<()> {
    engine::get()?.launch_graph(GraphExecHandle(exec as u64), StreamHandle(of as u64))
}

pub(crate) fn upload(exec: GraphExec, of: Stream) -> CudaResult<()> {
    engine::get()?.upload_graph(GraphExecHandle(exec as u64), StreamHandle(of as u64))
}

pub(crate) fn destroy(graph: Graph) -> CudaResult<()> {
    engine::get()?.destroy_graph(GraphHandle(graph as u64))
}

pub(crate) fn destroy_exec(exec: GraphExec) -> CudaResult<()> {
    engine::get()?.destroy_graph_exec(GraphExecHandle(exec as u64))
}
