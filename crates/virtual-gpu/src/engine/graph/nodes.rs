//! The nodes of a graph: adding, connecting, changing, and removing them.

use super::{Graph, GraphHandle, GraphNodeHandle, Node, NodeWork, Place, not_a_node};
use crate::engine::context::ContextHandle;
use crate::engine::event::EventHandle;
use crate::engine::host::HostFunction;
use crate::engine::host_memory::{HostRead, HostSide, HostWrite};
use crate::engine::launch::LaunchShape;
use crate::engine::module::FunctionHandle;
use crate::engine::region::Region;
use crate::engine::value::ValueOperation;
use crate::engine::work::Work;
use crate::engine::{Engine, State};
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

/// `CUgraphNodeType`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A kernel, or calls of NCCL, which launch one.
    Kernel = 0,
    /// A copy.
    Copy = 1,
    /// A memset.
    Set = 2,
    /// A function of the program.
    Host = 3,
    /// A graph that the node owns.
    Graph = 4,
    /// Nothing.
    Empty = 5,
    /// A wait for an event.
    Wait = 6,
    /// A record of an event.
    Record = 7,
    /// An allocation of memory that the graph owns.
    Allocate = 10,
    /// A free of such memory.
    Free = 11,
    /// Numbers in memory that are written or waited for.
    Values = 12,
}

/// What a copy node copies at each launch.
pub enum GraphCopy {
    /// Between memory that kernels can access.
    Device {
        /// The destination.
        to: Region,
        /// The source.
        from: Region,
    },
    /// From the host.
    FromHost {
        /// The destination.
        to: Region,
        /// Returns the bytes.
        read: HostRead,
        /// The source.
        host: HostSide,
    },
    /// To the host.
    ToHost {
        /// The source.
        from: Region,
        /// Writes the bytes.
        write: HostWrite,
        /// The destination.
        host: HostSide,
    },
}

impl NodeWork {
    pub(super) fn kind(&self) -> NodeKind {
        match self {
            Self::Communication(_) | Self::Work(Work::Kernel(_) | Work::Collective(_)) => NodeKind::Kernel,
            Self::Work(Work::Nothing) => NodeKind::Empty,
            Self::Work(Work::Record | Work::RecordFor(_)) | Self::Record(_) => NodeKind::Record,
            Self::Work(Work::Wait | Work::WaitElsewhere(_)) | Self::Wait(_) => NodeKind::Wait,
            Self::Work(
                Work::Upload { .. }
                | Work::Download { .. }
                | Work::UploadLater { .. }
                | Work::DownloadLater { .. }
                | Work::Copy { .. },
            ) => NodeKind::Copy,
            Self::Values(_) | Self::Work(Work::Value(_)) => NodeKind::Values,
            Self::Work(Work::Set { .. }) => NodeKind::Set,
            Self::Work(Work::Allocate { .. }) => NodeKind::Allocate,
            Self::Work(Work::Free { .. }) => NodeKind::Free,
            Self::Work(Work::Host(_)) => NodeKind::Host,
            Self::Graph(_) => NodeKind::Graph,
        }
    }
}

impl Graph {
    /// Returns the index of one of its nodes.
    pub(in crate::engine) fn index(&self, node: GraphNodeHandle) -> CudaResult<usize> {
        let at = self.nodes.iter().rposition(|known| known.handle == node);
        at.ok_or_else(|| invalid(format!("node {:#x} is not in the graph", node.0)))
    }

    /// Returns the indices of the nodes that a new node comes after.
    pub(in crate::engine) fn indices(&self, after: &[GraphNodeHandle]) -> CudaResult<Vec<usize>> {
        let mut indices = Vec::new();
        for &node in after {
            let at = self.index(node)?;
            if indices.contains(&at) {
                return Err(invalid(format!("node {:#x} is listed twice among the dependencies", node.0)));
            }
            indices.push(at);
        }
        Ok(indices)
    }

    /// Returns the indices of the nodes of each edge, none of which is listed twice. All of them exist, or none does.
    fn distinct_edges(
        &self,
        edges: &[(GraphNodeHandle, GraphNodeHandle)],
        exist: bool,
    ) -> CudaResult<Vec<(usize, usize)>> {
        let mut distinct = Vec::new();
        for &(from, to) in edges {
            let edge = (self.index(from)?, self.index(to)?);
            if self.nodes[edge.1].after.contains(&edge.0) != exist || distinct.contains(&edge) {
                let what = if exist { "does not depend" } else { "already depends" };
                return Err(invalid(format!("node {:#x} {what} on node {:#x}", to.0, from.0)));
            }
            distinct.push(edge);
        }
        Ok(distinct)
    }

    pub(in crate::engine) fn handles(&self, indices: &[usize]) -> Vec<GraphNodeHandle> {
        indices.iter().map(|&at| self.nodes[at].handle).collect()
    }

    /// Rejects the removal of nodes and edges from a graph that allocates or frees memory.
    fn check_fixed(&self, call: &str) -> CudaResult<()> {
        match self.has_memory() {
            true => Err(invalid(format!(
                "{call}: nothing can be removed from a graph that allocates or frees memory"
            ))),
            false => Ok(()),
        }
    }

    fn remove(&mut self, at: usize) -> Node {
        for node in &mut self.nodes {
            node.after.retain(|&earlier| earlier != at);
            node.after.iter_mut().filter(|earlier| **earlier > at).for_each(|earlier| *earlier -= 1);
        }
        self.nodes.remove(at)
    }
}

impl Engine {
    /// `cuGraphCreate`
    pub fn create_graph(&self) -> GraphHandle {
        self.state().insert_graph(Graph::default())
    }

    /// `cuGraphDestroy`: destroys a graph and its nodes; executable graphs made from it remain valid.
    ///
    /// # Errors
    /// Returns `InvalidValue` if a node of another graph owns the graph.
    pub fn destroy_graph(&self, graph: GraphHandle) -> CudaResult<()> {
        let mut state = self.state();
        if state.graph(graph)?.owner.is_some() {
            return Err(invalid(format!("{:#x} belongs to a node: destroy the node instead", graph.0)));
        }
        state.check_no_capture_into(graph)?;
        state.remove_graph(graph);
        let state = self.destroy_objects(state);
        self.release_graph_memory(state);
        Ok(())
    }

    /// `cuGraphClone`
    pub fn clone_graph(&self, graph: GraphHandle) -> CudaResult<GraphHandle> {
        self.state().copy_graph(graph, None)
    }

    /// `cuGraphNodeFindInClone`: returns the copy of a node in a clone of its graph.
    pub fn node_in_clone(&self, node: GraphNodeHandle, clone: GraphHandle) -> CudaResult<GraphNodeHandle> {
        let state = self.state();
        let copy = state.graph(clone)?.nodes.iter().find(|copy| copy.original == Some(node));
        let copy =
            copy.ok_or_else(|| invalid(format!("graph {:#x} has no copy of node {:#x}", clone.0, node.0)));
        copy.map(|copy| copy.handle)
    }

    /// `cuGraphAddEmptyNode`
    pub fn add_empty_node(
        &self,
        graph: GraphHandle,
        after: &[GraphNodeHandle],
    ) -> CudaResult<GraphNodeHandle> {
        let work = NodeWork::Work(Work::Nothing);
        self.state().add_graph_node(graph, after, Place::Anywhere, work)
    }

    /// `cuGraphAddKernelNode`. `parameters` are packed as the kernel's own parameter list requires.
    pub fn add_kernel_node(
        &self,
        graph: GraphHandle,
        after: &[GraphNodeHandle],
        function: FunctionHandle,
        shape: LaunchShape,
        parameters: Vec<u8>,
    ) -> CudaResult<GraphNodeHandle> {
        let mut state = self.state();
        let launch = state.kernel_launch(function, shape, parameters, false)?;
        let place = Place::Context(launch.context);
        state.add_graph_node(graph, after, place, NodeWork::Work(Work::Kernel(Box::new(launch))))
    }

    /// `cuGraphAddMemcpyNode`
    ///
    /// # Errors
    /// Returns `InvalidValue` if the context is not one, or if a row is not in any allocation.
    pub fn add_copy_node(
        &self,
        graph: GraphHandle,
        after: &[GraphNodeHandle],
        copy: GraphCopy,
        context: ContextHandle,
    ) -> CudaResult<GraphNodeHandle> {
        let work = self.copy_in_graph(copy)?;
        let mut state = self.state();
        state.context(context).map_err(|error| invalid(error.message))?;
        state.add_graph_node(graph, after, Place::Context(context), NodeWork::Work(work))
    }

    /// `cuGraphAddMemsetNode`
    ///
    /// # Errors
    /// Returns `InvalidContext` if the context is not one, and the errors of [`Self::set`].
    pub fn add_set_node(
        &self,
        graph: GraphHandle,
        after: &[GraphNodeHandle],
        (at, element): (Region, &[u8]),
        context: ContextHandle,
    ) -> CudaResult<GraphNodeHandle> {
        let work = self.set_work(at, element, true, &CallSite::here())?;
        let mut state = self.state();
        let to_invalid = |error: Error<_>| Error::new(CudaStatus::InvalidContext, error.message);
        state.context(context).map_err(to_invalid)?;
        state.add_graph_node(graph, after, Place::Context(context), NodeWork::Work(work))
    }

    /// `cuGraphAddBatchMemOpNode`
    ///
    /// # Errors
    /// Returns `InvalidValue` if the context is not one, or for a bad address.
    pub fn add_values_node(
        &self,
        graph: GraphHandle,
        after: &[GraphNodeHandle],
        operations: Vec<ValueOperation>,
        context: ContextHandle,
    ) -> CudaResult<GraphNodeHandle> {
        self.check_values(&operations, &CallSite::here())?;
        let mut state = self.state();
        state.context(context).map_err(|error| invalid(error.message))?;
        state.add_graph_node(graph, after, Place::Context(context), NodeWork::Values(operations))
    }

    /// `cuGraphAddHostNode`
    pub fn add_host_node(
        &'static self,
        graph: GraphHandle,
        after: &[GraphNodeHandle],
        function: HostFunction,
    ) -> CudaResult<GraphNodeHandle> {
        let mut state = self.state();
        let work = self.host_function(&mut state, function)?;
        state.add_graph_node(graph, after, Place::Anywhere, NodeWork::Work(work))
    }

    /// `cuGraphAddChildGraphNode`: adds a node with a copy of another graph.
    pub fn add_child_graph_node(
        &self,
        graph: GraphHandle,
        after: &[GraphNodeHandle],
        child: GraphHandle,
    ) -> CudaResult<GraphNodeHandle> {
        let mut state = self.state();
        state.graph(graph)?.indices(after)?;
        let copy = state.copy_graph(child, None)?;
        let node = state.add_graph_node(graph, after, Place::Anywhere, NodeWork::Graph(copy))?;
        state.graph_mut(copy)?.owner = Some(node);
        Ok(node)
    }

    /// `cuGraphAddNode` with `CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE`: adds a node that owns another graph from now on.
    ///
    /// # Errors
    /// Returns `InvalidValue` if the graph already belongs to a node, or if it contains the one that would own it.
    pub fn move_child_graph(
        &self,
        graph: GraphHandle,
        after: &[GraphNodeHandle],
        child: GraphHandle,
    ) -> CudaResult<GraphNodeHandle> {
        let mut state = self.state();
        if state.graph(child)?.owner.is_some() {
            return Err(invalid(format!("{:#x} already belongs to a node", child.0)));
        }
        state.check_no_capture_into(child)?;
        let mut outer = Some(graph);
        while let Some(graph) = outer {
            if graph == child {
                return Err(invalid(format!("graph {:#x} can't contain itself", child.0)));
            }
            outer = state.graph(graph)?.owner.map(|node| state.graph_of(node)).transpose()?;
        }
        let node = state.add_graph_node(graph, after, Place::Anywhere, NodeWork::Graph(child))?;
        state.graph_mut(child)?.owner = Some(node);
        Ok(node)
    }

    /// `cuGraphChildGraphNodeGetGraph`
    pub fn child_graph(&self, node: GraphNodeHandle) -> CudaResult<GraphHandle> {
        match self.state().graph_node(node)?.work {
            NodeWork::Graph(graph) => Ok(graph),
            _ => Err(invalid(format!("node {:#x} has no graph", node.0))),
        }
    }

    /// `cuGraphAddEventRecordNode`
    pub fn add_record_node(
        &self,
        graph: GraphHandle,
        after: &[GraphNodeHandle],
        event: EventHandle,
    ) -> CudaResult<GraphNodeHandle> {
        let mut state = self.state();
        let context = state.event(event).map_err(|error| invalid(error.message))?.context;
        state.add_graph_node(graph, after, Place::Context(context), NodeWork::Record(event))
    }

    /// `cuGraphAddEventWaitNode`
    pub fn add_wait_node(
        &self,
        graph: GraphHandle,
        after: &[GraphNodeHandle],
        event: EventHandle,
    ) -> CudaResult<GraphNodeHandle> {
        let mut state = self.state();
        state.event(event).map_err(|error| invalid(error.message))?;
        state.add_graph_node(graph, after, Place::Anywhere, NodeWork::Wait(event))
    }

    /// `cuGraphDestroyNode`
    pub fn destroy_graph_node(&self, node: GraphNodeHandle) -> CudaResult<()> {
        let mut state = self.state();
        let graph = state.graph_of(node)?;
        state.check_no_capture_into(graph)?;
        let graph = state.graph_mut(graph)?;
        graph.check_fixed("cuGraphDestroyNode")?;
        let at = graph.index(node)?;
        let removed = graph.remove(at);
        state.graphs.of_nodes.remove(&node);
        if let NodeWork::Graph(child) = removed.work {
            state.remove_graph(child);
        }
        let state = self.destroy_objects(state);
        self.release_graph_memory(state);
        Ok(())
    }

    /// `cuGraphAddDependencies`: makes the second node of each edge come after the first.
    ///
    /// # Errors
    /// Returns `InvalidValue` and adds no edge if a node is not in the graph or an edge exists.
    pub fn add_graph_edges(
        &self,
        graph: GraphHandle,
        edges: &[(GraphNodeHandle, GraphNodeHandle)],
    ) -> CudaResult<()> {
        let mut state = self.state();
        let graph = state.graph_mut(graph)?;
        let nodes = graph.distinct_edges(edges, false)?;
        nodes.into_iter().for_each(|(from, to)| graph.nodes[to].after.push(from));
        Ok(())
    }

    /// `cuGraphRemoveDependencies`
    ///
    /// # Errors
    /// Returns `InvalidValue` and removes no edge if a node is not in the graph or an edge does not exist.
    pub fn remove_graph_edges(
        &self,
        graph: GraphHandle,
        edges: &[(GraphNodeHandle, GraphNodeHandle)],
    ) -> CudaResult<()> {
        let mut state = self.state();
        let graph = state.graph_mut(graph)?;
        graph.check_fixed("cuGraphRemoveDependencies")?;
        let nodes = graph.distinct_edges(edges, true)?;
        nodes.into_iter().for_each(|(from, to)| graph.nodes[to].after.retain(|&earlier| earlier != from));
        Ok(())
    }

    /// `cuGraphGetNodes`
    pub fn graph_nodes(&self, graph: GraphHandle) -> CudaResult<Vec<GraphNodeHandle>> {
        Ok(self.state().graph(graph)?.nodes.iter().map(|node| node.handle).collect())
    }

    /// `cuGraphGetRootNodes`: returns the nodes that come after no other node.
    pub fn root_nodes(&self, graph: GraphHandle) -> CudaResult<Vec<GraphNodeHandle>> {
        let state = self.state();
        let roots = state.graph(graph)?.nodes.iter().filter(|node| node.after.is_empty());
        Ok(roots.map(|node| node.handle).collect())
    }

    /// `cuGraphGetEdges`
    pub fn graph_edges(&self, graph: GraphHandle) -> CudaResult<Vec<(GraphNodeHandle, GraphNodeHandle)>> {
        let state = self.state();
        let graph = state.graph(graph)?;
        let edges = graph.nodes.iter().flat_map(|to| to.after.iter().map(move |&from| (from, to.handle)));
        Ok(edges.map(|(from, to)| (graph.nodes[from].handle, to)).collect())
    }

    /// `cuGraphNodeGetDependencies`
    pub fn dependencies(&self, node: GraphNodeHandle) -> CudaResult<Vec<GraphNodeHandle>> {
        let state = self.state();
        let graph = state.graph(state.graph_of(node)?)?;
        Ok(graph.handles(&graph.nodes[graph.index(node)?].after))
    }

    /// `cuGraphNodeGetDependentNodes`
    pub fn dependent_nodes(&self, node: GraphNodeHandle) -> CudaResult<Vec<GraphNodeHandle>> {
        let state = self.state();
        let graph = state.graph(state.graph_of(node)?)?;
        let at = graph.index(node)?;
        let dependents = graph.nodes.iter().filter(|other| other.after.contains(&at));
        Ok(dependents.map(|node| node.handle).collect())
    }

    /// `cuGraphNodeGetType`
    pub fn node_kind(&self, node: GraphNodeHandle) -> CudaResult<NodeKind> {
        Ok(self.state().graph_node(node)?.work.kind())
    }

    /// Returns whether a handle is that of a node.
    pub fn is_graph_node(&self, node: GraphNodeHandle) -> bool {
        self.state().graphs.of_nodes.contains_key(&node)
    }
}

impl State {
    /// Rejects the removal of a graph, or of its nodes, that is getting the nodes of a capture.
    fn check_no_capture_into(&self, graph: GraphHandle) -> CudaResult<()> {
        match self.captures.are_into(graph) {
            true => {
                Err(invalid(format!("graph {:#x} is getting the nodes of a capture: end it first", graph.0)))
            }
            false => Ok(()),
        }
    }

    pub(super) fn graph_of(&self, node: GraphNodeHandle) -> CudaResult<GraphHandle> {
        self.graphs.of_nodes.get(&node).copied().ok_or_else(|| not_a_node(node))
    }

    pub(super) fn graph_node(&self, node: GraphNodeHandle) -> CudaResult<&Node> {
        let graph = self.graph(self.graph_of(node)?)?;
        Ok(&graph.nodes[graph.index(node)?])
    }

    pub(super) fn graph_node_mut(&mut self, node: GraphNodeHandle) -> CudaResult<&mut Node> {
        let graph = self.graph_of(node)?;
        let graph = self.graph_mut(graph)?;
        let at = graph.index(node)?;
        Ok(&mut graph.nodes[at])
    }

    /// Adds a node, and checks the nodes that it comes after.
    pub(super) fn add_graph_node(
        &mut self,
        graph: GraphHandle,
        after: &[GraphNodeHandle],
        place: Place,
        work: NodeWork,
    ) -> CudaResult<GraphNodeHandle> {
        let after = self.graph(graph)?.indices(after)?;
        let handle = GraphNodeHandle(self.new_handle());
        let node = Node::new(handle, place, after, work, CallSite::here());
        self.graph_mut(graph)?.nodes.push(node);
        self.graphs.of_nodes.insert(handle, graph);
        Ok(handle)
    }

    /// Returns whether a graph, or a graph in it, allocates or frees memory.
    fn contains_memory(&self, graph: &Graph) -> bool {
        let is_of_child = |node: &Node| match node.work {
            NodeWork::Graph(child) => {
                self.graphs.all.get(&child).is_some_and(|child| self.contains_memory(child))
            }
            _ => false,
        };
        graph.has_memory() || graph.nodes.iter().any(is_of_child)
    }

    /// Copies a graph and the graphs in it.
    fn copy_graph(&mut self, graph: GraphHandle, owner: Option<GraphNodeHandle>) -> CudaResult<GraphHandle> {
        let mut copy = self.graph(graph)?.clone();
        if self.contains_memory(&copy) {
            return Err(invalid(
                "a graph that allocates or frees memory can't be copied: neither cloned nor added to another graph",
            ));
        }
        copy.owner = owner;
        self.graphs.objects.retain_all(&copy.objects);
        for node in &mut copy.nodes {
            node.original = Some(node.handle);
        }
        let copy = self.insert_graph(copy);
        let children = self.graph(copy)?.nodes.iter().enumerate().filter_map(|(at, node)| match node.work {
            NodeWork::Graph(child) => Some((at, node.handle, child)),
            _ => None,
        });
        for (at, node, child) in children.collect::<Vec<_>>() {
            let child = self.copy_graph(child, Some(node))?;
            self.graph_mut(copy)?.nodes[at].work = NodeWork::Graph(child);
        }
        Ok(copy)
    }

    /// Removes a graph, its nodes, and the graphs in it.
    pub(in crate::engine) fn remove_graph(&mut self, graph: GraphHandle) {
        let Some(removed) = self.graphs.all.remove(&graph) else { return };
        self.graphs.objects.release_all(&removed.objects);
        for node in removed.nodes {
            self.graphs.of_nodes.remove(&node.handle);
            if let NodeWork::Graph(child) = node.work {
                self.remove_graph(child);
            }
        }
    }
}
