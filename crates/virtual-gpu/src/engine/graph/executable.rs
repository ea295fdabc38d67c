//! Executable graphs: nodes in an order in which they can be enqueued, each in a branch.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::super::stream::{Awaited, StreamKind};
use super::super::{Engine, State};
use super::objects::References;
use super::{
    Branch, Graph, GraphExecHandle, GraphHandle, GraphNodeHandle, Graphs, NodeWork, Place, invalid,
    not_a_graph,
};
use crate::engine::context::ContextHandle;
use crate::engine::event::EventHandle;
use crate::engine::work::Work;
use crate::order::OF_NODES;
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`
const AUTO_FREE: u64 = 1;

/// A graph that can be launched.
pub(super) struct Exec {
    pub(super) graph: Arc<Executable>,
    /// The streams that run its branches, created at the first launch.
    streams: Vec<StreamHandle>,
    /// The end of the last launch, which the next launch waits for.
    pub(super) last: Option<Awaited>,
    /// The graph from which it was made.
    pub(super) of: GraphHandle,
    /// `CUgraphInstantiate_flags`
    pub(super) flags: u64,
    /// The user objects that it keeps alive.
    pub(super) objects: References,
}

/// The nodes of a graph and of the graphs in it.
#[derive(Clone, Default)]
pub(in crate::engine) struct Executable {
    pub(super) branches: Vec<Branch>,
    /// The nodes, each after all nodes that it depends on.
    pub(super) nodes: Vec<ExecNode>,
}

#[derive(Clone)]
pub(super) struct ExecNode {
    /// The node of the graph from which it was made.
    pub(super) of: GraphNodeHandle,
    pub(super) branch: usize,
    /// Where the graph's node may run.
    pub(super) place: Place,
    /// The indices of the nodes that it waits for.
    pub(super) after: Vec<usize>,
    pub(super) work: NodeWork,
    pub(super) call_site: CallSite,
    /// Whether launches run it.
    pub(super) is_enabled: bool,
}

impl Graphs {
    /// Orders the nodes of a graph and of the graphs in it, and assigns each to a branch.
    ///
    /// # Errors
    /// Returns `InvalidValue` if nodes depend on each other.
    pub(super) fn executable(&self, graph: &Graph) -> CudaResult<Executable> {
        let mut executable = Executable::default();
        self.flatten(graph, &[], &mut executable)?;
        executable.choose_branches();
        Ok(executable)
    }

    /// Adds a graph's nodes after the nodes `after`. Returns the new last nodes.
    fn flatten(&self, graph: &Graph, after: &[usize], to: &mut Executable) -> CudaResult<Vec<usize>> {
        let first_branch = to.branches.len();
        to.branches.extend(graph.branches.iter().cloned());
        let mut ends: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes.len()];
        let mut is_last = vec![true; graph.nodes.len()];
        for at in in_order(graph)? {
            let node = &graph.nodes[at];
            let mut own_after = if node.after.is_empty() { after.to_vec() } else { Vec::new() };
            for &earlier in &node.after {
                is_last[earlier] = false;
                let new: Vec<_> = ends[earlier].iter().filter(|end| !own_after.contains(end)).collect();
                own_after.extend(new);
            }
            if let NodeWork::Graph(child) = &node.work {
                let child = self.all.get(child).ok_or_else(|| not_a_graph(*child))?;
                ends[at] = self.flatten(child, &own_after, to)?;
                continue;
            }
            let place = match node.place {
                Place::Branch(branch) => Place::Branch(branch + first_branch),
                place => place,
            };
            ends[at] = vec![to.nodes.len()];
            to.nodes.push(ExecNode {
                of: node.handle,
                branch: 0,
                place,
                after: own_after,
                work: node.work.clone(),
                call_site: node.call_site.clone(),
                is_enabled: true,
            });
        }
        let last = ends.into_iter().zip(is_last).filter(|(_, is_last)| *is_last);
        let mut last: Vec<usize> = last.flat_map(|(ends, _)| ends).collect();
        last.sort_unstable();
        last.dedup();
        if graph.nodes.is_empty() { Ok(after.to_vec()) } else { Ok(last) }
    }
}

/// Returns the indices of a graph's nodes, each after those of all nodes that it depends on, and otherwise in the order
/// in which they were added.
///
/// # Errors
/// Returns the index of a node that is a part of a cycle, or that comes after one.
fn order_of(graph: &Graph) -> Result<Vec<usize>, usize> {
    let mut dependents = vec![Vec::new(); graph.nodes.len()];
    let mut missing = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        node.after.iter().for_each(|&earlier| dependents[earlier].push(at));
        missing.push(node.after.len());
    }
    let ready = missing.iter().enumerate().filter(|(_, missing)| **missing == 0);
    let mut ready: BinaryHeap<_> = ready.map(|(at, _)| Reverse(at)).collect();
    let mut order = Vec::new();
    while let Some(Reverse(at)) = ready.pop() {
        order.push(at);
        for &dependent in &dependents[at] {
            missing[dependent] -= 1;
            if missing[dependent] == 0 {
                ready.push(Reverse(dependent));
            }
        }
    }
    missing.iter().position(|&missing| missing > 0).map_or(Ok(order), Err)
}

/// Like [`order_of`], but returns an error that names the node.
fn in_order(graph: &Graph) -> CudaResult<Vec<usize>> {
    order_of(graph).map_err(|at| {
        let node = &graph.nodes[at];
        let line = node.call_site.in_parentheses();
        invalid(format!(
            "cuGraphInstantiateWithFlags: {} is a part of a cycle, or comes after one{line}: remove a dependency",
            node.work
        ))
    })
}

impl Executable {
    /// Assigns each node to a branch. A node that may run anywhere continues a branch that it comes after anyway, so
    /// that branches add no order.
    fn choose_branches(&mut self) {
        let captured = self.branches.len();
        // For each node, how many of each branch's nodes are done once it is done.
        let mut clocks: Vec<Vec<usize>> = Vec::new();
        let mut lengths = vec![0; captured];
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            let mut clock = vec![0; lengths.len()];
            for &earlier in &node.after {
                for (own, &other) in clock.iter_mut().zip(&clocks[earlier]) {
                    *own = (*own).max(other);
                }
            }
            let (place, after) = (node.place, node.after.clone());
            let context = match place {
                Place::Context(context) => Some(context),
                Place::Branch(_) | Place::Anywhere => None,
            };
            let may_continue = |branch: &usize| {
                let has = self.branches[*branch].context;
                *branch >= captured
                    && clock[*branch] == lengths[*branch]
                    && (context.is_none() || has.is_none() || has == context)
            };
            let branch = match place {
                Place::Branch(branch) => branch,
                _ => {
                    let direct = after.iter().map(|&earlier| self.nodes[earlier].branch).find(&may_continue);
                    let found = direct.or_else(|| (captured..self.branches.len()).find(&may_continue));
                    found.unwrap_or_else(|| {
                        let name = format!("{OF_NODES}{}", self.branches.len() - captured + 1);
                        self.branches.push(Branch { captured: None, context, name: name.into() });
                        lengths.push(0);
                        clock.push(0);
                        self.branches.len() - 1
                    })
                }
            };
            if context.is_some() {
                self.branches[branch].context = context;
            }
            self.nodes[at].branch = branch;
            lengths[branch] += 1;
            clock[branch] = lengths[branch];
            clocks.push(clock);
        }
    }
}

impl Engine {
    /// Returns a node of a graph that is a part of a cycle, or that comes after one.
    pub fn node_in_cycle(&self, graph: GraphHandle) -> CudaResult<Option<GraphNodeHandle>> {
        let state = self.state();
        let graph = state.graph(graph)?;
        Ok(order_of(graph).err().map(|at| graph.nodes[at].handle))
    }

    /// `cuGraphInstantiateWithFlags`
    ///
    /// # Errors
    /// Returns `InvalidValue` for flags that don't exist or that exclude each other, and `NotSupported` for a launch
    /// from the GPU.
    pub fn instantiate_graph(&self, graph: GraphHandle, flags: u64) -> CudaResult<GraphExecHandle> {
        const DEVICE_LAUNCH: u64 = 4;
        const NODE_PRIORITY: u64 = 8;
        let invalid =
            |what: &str| Error::new(CudaStatus::InvalidValue, format!("cuGraphInstantiateWithFlags: {what}"));
        match flags {
            _ if flags & !(AUTO_FREE | DEVICE_LAUNCH | NODE_PRIORITY) != 0 => {
                return Err(invalid(&format!("{flags:#x} contains unknown flags")));
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
        let made = state.graphs.executable(state.graph(graph)?)?;
        if made.has_memory() && state.graphs.execs.values().any(|exec| exec.of == graph) {
            return Err(invalid(
                "a graph that allocates or frees memory can be instantiated only once at a time: \
                 call cuGraphExecDestroy first",
            ));
        }
        let handle = GraphExecHandle(state.new_handle());
        let objects = state.references_of(state.graph(graph)?);
        state.graphs.objects.retain_all(&objects);
        let exec = Exec { graph: made.into(), streams: Vec::new(), last: None, of: graph, flags, objects };
        state.graphs.execs.insert(handle, exec);
        Ok(handle)
    }

    /// `cuGraphLaunch`: launches a graph after the work enqueued on `stream` and before later work on it. A launch
    /// waits for the previous launch of the same graph.
    pub fn launch_graph(&self, exec: GraphExecHandle, stream: StreamHandle) -> CudaResult<()> {
        let mut state = self.state();
        let stream = state.resolve_stream(stream)?;
        let entry = state.exec(exec)?;
        let (graph, last, flags) = (entry.graph.clone(), entry.last.clone(), entry.flags);
        if state.is_capturing(stream) {
            return state.add_graph(stream, &graph);
        }
        state.check_events(&graph)?;
        let of_stream = state.last_of(stream)?.0;
        let streams = state.streams_of_graph(exec, &graph, of_stream)?;
        for branch in &graph.branches {
            state.check_usable(branch.context.unwrap_or(of_stream))?;
        }
        let memory = state.memory_of_launch(&graph, flags & AUTO_FREE != 0)?;
        state.reserve_for_launch(&memory)?;
        let call_site = CallSite::here();
        let mut begin =
            state.enqueue(stream, Work::Nothing, last.into_iter().collect(), call_site.clone())?;
        for at in memory.freed_first {
            let work = Work::Free { at, of_graph: true };
            begin = state.append(stream, work, Vec::new(), call_site.clone())?;
            let by = state.enqueued;
            state.end_life(at, by, call_site.clone());
        }
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
        state.check_not_captured(stream, &"cuGraphUpload")?;
        state.exec(exec).map(|_| ())
    }

    /// `cuGraphExecDestroy`: returns immediately; a running launch still completes.
    pub fn destroy_graph_exec(&self, exec: GraphExecHandle) -> CudaResult<()> {
        let mut state = self.state();
        let removed = state.graphs.execs.remove(&exec).ok_or_else(|| not_an_exec(exec))?;
        state.graphs.objects.release_after(removed.last.map(|last| last.op), removed.objects);
        for stream in removed.streams {
            state.retire_stream(stream);
        }
        let state = self.destroy_objects(state);
        self.release_graph_memory(state);
        Ok(())
    }
}

impl State {
    pub(super) fn exec(&self, exec: GraphExecHandle) -> CudaResult<&Exec> {
        self.graphs.execs.get(&exec).ok_or_else(|| not_an_exec(exec))
    }

    pub(super) fn exec_mut(&mut self, exec: GraphExecHandle) -> CudaResult<&mut Exec> {
        self.graphs.execs.get_mut(&exec).ok_or_else(|| not_an_exec(exec))
    }

    /// Rejects a launch of a graph with an event that is gone, or that was recorded in a capture.
    fn check_events(&mut self, graph: &Executable) -> CudaResult<()> {
        let event_of = |node: &ExecNode| match node.work {
            NodeWork::Record(event) | NodeWork::Wait(event) => Some(event),
            _ => None,
        };
        for event in graph.nodes.iter().filter_map(event_of) {
            if self.event(event)?.is_interprocess() {
                let message = "virtual GPU: a graph with an event for other processes is not supported";
                return Err(Error::new(CudaStatus::NotSupported, message));
            }
        }
        let waits = graph.nodes.iter().filter(|node| matches!(node.work, NodeWork::Wait(_)));
        let waits: Vec<EventHandle> = waits.filter_map(event_of).collect();
        waits.into_iter().try_for_each(|event| self.done_record(event, "cuGraphLaunch").map(drop))
    }

    /// Returns the streams that run a graph's work, one for each branch.
    fn streams_of_graph(
        &mut self,
        exec: GraphExecHandle,
        graph: &Executable,
        launched_in: ContextHandle,
    ) -> CudaResult<Vec<StreamHandle>> {
        let known = self.graphs.execs.get(&exec).map(|exec| exec.streams.clone()).unwrap_or_default();
        if known.len() == graph.branches.len() {
            return Ok(known);
        }
        let mut streams = Vec::new();
        for Branch { context, name, .. } in &graph.branches {
            let context = context.unwrap_or(launched_in);
            let device = self.device_of_context(context)?;
            streams.push(self.new_stream(context, device, false, StreamKind::OfGraph(name.clone())));
        }
        if let Some(exec) = self.graphs.execs.get_mut(&exec) {
            exec.streams.clone_from(&streams);
        }
        Ok(streams)
    }

    fn launch_node(
        &mut self,
        stream: StreamHandle,
        node: &ExecNode,
        mut after: Vec<Awaited>,
    ) -> CudaResult<Awaited> {
        if !node.is_enabled {
            return self.enqueue(stream, Work::Nothing, after, node.call_site.clone());
        }
        match &node.work {
            NodeWork::Work(work) => {
                let done = self.enqueue(stream, work.clone(), after, node.call_site.clone())?;
                let by = self.enqueued;
                match work {
                    Work::Allocate { at } => self.begin_life(*at, by),
                    Work::Free { at, .. } => self.end_life(*at, by, node.call_site.clone()),
                    _ => {}
                }
                Ok(done)
            }
            NodeWork::Values(operations) => {
                let mut done = self.enqueue(stream, Work::Nothing, after, node.call_site.clone())?;
                for &operation in operations {
                    done =
                        self.enqueue(stream, Work::Value(operation), Vec::new(), node.call_site.clone())?;
                }
                Ok(done)
            }
            NodeWork::Communication(calls) => calls.enqueue(self, stream, after),
            NodeWork::Record(event) => {
                let done = self.enqueue(stream, Work::Record, after, node.call_site.clone())?;
                self.set_recorded(*event, done.clone());
                Ok(done)
            }
            NodeWork::Wait(event) => {
                after.extend(self.done_record(*event, "cuGraphLaunch")?.1);
                self.enqueue(stream, Work::Wait, after, node.call_site.clone())
            }
            NodeWork::Graph(_) => self.enqueue(stream, Work::Nothing, after, node.call_site.clone()),
        }
    }
}

fn not_an_exec(exec: GraphExecHandle) -> Error<CudaStatus> {
    invalid(format!("{:#x} is not an executable graph, or is no longer one", exec.0))
}
