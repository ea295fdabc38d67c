//! Graphs: work that is launched as a whole, repeatedly. A program captures it from streams, or adds each node itself.
//!
//! Instantiating a graph orders its nodes and assigns each of them to a branch ([`executable`]). A launch runs each
//! branch on one of the graph's own streams, so that order, time, and deadlocks follow the same rules as for any other
//! work.

mod dot;
mod executable;
mod memory;
mod nodes;
mod objects;
mod parameters;
mod update;

use std::sync::Arc;

use super::State;
use super::communication::{CapturedCalls, SharedCalls};
use super::context::ContextHandle;
use super::event::EventHandle;
use super::value::ValueOperation;
use super::work::Work;
use executable::Exec;
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::sorted::SortedMap;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, invalid};

pub(super) use executable::Executable;
pub use memory::GraphMemoryFigure;
pub use nodes::{GraphCopy, NodeKind};
pub use objects::UserObjectHandle;
pub use parameters::{CopySide, KernelNode, NodeParameters};
pub use update::{UpdateFailure, UpdateResult};

/// A `CUgraph`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GraphHandle(pub u64);

/// A `CUgraphNode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GraphNodeHandle(pub u64);

/// A `CUgraphExec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GraphExecHandle(pub u64);

/// Nodes, and what each of them comes after.
#[derive(Clone, Default)]
pub(super) struct Graph {
    branches: Vec<Branch>,
    /// The nodes, in the order in which they were added.
    pub(super) nodes: Vec<Node>,
    /// The node of another graph that owns this one.
    pub(super) owner: Option<GraphNodeHandle>,
    /// The user objects that it keeps alive.
    objects: objects::References,
}

/// Nodes that run on the same stream of a launch.
#[derive(Clone)]
struct Branch {
    /// The stream from which the nodes were captured.
    captured: Option<StreamHandle>,
    /// The context; `None` for that of the stream on which the graph is launched.
    context: Option<ContextHandle>,
    name: Arc<str>,
}

/// Where a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In this branch.
    Branch(usize),
    /// In any branch of this context.
    Context(ContextHandle),
    /// In any branch.
    Anywhere,
}

#[derive(Clone)]
pub(super) struct Node {
    /// Its handle.
    handle: GraphNodeHandle,
    place: Place,
    /// The indices of the nodes that it comes after.
    after: Vec<usize>,
    pub(super) work: NodeWork,
    pub(super) call_site: CallSite,
    /// The node of which it is a copy.
    original: Option<GraphNodeHandle>,
    /// A kernel's attributes that change nothing, by number.
    attributes: SortedMap<u32, [u32; 16]>,
}

/// What a node does at each launch.
#[derive(Clone)]
pub(super) enum NodeWork {
    Work(Work),
    /// Writes numbers and waits for numbers, one after the other.
    Values(Vec<ValueOperation>),
    /// The calls that a rank of a communicator launches together.
    Communication(SharedCalls),
    /// Records an event.
    Record(EventHandle),
    /// Waits for the last record of an event.
    Wait(EventHandle),
    /// Launches a graph that the node owns.
    Graph(GraphHandle),
}

/// All graphs.
#[derive(Default)]
pub(super) struct Graphs {
    all: SortedMap<GraphHandle, Graph>,
    /// The graph of each node.
    of_nodes: SortedMap<GraphNodeHandle, GraphHandle>,
    execs: SortedMap<GraphExecHandle, Exec>,
    memory: memory::GraphMemory,
    objects: objects::UserObjects,
}

impl Node {
    fn new(
        handle: GraphNodeHandle,
        place: Place,
        after: Vec<usize>,
        work: NodeWork,
        call_site: CallSite,
    ) -> Self {
        Self { handle, place, after, work, call_site, original: None, attributes: SortedMap::default() }
    }
}

impl Graphs {
    pub(super) fn get_mut(&mut self, graph: GraphHandle) -> Option<&mut Graph> {
        self.all.get_mut(&graph)
    }
}

impl Graph {
    /// Adds work that was captured from a stream, and returns its index.
    pub(super) fn add_captured(
        &mut self,
        (stream, context, name): (StreamHandle, ContextHandle, &Arc<str>),
        after: Vec<usize>,
        work: NodeWork,
        call_site: CallSite,
    ) -> usize {
        let known = self.branches.iter().position(|branch| branch.captured == Some(stream));
        let branch = known.unwrap_or_else(|| {
            let (captured, context) = (Some(stream), Some(context));
            self.branches.push(Branch { captured, context, name: name.clone() });
            self.branches.len() - 1
        });
        let (handle, place) = (GraphNodeHandle::default(), Place::Branch(branch));
        self.nodes.push(Node::new(handle, place, after, work, call_site));
        self.nodes.len() - 1
    }

    /// Returns the name of the stream that a node was captured from.
    pub(super) fn stream_name(&self, node: usize) -> &str {
        match self.nodes[node].place {
            Place::Branch(branch) => &self.branches[branch].name,
            Place::Context(_) | Place::Anywhere => "a graph",
        }
    }

    /// Returns the first of `nodes` that no node comes after, and that is not in `last`.
    pub(super) fn first_not_before(
        &self,
        nodes: &[GraphNodeHandle],
        last: &[GraphNodeHandle],
    ) -> Option<usize> {
        let mut before = vec![false; self.nodes.len()];
        let mut next: Vec<usize> = last.iter().filter_map(|&node| self.index(node).ok()).collect();
        while let Some(at) = next.pop() {
            if !std::mem::replace(&mut before[at], true) {
                next.extend(&self.nodes[at].after);
            }
        }
        let nodes = nodes.iter().filter_map(|&node| self.index(node).ok());
        let is_last = |at: &usize| !self.nodes.iter().any(|node| node.after.contains(at));
        nodes.filter(|&at| !before[at]).filter(is_last).min()
    }

    /// Adds an executable graph's nodes after the nodes `after`. Returns the new last nodes.
    pub(super) fn append(&mut self, child: &Executable, after: &[usize]) -> Vec<usize> {
        let start = self.nodes.len();
        let first_branch = self.branches.len();
        self.branches.extend(child.branches.iter().cloned());
        for node in &child.nodes {
            let after = match node.after.as_slice() {
                [] => after.to_vec(),
                own => own.iter().map(|node| node + start).collect(),
            };
            let (handle, place) = (GraphNodeHandle::default(), Place::Branch(node.branch + first_branch));
            let (work, call_site) = (node.work.clone(), node.call_site.clone());
            self.nodes.push(Node::new(handle, place, after, work, call_site));
        }
        let is_last = |at: &usize| !self.nodes[start..].iter().any(|node| node.after.contains(at));
        match child.nodes.is_empty() {
            true => after.to_vec(),
            false => (start..self.nodes.len()).filter(is_last).collect(),
        }
    }
}

impl State {
    /// Returns communication that is in a graph, executable or not, and where it was captured.
    pub fn graph_with(&self, is_meant: &dyn Fn(&dyn CapturedCalls) -> bool) -> Option<(String, CallSite)> {
        let nodes = self.graphs.all.values().flat_map(|graph| &graph.nodes);
        let nodes = nodes.map(|node| (&node.work, &node.call_site));
        let executable = self.graphs.execs.values().flat_map(|exec| &exec.graph.nodes);
        for (work, call_site) in nodes.chain(executable.map(|node| (&node.work, &node.call_site))) {
            if let NodeWork::Communication(calls) = work
                && is_meant(&**calls)
            {
                return Some((calls.to_string(), call_site.clone()));
            }
        }
        None
    }

    /// Gives a node that was captured a handle.
    pub(super) fn name_node(&mut self, graph: GraphHandle, at: usize) -> GraphNodeHandle {
        let handle = GraphNodeHandle(self.new_handle());
        if let Some(node) = self.graphs.get_mut(graph).and_then(|graph| graph.nodes.get_mut(at)) {
            node.handle = handle;
            self.graphs.of_nodes.insert(handle, graph);
        }
        handle
    }

    /// Makes a graph available to the program, with a handle for it and for each node.
    pub(super) fn insert_graph(&mut self, mut graph: Graph) -> GraphHandle {
        let handle = GraphHandle(self.new_handle());
        for node in &mut graph.nodes {
            node.handle = GraphNodeHandle(self.new_handle());
            self.graphs.of_nodes.insert(node.handle, handle);
        }
        self.graphs.all.insert(handle, graph);
        handle
    }

    pub(super) fn graph(&self, graph: GraphHandle) -> CudaResult<&Graph> {
        self.graphs.all.get(&graph).ok_or_else(|| not_a_graph(graph))
    }

    fn graph_mut(&mut self, graph: GraphHandle) -> CudaResult<&mut Graph> {
        self.graphs.all.get_mut(&graph).ok_or_else(|| not_a_graph(graph))
    }
}

impl std::fmt::Display for NodeWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Work(work) => work.fmt(f),
            Self::Values(_) => f.write_str("a batch of memory operations"),
            Self::Communication(calls) => calls.fmt(f),
            Self::Record(_) => f.write_str("an event record"),
            Self::Wait(_) => f.write_str("an event wait"),
            Self::Graph(_) => f.write_str("a graph"),
        }
    }
}

fn not_a_graph(graph: GraphHandle) -> Error<CudaStatus> {
    invalid(format!("{:#x} is not a graph, or is no longer one", graph.0))
}

fn not_a_node(node: GraphNodeHandle) -> Error<CudaStatus> {
    invalid(format!("{:#x} is not a node of a graph, or is no longer one", node.0))
}
