//! `cuGraphAddNode`, which adds any kind of node, and the functions that take the data of edges.

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::DriverError;
use cudarc::driver::sys::{
    self, CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphNodeParams, CUgraphNodeType as Kind, CUresult,
};

use super::graph::{Graph, between, count, kernel, kind, start, with_parameters};
use crate::fails;
use crate::raw::address;

/// Returns the parameters of a node of a kind, which `fill` completes.
pub(super) fn parameters(kind: Kind, fill: impl FnOnce(&mut CUgraphNodeParams)) -> CUgraphNodeParams {
    // SAFETY: zeros are valid in all fields.
    let mut parameters: CUgraphNodeParams = unsafe { MaybeUninit::zeroed().assume_init() };
    parameters.type_ = kind;
    fill(&mut parameters);
    parameters
}

/// Adds a node after another one, or as a root.
pub(super) fn add(
    graph: CUgraph,
    after: Option<CUgraphNode>,
    mut parameters: CUgraphNodeParams,
) -> Result<CUgraphNode, DriverError> {
    let mut node = null_mut();
    let after: Vec<_> = after.into_iter().collect();
    let data = vec![default_edge(); after.len()];
    // SAFETY: the arrays have as many elements as the count says, and the parameters are readable.
    unsafe {
        sys::cuGraphAddNode_v2(&mut node, graph, after.as_ptr(), data.as_ptr(), after.len(), &mut parameters)
    }
    .result()?;
    Ok(node)
}

fn default_edge() -> CUgraphEdgeData {
    CUgraphEdgeData { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] }
}

pub(super) fn every_kind() -> anyhow::Result<()> {
    static COUNTER: AtomicUsize = AtomicUsize::new(0);
    let (context, stream, buffer) = start()?;
    let event = context.new_event(None)?;
    let (at, adds) = (address(&buffer), kernel("adds"));
    let graph = Graph::new();
    let set = parameters(Kind::CU_GRAPH_NODE_TYPE_MEMSET, |it| {
        it.__bindgen_anon_1.memset = sys::CUDA_MEMSET_NODE_PARAMS_v2 {
            dst: at,
            pitch: 0,
            value: 7,
            elementSize: 4,
            width: 2,
            height: 1,
            ctx: context.cu_ctx(),
        };
    });
    let set = add(graph.0, None, set)?;
    let run = with_parameters(adds, at, 100, |known| {
        let run = parameters(Kind::CU_GRAPH_NODE_TYPE_KERNEL, |it| {
            it.__bindgen_anon_1.kernel = sys::CUDA_KERNEL_NODE_PARAMS_v3 {
                func: known.func,
                gridDimX: known.gridDimX,
                gridDimY: known.gridDimY,
                gridDimZ: known.gridDimZ,
                blockDimX: known.blockDimX,
                blockDimY: known.blockDimY,
                blockDimZ: known.blockDimZ,
                sharedMemBytes: known.sharedMemBytes,
                kernelParams: known.kernelParams,
                extra: known.extra,
                kern: known.kern,
                ctx: known.ctx,
            };
        });
        add(graph.0, Some(set), run)
    })?;
    let copy = parameters(Kind::CU_GRAPH_NODE_TYPE_MEMCPY, |it| {
        it.__bindgen_anon_1.memcpy = sys::CUDA_MEMCPY_NODE_PARAMS {
            flags: 0,
            reserved: 0,
            copyCtx: context.cu_ctx(),
            copyParams: between(at, at + 8, 4),
        };
    });
    let copy = add(graph.0, Some(run), copy)?;
    let inner = Graph::new();
    inner.kernel(&[], adds, at + 8, 1)?;
    let child = parameters(Kind::CU_GRAPH_NODE_TYPE_GRAPH, |it| {
        it.__bindgen_anon_1.graph.graph = inner.0;
    });
    let child = add(graph.0, Some(copy), child)?;
    let empty = add(graph.0, Some(child), parameters(Kind::CU_GRAPH_NODE_TYPE_EMPTY, |_| {}))?;
    let record = parameters(Kind::CU_GRAPH_NODE_TYPE_EVENT_RECORD, |it| {
        it.__bindgen_anon_1.eventRecord.event = event.cu_event();
    });
    let record = add(graph.0, Some(empty), record)?;
    let wait = parameters(Kind::CU_GRAPH_NODE_TYPE_WAIT_EVENT, |it| {
        it.__bindgen_anon_1.eventWait.event = event.cu_event();
    });
    let wait = add(graph.0, Some(record), wait)?;
    let host = parameters(Kind::CU_GRAPH_NODE_TYPE_HOST, |it| {
        it.__bindgen_anon_1.host = sys::CUDA_HOST_NODE_PARAMS_v2 {
            fn_: Some(count),
            userData: (&raw const COUNTER).cast_mut().cast(),
        };
    });
    let host = add(graph.0, Some(wait), host)?;

    let all = [set, run, copy, child, empty, record, wait, host];
    assert_eq!(graph.nodes(), all);
    assert_eq!(kind(host), Kind::CU_GRAPH_NODE_TYPE_HOST);
    lists(graph.0, &all)?;
    graph.instantiate()?.launch(&stream)?;
    stream.synchronize()?;
    assert_eq!(stream.clone_dtoh(&buffer)?[..3], [107, 7, 108]);
    assert_eq!(COUNTER.load(Ordering::Relaxed), 1);
    Ok(())
}

/// Checks the edges of a graph whose nodes come one after the other.
fn lists(graph: CUgraph, all: &[CUgraphNode]) -> anyhow::Result<()> {
    let wrong = CUgraphEdgeData { from_port: 9, to_port: 9, type_: 9, reserved: [9; 5] };
    let (mut from, mut to, mut data) = ([null_mut(); 9], [null_mut(); 9], [wrong; 9]);
    let mut edges = from.len();
    // SAFETY: the arrays have room for as many elements as the counts say.
    unsafe {
        let arrays = (from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr());
        sys::cuGraphGetEdges_v2(graph, arrays.0, arrays.1, arrays.2, &mut edges).result()?;
        assert_eq!(edges, all.len() - 1);
        assert_eq!((&from[..edges], &to[..edges]), (&all[..edges], &all[1..]));
        assert_eq!(data[..edges], [default_edge(); 7]);
        let mut one = 1;
        sys::cuGraphNodeGetDependencies_v2(all[3], arrays.0, arrays.2, &mut one).result()?;
        assert_eq!((one, from[0]), (1, all[2]));
        sys::cuGraphNodeGetDependentNodes_v2(all[3], arrays.0, null_mut(), &mut one).result()?;
        assert_eq!((one, from[0]), (1, all[4]));
        sys::cuGraphRemoveDependencies_v2(graph, &all[0], &all[1], null(), 1).result()?;
        sys::cuGraphAddDependencies_v2(graph, &all[0], &all[1], &default_edge(), 1).result()?;
        sys::cuGraphGetEdges_v2(graph, null_mut(), null_mut(), null_mut(), &mut edges).result()?;
        assert_eq!(edges, all.len() - 1);
    }
    Ok(())
}

pub(super) fn refused() -> anyhow::Result<()> {
    let _started = start()?;
    let graph = Graph::new();
    let (bad, missing) = (CUresult::CUDA_ERROR_INVALID_VALUE, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    for (kind, words) in [
        (Kind::CU_GRAPH_NODE_TYPE_CONDITIONAL, "a conditional node is not supported"),
        (Kind::CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT, "external semaphore"),
    ] {
        fails(add(graph.0, None, parameters(kind, |_| {})), missing, &[words]);
    }
    let reserved = parameters(Kind::CU_GRAPH_NODE_TYPE_EMPTY, |it| it.reserved0[2] = 1);
    fails(add(graph.0, None, reserved), bad, &["the reserved fields"]);
    let nodes = [graph.empty(&[])?, graph.empty(&[])?];
    let port = CUgraphEdgeData { from_port: 1, ..default_edge() };
    // SAFETY: the edge is readable, and wrong values are refused.
    unsafe {
        let added = sys::cuGraphAddDependencies_v2(graph.0, &nodes[0], &nodes[1], &port, 1).result();
        fails(added, missing, &["from port 1 to port 0"]);
        let reserved = CUgraphEdgeData { reserved: [0, 0, 0, 0, 1], ..default_edge() };
        let added = sys::cuGraphAddDependencies_v2(graph.0, &nodes[0], &nodes[1], &reserved, 1).result();
        fails(added, bad, &["the reserved bytes"]);
        fails(sys::cuGraphAddNode(null_mut(), graph.0, null(), 0, null_mut()).result(), bad, &["null"]);
        let mut node = null_mut();
        fails(sys::cuGraphAddNode(&mut node, graph.0, null(), 0, null_mut()).result(), bad, &["null"]);
    }
    assert_eq!(graph.nodes(), nodes);
    Ok(())
}
