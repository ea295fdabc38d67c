//! The bodies of the functions that read and change the parameters of nodes, in a graph and in an executable graph.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::sync::{Mutex, PoisonError};

use virtual_gpu::engine::{
    ContextHandle, EventHandle, GraphExecHandle, GraphNodeHandle, LaunchShape, NodeParameters as Change,
};
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

use crate::graph::{Graph, GraphExec};
use crate::graph_node::{
    GraphNode, HostParameters, KernelParameters, SetParameters, dependencies, graph, kernel_parameters,
    launch, new_kernel, node, set_rows,
};
use crate::graph_parameters::{Body, NodeParameters};
use crate::graph_values::of_values;
use crate::pointer::{Arguments, Out, Source};
use crate::rows::{self, Copy3D};
use crate::types::{Context, Event, handle};
use crate::{engine, host};

/// The parameters of a kernel node, for the program to read until the node is changed or destroyed.
struct Owned {
    packed: Vec<u8>,
    /// The address of each parameter, which is in `packed`.
    addresses: Vec<usize>,
}

static OWNED: Mutex<BTreeMap<u64, Owned>> = Mutex::new(BTreeMap::new());

pub(crate) fn kernel(of: GraphNode, to: Out<KernelParameters>) -> CudaResult<()> {
    to.give(kernel_of(of)?)
}

fn kernel_of(of: GraphNode) -> CudaResult<KernelParameters> {
    let engine = engine::get()?;
    let launch = engine.kernel_node(node(of))?;
    let mut owned = OWNED.lock().unwrap_or_else(PoisonError::into_inner);
    owned.retain(|&node, _| engine.is_graph_node(GraphNodeHandle(node)));
    let is_same = |known: &Owned| known.packed == launch.parameters;
    if !owned.get(&(of as u64)).is_some_and(is_same) {
        let packed = launch.parameters;
        let address = |offset: u32| packed.as_ptr() as usize + offset as usize;
        let addresses = launch.kernel.parameters().iter().map(|it| address(it.offset)).collect();
        owned.insert(of as u64, Owned { packed, addresses });
    }
    let addresses = owned.get(&(of as u64)).map_or(0, |owned| owned.addresses.as_ptr() as usize);
    let LaunchShape { grid, block, dynamic_shared, .. } = launch.shape;
    Ok(KernelParameters {
        function: handle(launch.function.0),
        grid,
        block,
        dynamic_shared,
        parameters: Arguments::at(addresses),
        extra: std::ptr::null(),
        kernel: std::ptr::null_mut(),
        context: handle(launch.context.0),
    })
}

/// The parameters of a kernel node, as CUDA 11 declares them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct OldKernelParameters {
    pub(crate) function: *mut c_void,
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) dynamic_shared: c_uint,
    pub(crate) parameters: Arguments,
    pub(crate) extra: *const c_void,
}

impl OldKernelParameters {
    /// Returns the parameters as CUDA 12 declares them.
    fn read(from: Source<Self>) -> CudaResult<KernelParameters> {
        let Self { function, grid, block, dynamic_shared, parameters, extra } =
            from.value("the pointer to the parameters of the kernel")?;
        let (kernel, context) = (std::ptr::null_mut(), std::ptr::null_mut());
        Ok(KernelParameters { function, grid, block, dynamic_shared, parameters, extra, kernel, context })
    }
}

pub(crate) fn add_old_kernel(
    to: Out<GraphNode>,
    of: Graph,
    after: Source<GraphNode>,
    count: usize,
    parameters: Source<OldKernelParameters>,
) -> CudaResult<()> {
    let after = dependencies(to, after, count)?;
    to.give(handle(new_kernel(graph(of), &after, OldKernelParameters::read(parameters)?)?.0))
}

pub(crate) fn old_kernel(of: GraphNode, to: Out<OldKernelParameters>) -> CudaResult<()> {
    let KernelParameters { function, grid, block, dynamic_shared, parameters, extra, .. } = kernel_of(of)?;
    to.give(OldKernelParameters { function, grid, block, dynamic_shared, parameters, extra })
}

pub(crate) fn set_old_kernel(of: GraphNode, parameters: Source<OldKernelParameters>) -> CudaResult<()> {
    change(of, of_kernel(OldKernelParameters::read(parameters)?)?)
}

pub(crate) fn set_old_executable_kernel(
    exec: GraphExec,
    of: GraphNode,
    parameters: Source<OldKernelParameters>,
) -> CudaResult<()> {
    change_executable(exec, of, of_kernel(OldKernelParameters::read(parameters)?)?, None)
}

fn change(of: GraphNode, change: Change) -> CudaResult<()> {
    engine::get()?.change_node(node(of), change, None)
}

/// Changes a node, which also gets another context.
pub(crate) fn change_in(of: GraphNode, change: Change, context: Context) -> CudaResult<()> {
    engine::get()?.change_node(node(of), change, Some(ContextHandle(context as u64)))
}

pub(crate) fn change_executable(
    exec: GraphExec,
    of: GraphNode,
    change: Change,
    context: Option<Context>,
) -> CudaResult<()> {
    let context = context.map(|context| ContextHandle(context as u64));
    engine::get()?.change_executable(GraphExecHandle(exec as u64), node(of), change, context)
}

fn of_kernel(given: KernelParameters) -> CudaResult<Change> {
    let (function, shape, parameters) = launch(given)?;
    Ok(Change::Kernel { function, shape, parameters })
}

fn of_copy(copy: &Copy3D) -> CudaResult<Change> {
    Ok(Change::Copy(rows::in_graph(copy)?))
}

fn of_set(set: SetParameters) -> CudaResult<Change> {
    let (rows, element) = set_rows(set)?;
    Ok(Change::Set(rows, element))
}

fn of_host(caller: &str, given: HostParameters) -> CudaResult<Change> {
    Ok(Change::Host(host::function(caller, given.function, given.data)?))
}

pub(crate) fn set_kernel(of: GraphNode, parameters: Source<KernelParameters>) -> CudaResult<()> {
    change(of, of_kernel(kernel_parameters(parameters)?)?)
}

pub(crate) fn set_executable_kernel(
    exec: GraphExec,
    of: GraphNode,
    parameters: Source<KernelParameters>,
) -> CudaResult<()> {
    change_executable(exec, of, of_kernel(kernel_parameters(parameters)?)?, None)
}

pub(crate) fn copy(of: GraphNode, to: Out<Copy3D>) -> CudaResult<()> {
    let engine = engine::get()?;
    to.give(rows::of_graph(engine, engine.copy_node(node(of))?))
}

pub(crate) fn set_copy(of: GraphNode, copy: Source<Copy3D>) -> CudaResult<()> {
    change(of, of_copy(&copy.value("the pointer to the parameters of the copy")?)?)
}

pub(crate) fn set_executable_copy(
    exec: GraphExec,
    of: GraphNode,
    copy: Source<Copy3D>,
    context: Context,
) -> CudaResult<()> {
    let copy = of_copy(&copy.value("the pointer to the parameters of the copy")?)?;
    change_executable(exec, of, copy, Some(context))
}

pub(crate) fn set(of: GraphNode, to: Out<SetParameters>) -> CudaResult<()> {
    let (rows, element, value) = engine::get()?.set_node(node(of))?;
    let width = rows.width as usize / element as usize;
    let (pitch, height) = (rows.pitch as usize, rows.height as usize);
    to.give(SetParameters { at: rows.start, pitch, value, element, width, height })
}

pub(crate) fn set_set(of: GraphNode, parameters: Source<SetParameters>) -> CudaResult<()> {
    change(of, of_set(parameters.value("the pointer to the parameters of the memset")?)?)
}

pub(crate) fn set_executable_set(
    exec: GraphExec,
    of: GraphNode,
    parameters: Source<SetParameters>,
    context: Context,
) -> CudaResult<()> {
    let set = of_set(parameters.value("the pointer to the parameters of the memset")?)?;
    change_executable(exec, of, set, Some(context))
}

pub(crate) fn host(of: GraphNode, to: Out<HostParameters>) -> CudaResult<()> {
    let [function, data] = engine::get()?.host_node(node(of))?;
    // SAFETY: the program passed this function, and a pointer is as large as an optional function.
    let function = unsafe { std::mem::transmute::<usize, host::HostFunction>(function) };
    to.give(HostParameters { function, data: data as *mut c_void })
}

pub(crate) fn set_host(of: GraphNode, parameters: Source<HostParameters>) -> CudaResult<()> {
    let given = parameters.value("the pointer to the parameters of the host function")?;
    change(of, of_host("cuGraphHostNodeSetParams", given)?)
}

pub(crate) fn set_executable_host(
    exec: GraphExec,
    of: GraphNode,
    parameters: Source<HostParameters>,
) -> CudaResult<()> {
    let given = parameters.value("the pointer to the parameters of the host function")?;
    change_executable(exec, of, of_host("cuGraphExecHostNodeSetParams", given)?, None)
}

pub(crate) fn record(of: GraphNode, to: Out<Event>) -> CudaResult<()> {
    to.give(handle(engine::get()?.record_node(node(of))?.0))
}

pub(crate) fn set_record(of: GraphNode, event: Event) -> CudaResult<()> {
    change(of, Change::Record(EventHandle(event as u64)))
}

pub(crate) fn set_executable_record(exec: GraphExec, of: GraphNode, event: Event) -> CudaResult<()> {
    change_executable(exec, of, Change::Record(EventHandle(event as u64)), None)
}

pub(crate) fn wait(of: GraphNode, to: Out<Event>) -> CudaResult<()> {
    to.give(handle(engine::get()?.wait_node(node(of))?.0))
}

pub(crate) fn set_wait(of: GraphNode, event: Event) -> CudaResult<()> {
    change(of, Change::Wait(EventHandle(event as u64)))
}

pub(crate) fn set_executable_wait(exec: GraphExec, of: GraphNode, event: Event) -> CudaResult<()> {
    change_executable(exec, of, Change::Wait(EventHandle(event as u64)), None)
}

pub(crate) fn set_executable_child(exec: GraphExec, of: GraphNode, child: Graph) -> CudaResult<()> {
    engine::get()?.change_child(GraphExecHandle(exec as u64), node(of), graph(child))
}

/// `cuGraphNodeSetParams`
///
/// # Errors
/// Returns `NotSupported` for a type of node whose parameters can't be changed.
pub(crate) fn set_any(of: GraphNode, parameters: Source<NodeParameters>) -> CudaResult<()> {
    const FUNCTION: &str = "cuGraphNodeSetParams";
    let given = parameters.value("the pointer to the parameters of the node")?;
    let (made, context) = any(FUNCTION, given.body(FUNCTION)?)?;
    let context = context.map(|context| ContextHandle(context as u64));
    engine::get()?.change_node(node(of), made, context)
}

/// `cuGraphExecNodeSetParams`
///
/// # Errors
/// Returns `NotSupported` for a type of node whose parameters can't be changed.
pub(crate) fn set_any_executable(
    exec: GraphExec,
    of: GraphNode,
    parameters: Source<NodeParameters>,
) -> CudaResult<()> {
    const FUNCTION: &str = "cuGraphExecNodeSetParams";
    let given = parameters.value("the pointer to the parameters of the node")?;
    match given.body(FUNCTION)? {
        Body::Child(child) => set_executable_child(exec, of, child),
        body => {
            let (made, context) = any(FUNCTION, body)?;
            change_executable(exec, of, made, context)
        }
    }
}

/// Returns the new parameters of a node, and the context that they name.
fn any(caller: &str, given: Body) -> CudaResult<(Change, Option<Context>)> {
    let event = |event: Event| EventHandle(event as u64);
    Ok(match given {
        Body::Kernel(kernel) => (of_kernel(kernel)?, None),
        Body::Copy(copy, context) => (of_copy(&copy)?, Some(context)),
        Body::Set(set, context) => (of_set(set)?, Some(context)),
        Body::Values(given) => (of_values(caller, given)?, Some(given.context)),
        Body::Host(given) => (of_host(caller, given)?, None),
        Body::Record(of) => (Change::Record(event(of)), None),
        Body::Wait(of) => (Change::Wait(event(of)), None),
        Body::Child(_) | Body::MovedChild(_) | Body::Empty | Body::Allocation(_) | Body::Free(_) => {
            let message = format!("virtual GPU: {caller} is not supported for a node of this type");
            return Err(Error::new(CudaStatus::NotSupported, message));
        }
    })
}

pub(crate) fn enable(exec: GraphExec, of: GraphNode, is_enabled: c_uint) -> CudaResult<()> {
    engine::get()?.enable_node(GraphExecHandle(exec as u64), node(of), is_enabled != 0)
}

pub(crate) fn is_enabled(exec: GraphExec, of: GraphNode, to: Out<c_uint>) -> CudaResult<()> {
    to.give(c_uint::from(engine::get()?.is_node_enabled(GraphExecHandle(exec as u64), node(of))?))
}

/// A `CUlaunchAttributeValue`, whose content depends on the attribute.
pub type AttributeValue = [c_uint; 16];

/// Checks the number of a kernel node's attribute.
fn check_attribute(number: c_uint) -> CudaResult<()> {
    match number {
        // The cooperative launch, the cluster, the priority, the memory synchronization domain, and the carveout.
        2 | 4 | 5 | 8..=11 | 14 => Ok(()),
        // The access policy window, and a node that the GPU can update.
        1 | 13 => {
            let message = format!("virtual GPU: attribute {number} of a kernel node is not supported");
            Err(Error::new(CudaStatus::NotSupported, message))
        }
        _ => Err(invalid(format!("{number} is not an attribute of a kernel node"))),
    }
}

pub(crate) fn kernel_attribute(of: GraphNode, number: c_uint, to: Out<AttributeValue>) -> CudaResult<()> {
    check_attribute(number)?;
    to.give(engine::get()?.kernel_attribute(node(of), number)?)
}

pub(crate) fn set_kernel_attribute(
    of: GraphNode,
    number: c_uint,
    value: Source<AttributeValue>,
) -> CudaResult<()> {
    check_attribute(number)?;
    let value = value.value("the pointer to the value of the attribute")?;
    if number == 11 && !matches!(value, [1, 1, 1, ..] | [0, 0, 0, ..]) {
        let message = "virtual GPU: a preferred size of clusters is not supported";
        return Err(Error::new(CudaStatus::NotSupported, message));
    }
    engine::get()?.set_kernel_attribute(node(of), number, value)
}

pub(crate) fn copy_kernel_attributes(to: GraphNode, from: GraphNode) -> CudaResult<()> {
    engine::get()?.copy_kernel_attributes(node(to), node(from))
}
