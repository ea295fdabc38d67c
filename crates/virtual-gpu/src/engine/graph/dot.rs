//! Descriptions of graphs in the language of Graphviz.

use std::fmt::Write;

use super::{Graph, GraphHandle, NodeWork};
use crate::engine::work::Work;
use crate::engine::{Engine, State};
use virtual_gpu_core::status::CudaResult;

/// The `CU_GRAPH_DEBUG_DOT_FLAGS_…` that add something: everything, parameters of kernels, copies, memsets, and events, and
/// handles.
const VERBOSE: u32 = 1;
const KERNELS: u32 = 1 << 2;
const COPIES: u32 = 1 << 3;
const SETS: u32 = 1 << 4;
const EVENTS: u32 = 1 << 6;
const HANDLES: u32 = 1 << 10;

impl Engine {
    /// `cuGraphDebugDotPrint`: describes a graph. `flags` select what else to show about each node.
    pub fn describe_graph(&self, graph: GraphHandle, flags: u32) -> CudaResult<String> {
        let state = self.state();
        let mut text = "digraph dot {\n".to_owned();
        let mut clusters = 0;
        state.describe_nodes(state.graph(graph)?, flags, &mut clusters, &mut text);
        text.push_str("}\n");
        Ok(text)
    }
}

impl State {
    fn describe_nodes(&self, graph: &Graph, flags: u32, clusters: &mut usize, text: &mut String) {
        *clusters += 1;
        let name = format!("graph_{clusters}");
        let mut add = |line: String| {
            text.push_str(&line);
            text.push('\n');
        };
        add(format!("subgraph cluster_{clusters} {{\nlabel=\"{name}\"; style=dashed;"));
        for (at, node) in graph.nodes.iter().enumerate() {
            let mut label = format!("{at}\\n{}", kind(&node.work));
            details(&node.work, flags, &mut label);
            if flags & (VERBOSE | HANDLES) != 0 {
                let _ = write!(label, "\\nhandle {:#x}", node.handle.0);
            }
            add(format!("\"{name}_node_{at}\" [shape=box, label=\"{}\"];", label.replace('"', "'")));
        }
        for (at, node) in graph.nodes.iter().enumerate() {
            for earlier in &node.after {
                add(format!("\"{name}_node_{earlier}\" -> \"{name}_node_{at}\";"));
            }
        }
        add("}".to_owned());
        for (at, node) in graph.nodes.iter().enumerate() {
            if let NodeWork::Graph(child) = node.work
                && let Some(child) = self.graphs.all.get(&child)
            {
                let _ = writeln!(text, "// node {at} of {name} launches graph_{}", *clusters + 1);
                self.describe_nodes(child, flags, clusters, text);
            }
        }
    }
}

/// Returns a node's type, and the name of its kernel or the direction of its copy.
fn kind(work: &NodeWork) -> String {
    match work {
        NodeWork::Work(Work::Kernel(launch)) => format!("KERNEL\\n{}", launch.name()),
        NodeWork::Communication(calls) => format!("KERNEL\\n{calls}"),
        NodeWork::Work(Work::UploadLater { .. }) => "MEMCPY\\nhost to device".to_owned(),
        NodeWork::Work(Work::DownloadLater { .. }) => "MEMCPY\\ndevice to host".to_owned(),
        NodeWork::Work(Work::Copy { .. }) => "MEMCPY\\ndevice to device".to_owned(),
        NodeWork::Work(Work::Set { .. }) => "MEMSET".to_owned(),
        NodeWork::Work(Work::Allocate { .. }) => "MEM_ALLOC".to_owned(),
        NodeWork::Work(Work::Free { .. }) => "MEM_FREE".to_owned(),
        NodeWork::Values(_) => "BATCH_MEM_OP".to_owned(),
        NodeWork::Work(Work::Host(_)) => "HOST".to_owned(),
        NodeWork::Work(Work::Nothing) => "EMPTY".to_owned(),
        NodeWork::Record(_) => "EVENT_RECORD".to_owned(),
        NodeWork::Wait(_) => "WAIT_EVENT".to_owned(),
        NodeWork::Graph(_) => "GRAPH".to_owned(),
        NodeWork::Work(other) => other.to_string(),
    }
}

/// Adds the parameters that the flags select.
fn details(work: &NodeWork, flags: u32, label: &mut String) {
    let shows = |flag: u32| flags & (VERBOSE | flag) != 0;
    let _ = match work {
        NodeWork::Work(Work::Kernel(launch)) if shows(KERNELS) => {
            let shape = launch.shape;
            write!(
                label,
                "\\ngrid {:?}\\nblock {:?}\\ndynamic shared memory {}",
                shape.grid, shape.block, shape.dynamic_shared
            )
        }
        NodeWork::Work(Work::UploadLater { to, .. }) if shows(COPIES) => {
            write!(label, "\\n{} bytes to {:#x}", to.bytes(), to.start)
        }
        NodeWork::Work(Work::DownloadLater { from, .. }) if shows(COPIES) => {
            write!(label, "\\n{} bytes from {:#x}", from.bytes(), from.start)
        }
        NodeWork::Work(Work::Copy { from, to }) if shows(COPIES) => {
            write!(label, "\\n{} bytes from {:#x} to {:#x}", to.bytes(), from.start, to.start)
        }
        NodeWork::Work(Work::Set { at, .. }) if shows(SETS) => {
            write!(label, "\\n{} bytes at {:#x}", at.bytes(), at.start)
        }
        NodeWork::Record(event) | NodeWork::Wait(event) if shows(EVENTS) => {
            write!(label, "\\nevent {:#x}", event.0)
        }
        _ => Ok(()),
    };
}
