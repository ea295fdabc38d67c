//! The bodies of the functions for the nodes of graphs.

use std::ffi::{c_uint, c_void};

use virtual_gpu::engine::{
    ContextHandle, EventHandle, FunctionHandle, GraphExecHandle, GraphHandle, GraphNodeHandle, LaunchShape,
    Region,
};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::graph::{Graph, GraphExec};
use crate::host::HostFunction;
use crate::library::Kernel;
use crate::pointer::{Arguments, Out, Source, Text};
use crate::rows::Copy3D;
use crate::types::{Context, DevicePointer, Event, Function, handle};
use crate::{engine, host, library, module, rows};

/// `CUgraphNode`
pub type GraphNode = *mut c_void;

/// `CUDA_KERNEL_NODE_PARAMS`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct KernelParameters {
    pub(crate) function: Function,
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) dynamic_shared: c_uint,
    pub(crate) parameters: Arguments,
    pub(crate) extra: *const c_void,
    /// The kernel, if there is no function.
    pub(crate) kernel: Kernel,
    pub(crate) context: Context,
}

/// `CUDA_MEMSET_NODE_PARAMS`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SetParameters {
    pub(crate) at: DevicePointer,
    pub(crate) pitch: usize,
    pub(crate) value: c_uint,
    pub(crate) element: c_uint,
    /// The number of elements in a row.
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HostParameters {
    pub(crate) function: HostFunction,
    pub(crate) data: *mut c_void,
}

/// `CUgraphExecUpdateResultInfo`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct UpdateInfo {
    pub(crate) result: c_uint,
    pub(crate) node: GraphNode,
    pub(crate) from: GraphNode,
}

pub(crate) fn graph(graph: Graph) -> GraphHandle {
    GraphHandle(graph as u64)
}

pub(crate) fn node(node: GraphNode) -> GraphNodeHandle {
    GraphNodeHandle(node as u64)
}

/// Checks the result pointer of a function that adds a node, and returns the nodes that the new one comes after.
pub(crate) fn dependencies(
    to: Out<GraphNode>,
    dependencies: Source<GraphNode>,
    count: usize,
) -> CudaResult<Vec<GraphNodeHandle>> {
    to.check("the pointer to the new node")?;
    Ok(dependencies.values(count)?.into_iter().map(node).collect())
}

pub(crate) fn create(to: Out<Graph>, flags: c_uint) -> CudaResult<()> {
    if flags != 0 {
        return Err(invalid(format!("cuGraphCreate: the flags must be 0, not {flags:#x}")));
    }
    to.check("cuGraphCreate: the result pointer")?;
    to.give(handle(engine::get()?.create_graph().0))
}

/// `cuGraphClone`
pub(crate) fn clone(to: Out<Graph>, original: Graph) -> CudaResult<()> {
    to.check("cuGraphClone: the result pointer")?;
    to.give(handle(engine::get()?.clone_graph(graph(original))?.0))
}

pub(crate) fn in_clone(to: Out<GraphNode>, of: GraphNode, clone: Graph) -> CudaResult<()> {
    to.give(handle(engine::get()?.node_in_clone(node(of), graph(clone))?.0))
}

pub(crate) fn add_empty(
    to: Out<GraphNode>,
    of: Graph,
    after: Source<GraphNode>,
    count: usize,
) -> CudaResult<()> {
    let after = dependencies(to, after, count)?;
    to.give(handle(engine::get()?.add_empty_node(graph(of), &after)?.0))
}

pub(crate) fn add_kernel(
    to: Out<GraphNode>,
    of: Graph,
    after: Source<GraphNode>,
    count: usize,
    parameters: Source<KernelParameters>,
) -> CudaResult<()> {
    let after = dependencies(to, after, count)?;
    to.give(handle(new_kernel(graph(of), &after, kernel_parameters(parameters)?)?.0))
}

pub(crate) fn kernel_parameters(parameters: Source<KernelParameters>) -> CudaResult<KernelParameters> {
    parameters.value("the pointer to the parameters of the kernel")
}

pub(crate) fn new_kernel(
    of: GraphHandle,
    after: &[GraphNodeHandle],
    given: KernelParameters,
) -> CudaResult<GraphNodeHandle> {
    let (function, shape, packed) = launch(given)?;
    engine::get()?.add_kernel_node(of, after, function, shape, packed)
}

/// Returns the function, the shape, and the packed parameters of a kernel node.
pub(crate) fn launch(given: KernelParameters) -> CudaResult<(FunctionHandle, LaunchShape, Vec<u8>)> {
    let function = match given.function.is_null() {
        false => library::resolve(given.function),
        true if given.context.is_null() => library::resolve(given.kernel),
        true => {
            let engine = engine::get()?;
            engine.push_current(ContextHandle(given.context as u64))?;
            let function = library::resolve(given.kernel);
            engine.pop_current()?;
            function
        }
    }?;
    let packed = module::parameters(function, given.parameters, given.extra)?;
    let KernelParameters { grid, block, dynamic_shared, .. } = given;
    Ok((function, LaunchShape::new(grid, block, dynamic_shared), packed))
}

pub(crate) fn add_copy(
    to: Out<GraphNode>,
    of: Graph,
    after: Source<GraphNode>,
    count: usize,
    copy: Source<Copy3D>,
    context: Context,
) -> CudaResult<()> {
    let after = dependencies(to, after, count)?;
    let copy = copy.value("the pointer to the parameters of the copy")?;
    to.give(handle(new_copy(graph(of), &after, &copy, context)?.0))
}

pub(crate) fn new_copy(
    of: GraphHandle,
    after: &[GraphNodeHandle],
    copy: &Copy3D,
    context: Context,
) -> CudaResult<GraphNodeHandle> {
    engine::get()?.add_copy_node(of, after, rows::in_graph(copy)?, ContextHandle(context as u64))
}

pub(crate) fn add_set(
    to: Out<GraphNode>,
    of: Graph,
    after: Source<GraphNode>,
    count: usize,
    parameters: Source<SetParameters>,
    context: Context,
) -> CudaResult<()> {
    let after = dependencies(to, after, count)?;
    let set = parameters.value("the pointer to the parameters of the memset")?;
    to.give(handle(new_set(graph(of), &after, set, context)?.0))
}

pub(crate) fn new_set(
    of: GraphHandle,
    after: &[GraphNodeHandle],
    set: SetParameters,
    context: Context,
) -> CudaResult<GraphNodeHandle> {
    let (region, element) = set_rows(set)?;
    engine::get()?.add_set_node(of, after, (region, &element), ContextHandle(context as u64))
}

/// Returns the rows of a memset, and the bytes of an element.
///
/// # Errors
/// Returns `InvalidValue` for an element of another size than 1, 2, or 4 bytes, and for rows that overlap.
pub(crate) fn set_rows(set: SetParameters) -> CudaResult<(Region, Vec<u8>)> {
    let SetParameters { at, pitch, value, element, width, height } = set;
    if !matches!(element, 1 | 2 | 4) {
        return Err(invalid(format!("the element size of a memset must be 1, 2, or 4, not {element}")));
    }
    let Some(bytes) = width.checked_mul(element as usize) else {
        return Err(invalid(format!("a row of {width} elements of {element} bytes is too large")));
    };
    let pitch = if height > 1 { pitch } else { bytes };
    if pitch < bytes {
        return Err(invalid(format!("set of {at:#x}: a row has {bytes} bytes, but the pitch is {pitch}")));
    }
    let [width, height, pitch] = [bytes, height, pitch].map(|it| it as u64);
    let region = Region { start: at, width, height, depth: 1, pitch, slice: 0 };
    Ok((region, value.to_le_bytes()[..element as usize].to_vec()))
}

pub(crate) fn add_host(
    to: Out<GraphNode>,
    of: Graph,
    after: Source<GraphNode>,
    count: usize,
    parameters: Source<HostParameters>,
) -> CudaResult<()> {
    let after = dependencies(to, after, count)?;
    let given = parameters.value("the pointer to the parameters of the host function")?;
    to.give(handle(new_host(graph(of), &after, given)?.0))
}

pub(crate) fn new_host(
    of: GraphHandle,
    after: &[GraphNodeHandle],
    given: HostParameters,
) -> CudaResult<GraphNodeHandle> {
    let function = host::function("cuGraphAddHostNode", given.function, given.data)?;
    engine::get()?.add_host_node(of, after, function)
}

pub(crate) fn add_child(
    to: Out<GraphNode>,
    of: Graph,
    after: Source<GraphNode>,
    count: usize,
    child: Graph,
) -> CudaResult<()> {
    let after = dependencies(to, after, count)?;
    to.give(handle(engine::get()?.add_child_graph_node(graph(of), &after, graph(child))?.0))
}

pub(crate) fn child(of: GraphNode, to: Out<Graph>) -> CudaResult<()> {
    to.give(handle(engine::get()?.child_graph(node(of))?.0))
}

pub(crate) fn add_record(
    to: Out<GraphNode>,
    of: Graph,
    after: Source<GraphNode>,
    count: usize,
    event: Event,
) -> CudaResult<()> {
    let after = dependencies(to, after, count)?;
    to.give(handle(engine::get()?.add_record_node(graph(of), &after, EventHandle(event as u64))?.0))
}

pub(crate) fn add_wait(
    to: Out<GraphNode>,
    of: Graph,
    after: Source<GraphNode>,
    count: usize,
    event: Event,
) -> CudaResult<()> {
    let after = dependencies(to, after, count)?;
    to.give(handle(engine::get()?.add_wait_node(graph(of), &after, EventHandle(event as u64))?.0))
}

pub(crate) fn destroy(of: GraphNode) -> CudaResult<()> {
    engine::get()?.destroy_graph_node(node(of))
}

pub(crate) fn edges(
    from: Source<GraphNode>,
    to: Source<GraphNode>,
    count: usize,
) -> CudaResult<Vec<(GraphNodeHandle, GraphNodeHandle)>> {
    let pairs = from.values(count)?.into_iter().zip(to.values(count)?);
    Ok(pairs.map(|(from, to)| (node(from), node(to))).collect())
}

pub(crate) fn add_edges(
    of: Graph,
    from: Source<GraphNode>,
    to: Source<GraphNode>,
    count: usize,
) -> CudaResult<()> {
    engine::get()?.add_graph_edges(graph(of), &edges(from, to, count)?)
}

pub(crate) fn remove_edges(
    of: Graph,
    from: Source<GraphNode>,
    to: Source<GraphNode>,
    count: usize,
) -> CudaResult<()> {
    engine::get()?.remove_graph_edges(graph(of), &edges(from, to, count)?)
}

/// Writes as many handles as the array has room for, and nulls after them. Writes only their number if there is no array.
pub(crate) fn give_list(
    handles: &[GraphNodeHandle],
    to: Out<GraphNode>,
    count: Out<usize>,
) -> CudaResult<()> {
    let all = handles.len();
    if to.is_null() {
        return count.give(all);
    }
    let room = Source::at(count.address()).value("the pointer to the number of nodes")?;
    let handles = handles.iter().map(|it| handle(it.0)).chain(std::iter::repeat(std::ptr::null_mut()));
    to.give_all(&handles.take(room).collect::<Vec<_>>())?;
    count.give(all.min(room))
}

pub(crate) fn nodes(of: Graph, to: Out<GraphNode>, count: Out<usize>) -> CudaResult<()> {
    give_list(&engine::get()?.graph_nodes(graph(of))?, to, count)
}

pub(crate) fn root_nodes(of: Graph, to: Out<GraphNode>, count: Out<usize>) -> CudaResult<()> {
    give_list(&engine::get()?.root_nodes(graph(of))?, to, count)
}

/// `cuGraphGetEdges`
///
/// # Errors
/// Returns `InvalidValue` if only one of the arrays is null.
pub(crate) fn all_edges(
    of: Graph,
    from: Out<GraphNode>,
    to: Out<GraphNode>,
    count: Out<usize>,
) -> CudaResult<()> {
    if from.is_null() != to.is_null() {
        return Err(invalid("cuGraphGetEdges: only one of the arrays from and to is null"));
    }
    let (froms, tos): (Vec<_>, Vec<_>) = engine::get()?.graph_edges(graph(of))?.into_iter().unzip();
    let room = Source::<usize>::at(count.address()).value("the pointer to the number of edges")?;
    give_list(&froms, from, count)?;
    if to.is_null() {
        return Ok(());
    }
    count.give(room)?;
    give_list(&tos, to, count)
}

pub(crate) fn dependencies_of(of: GraphNode, to: Out<GraphNode>, count: Out<usize>) -> CudaResult<()> {
    give_list(&engine::get()?.dependencies(node(of))?, to, count)
}

pub(crate) fn dependents_of(of: GraphNode, to: Out<GraphNode>, count: Out<usize>) -> CudaResult<()> {
    give_list(&engine::get()?.dependent_nodes(node(of))?, to, count)
}

pub(crate) fn kind(of: GraphNode, to: Out<c_uint>) -> CudaResult<()> {
    to.give(engine::get()?.node_kind(node(of))? as c_uint)
}

/// `cuGraphExecUpdate` of CUDA 11, which returns the node and the result one by one.
pub(crate) fn update_old(
    exec: GraphExec,
    of: Graph,
    node: Out<GraphNode>,
    result: Out<c_uint>,
) -> CudaResult<()> {
    let null = std::ptr::null_mut();
    let mut info = UpdateInfo { result: 1, node: null, from: null };
    let done = update(exec, of, Out::at(&raw mut info as usize));
    node.give_if_wanted(info.node);
    result.give_if_wanted(info.result);
    done
}

/// `cuGraphExecUpdate`
///
/// # Errors
/// Returns `GraphExecUpdateFailure` if the graph differs in more than its parameters.
pub(crate) fn update(exec: GraphExec, of: Graph, info: Out<UpdateInfo>) -> CudaResult<()> {
    let null = std::ptr::null_mut();
    let error = UpdateInfo { result: 1, node: null, from: null };
    info.give(error)?;
    match engine::get()?.update_executable(GraphExecHandle(exec as u64), graph(of))? {
        Ok(()) => info.give(UpdateInfo { result: 0, ..error }),
        Err(failure) => {
            let [node, from] =
                [failure.node, failure.from].map(|node| node.map_or(null, |node| handle(node.0)));
            info.give(UpdateInfo { result: failure.result as c_uint, node, from })?;
            let message = format!("cuGraphExecUpdate: {}", failure.message);
            Err(Error::new(CudaStatus::GraphExecUpdateFailure, message))
        }
    }
}

/// `cuGraphDebugDotPrint`
///
/// # Errors
/// Returns `InvalidValue` for a path that is null or not UTF-8, and `OperatingSystem` if the file can't
/// be written.
pub(crate) fn describe(of: Graph, path: Text, flags: c_uint) -> CudaResult<()> {
    let path = path.text().ok_or_else(|| invalid("cuGraphDebugDotPrint: the path is null or not UTF-8"))?;
    let text = engine::get()?.describe_graph(graph(of), flags)?;
    std::fs::write(path, text).map_err(|error| {
        Error::new(CudaStatus::OperatingSystem, format!("cuGraphDebugDotPrint: {path}: {error}"))
    })
}
