//! The parameters of a graph's nodes, and of the nodes of executable graphs: reading and changing them.

use std::sync::Arc;

use super::executable::ExecNode;
use super::nodes::{GraphCopy, NodeKind};
use super::update::check_work;
use super::{GraphExecHandle, GraphHandle, GraphNodeHandle, NodeWork, Place};
use crate::engine::context::ContextHandle;
use crate::engine::event::EventHandle;
use crate::engine::host::HostFunction;
use crate::engine::launch::{KernelLaunch, LaunchShape};
use crate::engine::module::FunctionHandle;
use crate::engine::region::Region;
use crate::engine::value::ValueOperation;
use crate::engine::work::Work;
use crate::engine::{Engine, State};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};
use virtual_gpu_ptx::Kernel;

/// New parameters for a node.
pub enum NodeParameters {
    /// Of a kernel.
    Kernel {
        /// The function.
        function: FunctionHandle,
        /// The launch's shape.
        shape: LaunchShape,
        /// The kernel's parameters, packed.
        parameters: Vec<u8>,
    },
    /// Of a copy.
    Copy(GraphCopy),
    /// Of a memset: its rows, and the bytes of an element.
    Set(Region, Vec<u8>),
    /// Of a batch of memory operations.
    Values(Vec<ValueOperation>),
    /// Of a host function.
    Host(HostFunction),
    /// Of an event record.
    Record(EventHandle),
    /// Of an event wait.
    Wait(EventHandle),
}

/// The parameters of a kernel node.
pub struct KernelNode {
    /// The function.
    pub function: FunctionHandle,
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// The context in which it runs.
    pub context: ContextHandle,
    /// The launch's shape.
    pub shape: LaunchShape,
    /// The kernel's parameters, packed.
    pub parameters: Vec<u8>,
}

/// One side of a copy node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopySide {
    /// Host memory.
    Host(Region),
    /// Memory that kernels can access.
    Device(Region),
}

impl NodeParameters {
    fn kind(&self) -> NodeKind {
        match self {
            Self::Kernel { .. } => NodeKind::Kernel,
            Self::Copy(_) => NodeKind::Copy,
            Self::Set(..) => NodeKind::Set,
            Self::Values(_) => NodeKind::Values,
            Self::Host(_) => NodeKind::Host,
            Self::Record(_) => NodeKind::Record,
            Self::Wait(_) => NodeKind::Wait,
        }
    }
}

impl NodeWork {
    /// Returns the launch of a kernel node.
    pub(super) fn kernel(&self, node: GraphNodeHandle) -> CudaResult<&KernelLaunch> {
        match self {
            Self::Work(Work::Kernel(launch)) => Ok(launch),
            Self::Communication(calls) => {
                let message =
                    format!("virtual GPU: the parameters of NCCL's kernels ({calls}) are not supported");
                Err(Error::new(CudaStatus::NotSupported, message))
            }
            other => Err(invalid(format!("node {:#x} is not a kernel node, but {other}", node.0))),
        }
    }
}

impl Engine {
    /// `cuGraphKernelNodeGetParams`
    ///
    /// # Errors
    /// Returns `InvalidValue` if the node has no kernel, and `NotSupported` if its kernel is NCCL's.
    pub fn kernel_node(&self, node: GraphNodeHandle) -> CudaResult<KernelNode> {
        let state = self.state();
        let launch = state.graph_node(node)?.work.kernel(node)?;
        Ok(KernelNode {
            function: launch.function,
            kernel: launch.kernel.clone(),
            context: launch.context,
            shape: launch.shape,
            parameters: launch.parameters.clone(),
        })
    }

    /// `cuGraphMemcpyNodeGetParams`: returns the destination and the source.
    pub fn copy_node(&self, node: GraphNodeHandle) -> CudaResult<[CopySide; 2]> {
        match &self.state().graph_node(node)?.work {
            NodeWork::Work(Work::Copy { from, to }) => Ok([CopySide::Device(*to), CopySide::Device(*from)]),
            NodeWork::Work(Work::UploadLater { to, host, .. }) => {
                Ok([CopySide::Device(*to), CopySide::Host(host.at)])
            }
            NodeWork::Work(Work::DownloadLater { from, host, .. }) => {
                Ok([CopySide::Host(host.at), CopySide::Device(*from)])
            }
            other => Err(invalid(format!("node {:#x} is not a copy, but {other}", node.0))),
        }
    }

    /// `cuGraphMemsetNodeGetParams`: returns the rows, the size of an element in bytes, and its value.
    pub fn set_node(&self, node: GraphNodeHandle) -> CudaResult<(Region, u32, u32)> {
        match self.state().graph_node(node)?.work {
            NodeWork::Work(Work::Set { at, pattern, element }) => {
                let mask = u32::MAX >> (32 - 8 * u32::from(element));
                Ok((at, u32::from(element), u32::from_le_bytes(pattern) & mask))
            }
            ref other => Err(invalid(format!("node {:#x} is not a memset, but {other}", node.0))),
        }
    }

    /// `cuGraphBatchMemOpNodeGetParams`: returns the operations, and the context if the node was made for one.
    pub fn values_node(
        &self,
        node: GraphNodeHandle,
    ) -> CudaResult<(Vec<ValueOperation>, Option<ContextHandle>)> {
        let state = self.state();
        let of = state.graph_node(node)?;
        let NodeWork::Values(operations) = &of.work else {
            let work = &of.work;
            return Err(invalid(format!(
                "node {:#x} is not a batch of memory operations, but {work}",
                node.0
            )));
        };
        let context = match of.place {
            Place::Context(context) => Some(context),
            Place::Branch(branch) => state.graph(state.graph_of(node)?)?.branches[branch].context,
            Place::Anywhere => None,
        };
        Ok((operations.clone(), context))
    }

    /// `cuGraphHostNodeGetParams`: returns the addresses of the function and of its data.
    pub fn host_node(&self, node: GraphNodeHandle) -> CudaResult<[usize; 2]> {
        match &self.state().graph_node(node)?.work {
            NodeWork::Work(Work::Host(Some(function))) => Ok(function.given),
            other => Err(invalid(format!("node {:#x} is not a host function, but {other}", node.0))),
        }
    }

    /// `cuGraphEventRecordNodeGetEvent`
    pub fn record_node(&self, node: GraphNodeHandle) -> CudaResult<EventHandle> {
        match &self.state().graph_node(node)?.work {
            NodeWork::Record(event) => Ok(*event),
            other => Err(invalid(format!("node {:#x} is not an event record, but {other}", node.0))),
        }
    }

    /// `cuGraphEventWaitNodeGetEvent`
    pub fn wait_node(&self, node: GraphNodeHandle) -> CudaResult<EventHandle> {
        match &self.state().graph_node(node)?.work {
            NodeWork::Wait(event) => Ok(*event),
            other => Err(invalid(format!("node {:#x} is not an event wait, but {other}", node.0))),
        }
    }

    /// `cuGraphKernelNodeSetParams` and the same for other types of nodes, including `cuGraphNodeSetParams`. `context`
    /// is the context in which a copy or memset runs from now on, if it changes.
    ///
    /// # Errors
    /// Returns `InvalidValue` if the node is of another type, and the errors of a new node.
    pub fn change_node(
        &'static self,
        node: GraphNodeHandle,
        parameters: NodeParameters,
        context: Option<ContextHandle>,
    ) -> CudaResult<()> {
        let attributes = self.state().check_kind(node, parameters.kind())?;
        let (work, own) = self.changed_work(parameters, attributes)?;
        let mut state = self.state();
        if let Some(context) = context {
            state.context(context).map_err(|error| invalid(error.message))?;
        }
        let entry = state.graph_node_mut(node)?;
        if let (Some(context), false) = (own.or(context), matches!(entry.place, Place::Branch(_))) {
            entry.place = Place::Context(context);
        }
        entry.work = work;
        Ok(())
    }

    /// `cuGraphExecKernelNodeSetParams` and the same for other types of nodes, including `cuGraphExecNodeSetParams`:
    /// changes later launches. `node` is the graph's node.
    ///
    /// # Errors
    /// Returns `InvalidValue` if the executable graph was not made from the node's graph, if the node is of another
    /// type, or if it would run in another context or on memory of another GPU. Returns the errors of a new node.
    pub fn change_executable(
        &'static self,
        exec: GraphExecHandle,
        node: GraphNodeHandle,
        parameters: NodeParameters,
        context: Option<ContextHandle>,
    ) -> CudaResult<()> {
        let attributes = {
            let state = self.state();
            state.executable_node(exec, node)?;
            state.check_kind(node, parameters.kind())?
        };
        let (work, own) = self.changed_work(parameters, attributes)?;
        let mut state = self.state();
        let at = state.executable_node(exec, node)?;
        let graph = state.exec(exec)?.graph.clone();
        let was = &graph.nodes[at];
        let known = match was.place {
            Place::Context(context) => Some(context),
            _ => graph.branches[was.branch].context,
        };
        if let (Some(known), Some(context)) = (known, own.or(context))
            && known != context
        {
            let (old, new) = (state.describe(known), state.describe(context));
            return Err(invalid(format!("{} runs on {old}, not on {new}", was.work)));
        }
        let place = own.map_or(was.place, Place::Context);
        let is = ExecNode { work, place, call_site: CallSite::here(), ..was.clone() };
        let device = |region: &Region| self.device_of(region.start);
        check_work(was, &is, &device).map_err(|(_, message)| invalid(format!("{}: {message}", is.work)))?;
        Arc::make_mut(&mut state.exec_mut(exec)?.graph).nodes[at].work = is.work;
        Ok(())
    }

    /// Returns the work of changed parameters, and the context that it needs.
    fn changed_work(
        &'static self,
        parameters: NodeParameters,
        LaunchAttributes { is_cooperative, cluster }: LaunchAttributes,
    ) -> CudaResult<(NodeWork, Option<ContextHandle>)> {
        let of_event = |event| {
            let state = self.state();
            let known = state.event(event).map_err(|error| invalid(error.message))?;
            Ok::<_, Error<_>>(known.context)
        };
        Ok(match parameters {
            NodeParameters::Kernel { function, shape, parameters } => {
                let shape = LaunchShape { cluster, ..shape };
                let launch = self.state().kernel_launch(function, shape, parameters, is_cooperative)?;
                let context = launch.context;
                (NodeWork::Work(Work::Kernel(Box::new(launch))), Some(context))
            }
            NodeParameters::Copy(copy) => (NodeWork::Work(self.copy_in_graph(copy)?), None),
            NodeParameters::Set(at, element) => {
                (NodeWork::Work(self.set_work(at, &element, true, &CallSite::here())?), None)
            }
            NodeParameters::Values(operations) => {
                self.check_values(&operations, &CallSite::here())?;
                (NodeWork::Values(operations), None)
            }
            NodeParameters::Host(function) => {
                (NodeWork::Work(self.host_function(&mut self.state(), function)?), None)
            }
            NodeParameters::Record(event) => (NodeWork::Record(event), Some(of_event(event)?)),
            NodeParameters::Wait(event) => {
                of_event(event)?;
                (NodeWork::Wait(event), None)
            }
        })
    }

    /// `cuGraphNodeSetEnabled`: a node that is not enabled does nothing at later launches.
    ///
    /// # Errors
    /// Returns `InvalidValue` unless the node is a kernel, a copy, or a memset.
    pub fn enable_node(
        &self,
        exec: GraphExecHandle,
        node: GraphNodeHandle,
        is_enabled: bool,
    ) -> CudaResult<()> {
        let mut state = self.state();
        let at = state.switchable_node(exec, node)?;
        if let Some(exec) = state.graphs.execs.get_mut(&exec) {
            Arc::make_mut(&mut exec.graph).nodes[at].is_enabled = is_enabled;
        }
        Ok(())
    }

    /// `cuGraphNodeGetEnabled`
    pub fn is_node_enabled(&self, exec: GraphExecHandle, node: GraphNodeHandle) -> CudaResult<bool> {
        let state = self.state();
        let at = state.switchable_node(exec, node)?;
        Ok(state.exec(exec)?.graph.nodes[at].is_enabled)
    }

    /// `cuGraphExecGetFlags`: returns the flags that matter after the instantiation.
    pub fn executable_flags(&self, exec: GraphExecHandle) -> CudaResult<u64> {
        Ok(self.state().exec(exec)?.flags)
    }

    /// `cuGraphKernelNodeGetAttribute`. An attribute that was never set is 0.
    pub fn kernel_attribute(&self, node: GraphNodeHandle, number: u32) -> CudaResult<[u32; 16]> {
        let state = self.state();
        let node_of = state.graph_node(node)?;
        let launch = node_of.work.kernel(node)?;
        let mut value = node_of.attributes.get(&number).copied().unwrap_or_default();
        match number {
            COOPERATIVE => value[0] = u32::from(launch.is_cooperative),
            CLUSTER => value[..3].copy_from_slice(&launch.shape.cluster.unwrap_or_default()),
            _ => {}
        }
        Ok(value)
    }

    /// `cuGraphKernelNodeSetAttribute`: makes a launch cooperative, sets the size of its clusters, or keeps an attribute that
    /// changes nothing.
    ///
    /// # Errors
    /// Returns the errors of a launch.
    pub fn set_kernel_attribute(
        &self,
        node: GraphNodeHandle,
        number: u32,
        value: [u32; 16],
    ) -> CudaResult<()> {
        let mut state = self.state();
        let KernelLaunch { function, mut shape, parameters, is_cooperative, .. } =
            state.graph_node(node)?.work.kernel(node)?.clone();
        let launch = match number {
            COOPERATIVE => Some(state.kernel_launch(function, shape, parameters, value[0] != 0)?),
            CLUSTER => {
                let [x, y, z, ..] = value;
                shape.cluster = (value[..3] != [0; 3]).then_some([x, y, z]);
                Some(state.kernel_launch(function, shape, parameters, is_cooperative)?)
            }
            _ => None,
        };
        let node = state.graph_node_mut(node)?;
        match launch {
            Some(launch) => node.work = NodeWork::Work(Work::Kernel(Box::new(launch))),
            None => node.attributes.insert(number, value),
        }
        Ok(())
    }

    /// `cuGraphKernelNodeCopyAttributes`
    pub fn copy_kernel_attributes(&self, to: GraphNodeHandle, from: GraphNodeHandle) -> CudaResult<()> {
        let attributes = {
            let state = self.state();
            let node = state.graph_node(from)?;
            node.work.kernel(from)?;
            node.attributes.clone()
        };
        for number in [COOPERATIVE, CLUSTER] {
            self.set_kernel_attribute(to, number, self.kernel_attribute(from, number)?)?;
        }
        self.state().graph_node_mut(to)?.attributes = attributes;
        Ok(())
    }

    /// `cuGraphExecChildGraphNodeSetParams`: replaces the parameters of a child graph by those of a graph with the same
    /// edges.
    ///
    /// # Errors
    /// Returns `InvalidValue` if the graph differs in more than its parameters.
    pub fn change_child(
        &self,
        exec: GraphExecHandle,
        node: GraphNodeHandle,
        child: GraphHandle,
    ) -> CudaResult<()> {
        let mut state = self.state();
        let old = state.exec(exec)?.graph.clone();
        let NodeWork::Graph(embedded) = state.graph_node(node)?.work else {
            return Err(invalid(format!("node {:#x} has no graph", node.0)));
        };
        let known = state.graphs.executable(state.graph(embedded)?)?;
        let mut new = state.graphs.executable(state.graph(child)?)?;
        let start = known.nodes.first().and_then(|first| old.nodes.iter().position(|it| it.of == first.of));
        let start = match start {
            Some(start) => start,
            None if known.nodes.is_empty() && new.nodes.is_empty() => return Ok(()),
            None => {
                return Err(invalid(format!("the executable graph was not made from node {:#x}", node.0)));
            }
        };
        let within = old.nodes.get(start..start + known.nodes.len());
        let is_same =
            |within: &[ExecNode]| within.iter().zip(&known.nodes).all(|(it, known)| it.of == known.of);
        let Some(within) = within.filter(|within| is_same(within)) else {
            return Err(invalid("the graph of the node has changed since it was instantiated"));
        };
        let mut was = known;
        was.nodes.iter_mut().zip(within).for_each(|(known, it)| known.work = it.work.clone());
        let device = |region: &Region| self.device_of(region.start);
        super::update::compare(&was, &new, &device)
            .map_err(|failure| invalid(format!("cuGraphExecChildGraphNodeSetParams: {}", failure.message)))?;
        let nodes = &mut Arc::make_mut(&mut state.exec_mut(exec)?.graph).nodes[start..];
        for (old, new) in nodes.iter_mut().zip(new.nodes.drain(..)) {
            (old.work, old.call_site) = (new.work, new.call_site);
        }
        Ok(())
    }
}

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`
const COOPERATIVE: u32 = 2;

/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`
const CLUSTER: u32 = 4;

/// The attributes of a kernel's launch that change what it does.
#[derive(Clone, Copy, Debug, Default)]
struct LaunchAttributes {
    is_cooperative: bool,
    /// The number of blocks in a cluster along each dimension, if it is stated.
    cluster: Option<[u32; 3]>,
}

impl State {
    /// Checks that a node is of a type. Returns what its launch keeps if its parameters change.
    fn check_kind(&self, node: GraphNodeHandle, kind: NodeKind) -> CudaResult<LaunchAttributes> {
        let work = &self.graph_node(node)?.work;
        if kind == NodeKind::Kernel {
            let launch = work.kernel(node)?;
            return Ok(LaunchAttributes {
                is_cooperative: launch.is_cooperative,
                cluster: launch.shape.cluster,
            });
        }
        match work.kind() == kind {
            true => Ok(LaunchAttributes::default()),
            false => {
                Err(invalid(format!("node {:#x} is {work}: the parameters are of another type", node.0)))
            }
        }
    }

    /// Returns the index of the node of an executable graph that was made from a graph's node.
    fn executable_node(&self, exec: GraphExecHandle, node: GraphNodeHandle) -> CudaResult<usize> {
        let graph = &self.exec(exec)?.graph;
        let at = graph.nodes.iter().position(|known| known.of == node);
        at.filter(|_| self.graphs.of_nodes.contains_key(&node))
            .ok_or_else(|| invalid(format!("the executable graph was not made from node {:#x}", node.0)))
    }

    /// Like [`Self::executable_node`], but for a node that can be switched off.
    fn switchable_node(&self, exec: GraphExecHandle, node: GraphNodeHandle) -> CudaResult<usize> {
        let at = self.executable_node(exec, node)?;
        let work = &self.graph_node(node)?.work;
        match work.kind() {
            NodeKind::Kernel | NodeKind::Copy | NodeKind::Set => Ok(at),
            _ => Err(invalid(format!("only kernels, copies, and memsets can be disabled, not {work}"))),
        }
    }
}
