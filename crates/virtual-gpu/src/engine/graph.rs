//! Graphs: captured work that is launched as a whole, repeatedly.
//!
//! A launch runs each captured stream's work on one of the graph's own streams, so that order, time, and deadlocks
//! follow the same rules as for any other work.

use std::sync::Arc;

use super::communication::{CapturedCalls, SharedCalls};
use super::context::ContextHandle;
use super::stream::{Awaited, StreamKind};
use super::work::Work;
use super::{Engine, State};
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::sorted::SortedMap;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

/// A `CUgraph`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GraphHandle(pub u64);

/// A `CUgraphExec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GraphExecHandle(pub u64);

/// Captured work. A node comes after the previous nodes in its branch and after the nodes that it names.
#[derive(Clone, Default)]
pub(super) struct Graph {
    branches: Vec<Branch>,
    /// The nodes, each after all nodes that it depends on.
    pub(super) nodes: Vec<Node>,
}

/// The part of a graph that was captured from one stream.
#[derive(Clone)]
struct Branch {
    captured: StreamHandle,
    context: ContextHandle,
    name: Arc<str>,
}

#[derive(Clone)]
pub(super) struct Node {
    pub(super) branch: usize,
    /// The indices of the nodes that it waits for.
    pub(super) after: Vec<usize>,
    pub(super) work: NodeWork,
    pub(super) call_site: CallSite,
}

/// What a node does at each launch.
#[derive(Clone)]
pub(super) enum NodeWork {
    Work(Work),
    /// The calls that a rank of a communicator launches together.
    Communication(SharedCalls),
}

/// A graph that can be launched.
struct Exec {
    graph: Arc<Graph>,
    /// The streams that run its branches, created at the first launch.
    streams: Vec<StreamHandle>,
    /// The end of the last launch, which the next launch waits for.
    last: Option<Awaited>,
}

/// All graphs.
#[derive(Default)]
pub(super) struct Graphs {
    pub(super) all: SortedMap<GraphHandle, Arc<Graph>>,
    execs: SortedMap<GraphExecHandle, Exec>,
}

impl Graph {
    /// Returns the branch for work captured from `stream`.
    pub(super) fn branch(&mut self, stream: StreamHandle, context: ContextHandle, name: &Arc<str>) -> usize {
        self.branches.iter().position(|branch| branch.captured == stream).unwrap_or_else(|| {
            self.branches.push(Branch { captured: stream, context, name: name.clone() });
            self.branches.len() - 1
        })
    }

    /// Returns the name of the stream that a node was captured from.
    pub(super) fn stream_name(&self, node: usize) -> &str {
        &self.branches[self.nodes[node].branch].name
    }

    /// Returns the first node that is neither in `last` nor a predecessor of a node in `last`.
    pub(super) fn first_not_before(&self, last: &[usize]) -> Option<usize> {
        let mut before = vec![false; self.nodes.len()];
        for &node in last {
            before[node] = true;
        }
        for (at, node) in self.nodes.iter().enumerate().rev() {
            if before[at] {
                node.after.iter().for_each(|&earlier| before[earlier] = true);
            }
        }
        before.iter().position(|&is_before| !is_before)
    }

    /// Adds another graph's nodes after the nodes `after`. Returns the new last nodes.
    pub(super) fn append(&mut self, child: &Graph, after: &[usize]) -> Vec<usize> {
        let start = self.nodes.len();
        let first_branch = self.branches.len();
        self.branches.extend(child.branches.iter().cloned());
        for node in &child.nodes {
            let after = match node.after.as_slice() {
                [] => after.to_vec(),
                own => own.iter().map(|node| node + start).collect(),
            };
            self.nodes.push(Node { branch: node.branch + first_branch, after, ..node.clone() });
        }
        let is_last = |at: &usize| !self.nodes[start..].iter().any(|node| node.after.contains(at));
        match child.nodes.is_empty() {
            true => after.to_vec(),
            false => (start..self.nodes.len()).filter(is_last).collect(),
        }
    }
}

impl Engine {
    /// `cuGraphInstantiateWithFlags`
    ///
    /// # Errors
    /// Returns `InvalidValue` for flags that don't exist or that exclude each other, and `NotSupported` for a launch
    /// from the GPU.
    pub fn instantiate_graph(&self, graph: GraphHandle, flags: u64) -> CudaResult<GraphExecHandle> {
        const AUTO_FREE: u64 = 1;
        const UPLOAD: u64 = 2;
        const DEVICE_LAUNCH: u64 = 4;
        const NODE_PRIORITY: u64 = 8;
        let invalid =
            |what: &str| Error::new(CudaStatus::InvalidValue, format!("cuGraphInstantiateWithFlags: {what}"));
        match flags {
            _ if flags & !(AUTO_FREE | UPLOAD | DEVICE_LAUNCH | NODE_PRIORITY) != 0 => {
                return Err(invalid(&format!("{flags:#x} contains unknown flags")));
            }
            _ if flags & UPLOAD != 0 => {
                return Err(invalid(
                    "CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD is for cuGraphInstantiateWithParams",
                ));
            }
            _ if flags & DEVICE_LAUNCH != 0 && flags & AUTO_FREE != 0 => {
                return Err(invalid("a graph that the GPU launches can't free memory on launch"));
            }
            _ if flags & DEVICE_LAUNCH != 0 => {
                let message = "virtual GPU: CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH is not supported";
                return Err(Error::new(CudaStatus::NotSupported, message));
            }
            _ => {}
        }
        let mut state = self.state();
        let graph = state.graphs.all.get(&graph).ok_or_else(|| not_a_graph(graph))?.clone();
        let handle = GraphExecHandle(state.new_handle());
        state.graphs.execs.insert(handle, Exec { graph, streams: Vec::new(), last: None });
        Ok(handle)
    }

    /// `cuGraphLaunch`: launches a graph after the work enqueued on `stream` and before later work on it. A launch
    /// waits for the previous launch of the same graph.
    pub fn launch_graph(&self, exec: GraphExecHandle, stream: StreamHandle) -> CudaResult<()> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let entry = state.graphs.execs.get(&exec).ok_or_else(|| not_an_exec(exec))?;
        let (graph, last) = (entry.graph.clone(), entry.last.clone());
        if state.is_capturing(stream) {
            return state.add_graph(stream, &graph);
        }
        let streams = state.streams_of_graph(exec, &graph)?;
        for branch in &graph.branches {
            state.check_usable(branch.context)?;
        }
        let call_site = CallSite::here();
        let begin = state.enqueue(stream, Work::Nothing, last.into_iter().collect(), call_site.clone())?;
        let mut done: Vec<Awaited> = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            let after = match node.after.as_slice() {
                [] => vec![begin.clone()],
                after => after.iter().map(|&node| done[node].clone()).collect(),
            };
            done.push(state.launch_node(streams[node.branch], node, after)?);
        }
        let end = state.append(stream, Work::Nothing, done, call_site)?;
        if let Some(exec) = state.graphs.execs.get_mut(&exec) {
            exec.last = Some(end);
        }
        drop(self.run_ready(state));
        Ok(())
    }

    /// `cuGraphUpload`: only checks its arguments, because nothing has to be uploaded before a graph is launched.
    pub fn upload_graph(&self, exec: GraphExecHandle, stream: StreamHandle) -> CudaResult<()> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        state.check_not_captured(stream, "cuGraphUpload")?;
        let known = state.graphs.execs.contains_key(&exec);
        if known { Ok(()) } else { Err(not_an_exec(exec)) }
    }

    /// `cuGraphDestroy`: destroys a graph; executable graphs made from it remain valid.
    pub fn destroy_graph(&self, graph: GraphHandle) -> CudaResult<()> {
        let removed = self.state().graphs.all.remove(&graph);
        removed.map(drop).ok_or_else(|| not_a_graph(graph))
    }

    /// `cuGraphExecDestroy`: returns immediately; a running launch still completes.
    pub fn destroy_graph_exec(&self, exec: GraphExecHandle) -> CudaResult<()> {
        let mut state = self.state();
        let removed = state.graphs.execs.remove(&exec).ok_or_else(|| not_an_exec(exec))?;
        for stream in removed.streams {
            state.retire_stream(stream);
        }
        Ok(())
    }
}

impl State {
    /// Returns communication that is in a graph, executable or not, and where it was captured.
    pub fn graph_with(&self, is_meant: &dyn Fn(&dyn CapturedCalls) -> bool) -> Option<(String, CallSite)> {
        let executable = self.graphs.execs.values().map(|exec| &exec.graph);
        for graph in self.graphs.all.values().chain(executable) {
            for node in &graph.nodes {
                if let NodeWork::Communication(calls) = &node.work
                    && is_meant(&**calls)
                {
                    return Some((calls.to_string(), node.call_site.clone()));
                }
            }
        }
        None
    }

    /// Returns the streams that run a graph's work, one for each branch.
    fn streams_of_graph(&mut self, exec: GraphExecHandle, graph: &Graph) -> CudaResult<Vec<StreamHandle>> {
        let known = self.graphs.execs.get(&exec).map(|exec| exec.streams.clone()).unwrap_or_default();
        if known.len() == graph.branches.len() {
            return Ok(known);
        }
        let mut streams = Vec::new();
        for Branch { context, name, .. } in &graph.branches {
            let device = self.device_of_context(*context)?;
            streams.push(self.new_stream(*context, device, false, StreamKind::OfGraph(name.clone())));
        }
        if let Some(exec) = self.graphs.execs.get_mut(&exec) {
            exec.streams.clone_from(&streams);
        }
        Ok(streams)
    }

    fn launch_node(&mut self, stream: StreamHandle, node: &Node, after: Vec<Awaited>) -> CudaResult<Awaited> {
        match &node.work {
            NodeWork::Work(work) => self.enqueue(stream, work.clone(), after, node.call_site.clone()),
            NodeWork::Communication(calls) => calls.enqueue(self, stream, after),
        }
    }
}

impl std::fmt::Display for NodeWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Work(work) => work.fmt(f),
            Self::Communication(calls) => calls.fmt(f),
        }
    }
}

fn not_a_graph(graph: GraphHandle) -> Error<CudaStatus> {
    Error::new(CudaStatus::InvalidValue, format!("{:#x} is not a graph, or is no longer one", graph.0))
}

fn not_an_exec(exec: GraphExecHandle) -> Error<CudaStatus> {
    Error::new(
        CudaStatus::InvalidValue,
        format!("{:#x} is not an executable graph, or is no longer one", exec.0),
    )
}
