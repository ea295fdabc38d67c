//! The bodies of the functions for nodes that write numbers in memory, and wait for them.

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::{Mutex, PoisonError};

use virtual_gpu::engine::{ContextHandle, GraphHandle, GraphNodeHandle, NodeParameters as Change};
use virtual_gpu_core::status::CudaResult;

use crate::engine;
use crate::graph::{Graph, GraphExec};
use crate::graph_change::{change_executable, change_in};
use crate::graph_node::{GraphNode, dependencies, graph, node};
use crate::pointer::{Out, Source};
use crate::stream_value::{BatchOperation, described, operations};
use crate::types::{Context, handle};

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BatchNodeParameters {
    pub(crate) context: Context,
    pub(crate) count: c_uint,
    pub(crate) operations: Source<BatchOperation>,
    pub(crate) flags: c_uint,
}

/// The operations of a node, for the program to read until the node is changed or destroyed.
static OWNED: Mutex<BTreeMap<u64, Vec<BatchOperation>>> = Mutex::new(BTreeMap::new());

fn read(parameters: Source<BatchNodeParameters>) -> CudaResult<BatchNodeParameters> {
    parameters.value("the pointer to the parameters of the memory operations")
}

pub(crate) fn add(
    to: Out<GraphNode>,
    of: Graph,
    after: Source<GraphNode>,
    count: usize,
    parameters: Source<BatchNodeParameters>,
) -> CudaResult<()> {
    let after = dependencies(to, after, count)?;
    let made = new_values("cuGraphAddBatchMemOpNode", graph(of), &after, read(parameters)?)?;
    to.give(handle(made.0))
}

pub(crate) fn new_values(
    caller: &str,
    of: GraphHandle,
    after: &[GraphNodeHandle],
    given: BatchNodeParameters,
) -> CudaResult<GraphNodeHandle> {
    let operations = operations(caller, given.count, given.operations, given.flags)?;
    engine::get()?.add_values_node(of, after, operations, ContextHandle(given.context as u64))
}

/// Returns the changed parameters of a node.
pub(crate) fn of_values(caller: &str, given: BatchNodeParameters) -> CudaResult<Change> {
    Ok(Change::Values(operations(caller, given.count, given.operations, given.flags)?))
}

pub(crate) fn parameters(of: GraphNode, to: Out<BatchNodeParameters>) -> CudaResult<()> {
    let engine = engine::get()?;
    let (found, context) = engine.values_node(node(of))?;
    let found: Vec<_> = found.iter().map(described).collect();
    let mut owned = OWNED.lock().unwrap_or_else(PoisonError::into_inner);
    owned.retain(|&node, _| engine.is_graph_node(GraphNodeHandle(node)));
    let kept = owned.entry(of as u64).or_default();
    // An array that was returned earlier stays where it is, unless the node has changed.
    if *kept != found {
        *kept = found;
    }
    to.give(BatchNodeParameters {
        context: context.map_or(std::ptr::null_mut(), |context| handle(context.0)),
        count: kept.len() as c_uint,
        operations: Source::at(kept.as_ptr() as usize),
        flags: 0,
    })
}

pub(crate) fn set(of: GraphNode, parameters: Source<BatchNodeParameters>) -> CudaResult<()> {
    let given = read(parameters)?;
    change_in(of, of_values("cuGraphBatchMemOpNodeSetParams", given)?, given.context)
}

pub(crate) fn set_executable(
    exec: GraphExec,
    of: GraphNode,
    parameters: Source<BatchNodeParameters>,
) -> CudaResult<()> {
    let given = read(parameters)?;
    let change = of_values("cuGraphExecBatchMemOpNodeSetParams", given)?;
    change_executable(exec, of, change, Some(given.context))
}
