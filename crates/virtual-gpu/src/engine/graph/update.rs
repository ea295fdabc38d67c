//! Changing all parameters of an executable graph at once.

use std::sync::Arc;

use super::executable::{Exec, ExecNode, Executable};
use super::{GraphExecHandle, GraphHandle, GraphNodeHandle, NodeWork, Place};
use crate::engine::Engine;
use crate::engine::region::Region;
use crate::engine::value::ValueOperation;
use crate::engine::work::Work;
use virtual_gpu_core::status::CudaResult;

/// `CUgraphExecUpdateResult`, other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateResult {
    /// A reason that no other result describes.
    Error = 1,
    /// The number of nodes or an edge has changed.
    TopologyChanged = 2,
    /// A node has become one of another kind.
    NodeTypeChanged = 3,
    /// A node's parameters have changed in a way that is not supported.
    ParametersChanged = 5,
    /// A node's kernel has changed in a way that is not supported.
    UnsupportedFunctionChange = 7,
    /// A node's attributes have changed in a way that is not supported.
    AttributesChanged = 8,
}

/// Why an executable graph can't take over a graph's parameters.
#[derive(Clone, Debug)]
pub struct UpdateFailure {
    /// The reason.
    pub result: UpdateResult,
    /// The node of the graph that differs.
    pub node: Option<GraphNodeHandle>,
    /// The node that it depends on in another way.
    pub from: Option<GraphNodeHandle>,
    /// The reason in words.
    pub message: Arc<str>,
}

impl Engine {
    /// `cuGraphExecUpdate`: replaces the parameters of all nodes by those of a graph with the same edges.
    ///
    /// # Errors
    /// Returns `InvalidValue` for a bad handle, and the reason if the graph differs in more than its parameters.
    pub fn update_executable(
        &self,
        exec: GraphExecHandle,
        graph: GraphHandle,
    ) -> CudaResult<Result<(), UpdateFailure>> {
        let mut state = self.state();
        let old = state.exec(exec)?.graph.clone();
        let new = match state.graphs.executable(state.graph(graph)?) {
            Ok(new) => new,
            Err(error) => {
                let (result, message) = (UpdateResult::Error, error.message);
                return Ok(Err(UpdateFailure { result, node: None, from: None, message }));
            }
        };
        let is_in_use = |other: &Exec| other.of == graph;
        let others = state.graphs.execs.entries().iter().filter(|(handle, _)| *handle != exec);
        if new.has_memory() && others.into_iter().any(|(_, other)| is_in_use(other)) {
            let message = "the graph allocates or frees memory, and another executable graph of it exists: call cuGraphExecDestroy for that one first";
            let (result, message) = (UpdateResult::Error, message.into());
            return Ok(Err(UpdateFailure { result, node: None, from: None, message }));
        }
        let device = |region: &Region| self.device_of(region.start);
        if let Err(failure) = compare(&old, &new, &device) {
            return Ok(Err(failure));
        }
        for (old, new) in Arc::make_mut(&mut state.exec_mut(exec)?.graph).nodes.iter_mut().zip(new.nodes) {
            (old.work, old.call_site) = (new.work, new.call_site);
        }
        // "The references in the new source graph are cloned and replace the references in the target graph", and if
        // launches still run, "any references which would be released are held until the launches have finished" (CUDA
        // Programming Guide, "CUDA User Objects").
        let objects = state.references_of(state.graph(graph)?);
        state.graphs.objects.retain_all(&objects);
        let updated = state.exec_mut(exec)?;
        let last = updated.last.as_ref().map(|last| last.op);
        let replaced = std::mem::replace(&mut updated.objects, objects);
        state.graphs.objects.release_after(last, replaced);
        let state = self.destroy_objects(state);
        self.release_graph_memory(state);
        Ok(Ok(()))
    }
}

/// Compares an executable graph with the one that would replace it.
pub(super) fn compare(
    old: &Executable,
    new: &Executable,
    device: &dyn Fn(&Region) -> Option<usize>,
) -> Result<(), UpdateFailure> {
    if old.nodes.len() != new.nodes.len() {
        let message =
            format!("the graph has {} nodes instead of {}", new.nodes.len(), old.nodes.len()).into();
        return Err(UpdateFailure { result: UpdateResult::TopologyChanged, node: None, from: None, message });
    }
    for (was, is) in old.nodes.iter().zip(&new.nodes) {
        let fail = |result, message: String| {
            let place = is.call_site.in_parentheses();
            let message = format!("{}{place}: {message}", is.work);
            UpdateFailure { result, node: Some(is.of), from: None, message: message.into() }
        };
        if was.after.len() != is.after.len() {
            let message = format!("it has {} dependencies instead of {}", is.after.len(), was.after.len());
            return Err(fail(UpdateResult::TopologyChanged, message));
        }
        if let Some((_, &other)) = was.after.iter().zip(&is.after).find(|(was, is)| was != is) {
            let failure = fail(UpdateResult::TopologyChanged, "it depends on another node".to_owned());
            return Err(UpdateFailure { from: Some(new.nodes[other].of), ..failure });
        }
        if was.work.kind() != is.work.kind() {
            return Err(fail(UpdateResult::NodeTypeChanged, format!("the node was {}", was.work)));
        }
        check_work(was, is, device).map_err(|(result, message)| fail(result, message.to_owned()))?;
    }
    Ok(())
}

/// Checks that a node may be replaced by another one of the same kind.
pub(super) fn check_work(
    was: &ExecNode,
    is: &ExecNode,
    device: &dyn Fn(&Region) -> Option<usize>,
) -> Result<(), (UpdateResult, &'static str)> {
    let parameters = |message| Err((UpdateResult::ParametersChanged, message));
    let other_device = "its memory is on another device";
    let same = |was: &Region, is: &Region| device(was) == device(is);
    match (&was.work, &is.work) {
        (NodeWork::Work(Work::Kernel(was)), NodeWork::Work(Work::Kernel(is))) => {
            if was.context != is.context {
                return Err((UpdateResult::UnsupportedFunctionChange, "the kernel is from another context"));
            }
            if was.is_cooperative != is.is_cooperative {
                let message = "only one of the two launches is cooperative";
                return Err((UpdateResult::AttributesChanged, message));
            }
            if was.cluster != is.cluster {
                let message = "the two launches have clusters of different sizes";
                return Err((UpdateResult::AttributesChanged, message));
            }
            Ok(())
        }
        (NodeWork::Work(Work::Set { at: was, .. }), NodeWork::Work(Work::Set { at: is, .. })) => {
            let has_rows = was.height > 1 || is.height > 1;
            let is_as_large = (was.width, was.height, was.pitch) == (is.width, is.height, is.pitch);
            match same(was, is) {
                false => parameters(other_device),
                true if has_rows && !is_as_large => parameters("a 2D memset must keep its size"),
                true => Ok(()),
            }
        }
        (NodeWork::Work(was), NodeWork::Work(is)) => match (was, is) {
            (Work::Copy { from: was, to: was_to }, Work::Copy { from: is, to: is_to })
                if same(was, is) && same(was_to, is_to) =>
            {
                Ok(())
            }
            (Work::UploadLater { to: was, .. }, Work::UploadLater { to: is, .. })
            | (Work::DownloadLater { from: was, .. }, Work::DownloadLater { from: is, .. })
                if same(was, is) =>
            {
                Ok(())
            }
            (Work::Host(_), Work::Host(_))
            | (Work::Nothing, Work::Nothing)
            | (Work::Allocate { .. }, Work::Allocate { .. })
            | (Work::Free { .. }, Work::Free { .. }) => Ok(()),
            _ => parameters("a copy must keep its direction and its devices"),
        },
        (NodeWork::Values(was), NodeWork::Values(is)) => {
            let kinds = |all: &[ValueOperation]| all.iter().map(ValueOperation::kind).collect::<Vec<_>>();
            match kinds(was) == kinds(is) {
                true => Ok(()),
                false => parameters("the number and the types of the operations must stay the same"),
            }
        }
        (NodeWork::Communication(_), NodeWork::Communication(_)) => Ok(()),
        (NodeWork::Record(_) | NodeWork::Wait(_), _) if places_differ(was, is) => {
            parameters("the event is from another context")
        }
        (NodeWork::Record(_), NodeWork::Record(_)) | (NodeWork::Wait(_), NodeWork::Wait(_)) => Ok(()),
        _ => Err((UpdateResult::UnsupportedFunctionChange, "the node was one of NCCL, or is one now")),
    }
}

fn places_differ(was: &ExecNode, is: &ExecNode) -> bool {
    matches!((was.place, is.place), (Place::Context(was), Place::Context(is)) if was != is)
}
