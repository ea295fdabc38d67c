//! The bodies of the stream capture functions.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::{Mutex, PoisonError};

use virtual_gpu::engine::{CaptureInfo, CaptureMode, GraphHandle, GraphNodeHandle};
use virtual_gpu_core::status::{CudaResult, invalid};
use virtual_gpu_core::thread::ThreadKey;

use crate::engine;
use crate::graph::Graph;
use crate::graph_edges::{EdgeData, check};
use crate::graph_node::{GraphNode, graph, node};
use crate::pointer::{Out, Source};
use crate::types::{Stream, handle, stream};

fn mode(number: c_uint, caller: &str) -> CudaResult<CaptureMode> {
    match number {
        0 => Ok(CaptureMode::Global),
        1 => Ok(CaptureMode::ThreadLocal),
        2 => Ok(CaptureMode::Relaxed),
        _ => Err(invalid(format!("{caller}: {number} is not a CUstreamCaptureMode (0, 1, 2)"))),
    }
}

pub(crate) fn begin(of: Stream, given: c_uint) -> CudaResult<()> {
    let mode = mode(given, "cuStreamBeginCapture")?;
    engine::get()?.begin_capture(stream(of), mode)
}

/// `cuStreamBeginCapture` of CUDA 10.0, which has no mode.
pub(crate) fn begin_old(of: Stream) -> CudaResult<()> {
    engine::get()?.begin_capture(stream(of), CaptureMode::Global)
}

pub(crate) fn begin_to(
    of: Stream,
    to: Graph,
    after: Source<GraphNode>,
    data: Source<EdgeData>,
    count: usize,
    given: c_uint,
) -> CudaResult<()> {
    let mode = mode(given, "cuStreamBeginCaptureToGraph")?;
    check(data, count)?;
    let after: Vec<GraphNodeHandle> = after.values(count)?.into_iter().map(node).collect();
    engine::get()?.begin_capture_to(stream(of), mode, Some((graph(to), &after)))
}

/// Ends a capture. The graph is null if the capture fails.
pub(crate) fn end(of: Stream, to: Out<Graph>) -> CudaResult<()> {
    to.give(std::ptr::null_mut())?;
    forget_list(of);
    let GraphHandle(made) = engine::get()?.end_capture(stream(of))?;
    to.give(handle(made))
}

pub(crate) fn is_capturing(of: Stream, status: Out<c_uint>) -> CudaResult<()> {
    status.give(engine::get()?.capture_status(stream(of))? as c_uint)
}

/// A list of nodes for the program to read until the next call for its stream, or the end of the capture.
struct Listed {
    nodes: Vec<usize>,
    data: Vec<EdgeData>,
}

/// By the stream.
static LISTED: Mutex<BTreeMap<Key, Listed>> = Mutex::new(BTreeMap::new());

/// A stream's handle, and the calling thread if the handle can stand for its own default stream.
type Key = (usize, Option<ThreadKey>);

fn key(of: Stream) -> Key {
    // CU_STREAM_PER_THREAD
    (of as usize, (of as usize <= 2).then(ThreadKey::current))
}

/// Drops a stream's list.
pub(crate) fn forget_list(of: Stream) {
    LISTED.lock().unwrap_or_else(PoisonError::into_inner).remove(&key(of));
}

pub(crate) fn info_old(of: Stream, status: Out<c_uint>, id: Out<c_ulonglong>) -> CudaResult<()> {
    let (found, info) = engine::get()?.capture_info(stream(of))?;
    status.give(found as c_uint)?;
    if let Some(info) = info {
        id.give_if_wanted(info.number);
    }
    Ok(())
}

pub(crate) fn info(
    of: Stream,
    status: Out<c_uint>,
    id: Out<c_ulonglong>,
    to: Out<Graph>,
    after: Out<Source<GraphNode>>,
    count: Out<usize>,
) -> CudaResult<()> {
    info_with_data(of, status, id, to, after, Out::at(0), count)
}

/// `cuStreamGetCaptureInfo`. If the stream is not being captured, only its status is returned.
pub(crate) fn info_with_data(
    of: Stream,
    status: Out<c_uint>,
    id: Out<c_ulonglong>,
    to: Out<Graph>,
    after: Out<Source<GraphNode>>,
    data: Out<Source<EdgeData>>,
    count: Out<usize>,
) -> CudaResult<()> {
    let (found, info) = engine::get()?.capture_info(stream(of))?;
    status.give(found as c_uint)?;
    let Some(CaptureInfo { number, graph, after: nodes }) = info else { return Ok(()) };
    id.give_if_wanted(number);
    to.give_if_wanted(handle(graph.0));
    count.give_if_wanted(nodes.len());
    let (nodes, edges) =
        (nodes.iter().map(|node| node.0 as usize).collect(), vec![EdgeData::default(); nodes.len()]);
    let listed = Listed { nodes, data: edges };
    let mut lists = LISTED.lock().unwrap_or_else(PoisonError::into_inner);
    // The vectors' own memory does not move with them.
    after.give_if_wanted(Source::at(listed.nodes.as_ptr() as usize));
    data.give_if_wanted(Source::at(listed.data.as_ptr() as usize));
    lists.insert(key(of), listed);
    Ok(())
}

/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`
const REPLACES: c_uint = 1;

pub(crate) fn update(of: Stream, nodes: Source<GraphNode>, count: usize, flags: c_uint) -> CudaResult<()> {
    if flags > REPLACES {
        let message = format!("cuStreamUpdateCaptureDependencies: {flags:#x} contains unknown flags");
        return Err(invalid(message));
    }
    let nodes: Vec<GraphNodeHandle> = nodes.values(count)?.into_iter().map(node).collect();
    engine::get()?.update_captured(stream(of), &nodes, flags == REPLACES)
}

pub(crate) fn update_with_data(
    of: Stream,
    nodes: Source<GraphNode>,
    data: Source<EdgeData>,
    count: usize,
    flags: c_uint,
) -> CudaResult<()> {
    check(data, count)?;
    update(of, nodes, count, flags)
}

/// `cuThreadExchangeStreamCaptureMode`
pub(crate) fn exchange_mode(of_thread: Out<c_uint>) -> CudaResult<()> {
    let given = Source::at(of_thread.address()).value("the pointer to the mode")?;
    let last = engine::get()?.exchange_capture_mode(mode(given, "cuThreadExchangeStreamCaptureMode")?);
    of_thread.give(match last {
        CaptureMode::Global => 0,
        CaptureMode::ThreadLocal => 1,
        CaptureMode::Relaxed => 2,
    })
}
