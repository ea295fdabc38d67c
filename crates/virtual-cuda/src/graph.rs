//! The bodies of the stream capture and graph functions.

use std::ffi::{c_uint, c_ulonglong, c_void};

use virtual_gpu::engine::{CaptureMode, GraphExecHandle, GraphHandle};
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

use crate::engine;
use crate::pointer::Out;
use crate::types::Stream;

/// `CUgraph`
pub type Graph = *mut c_void;

/// `CUgraphExec`
pub type GraphExec = *mut c_void;

pub(crate) fn begin_capture(of: Stream, mode: c_uint) -> CudaResult<()> {
    let mode = match mode {
        0 => CaptureMode::Global,
        1 => CaptureMode::ThreadLocal,
        2 => CaptureMode::Relaxed,
        _ => {
            let message = format!("cuStreamBeginCapture: {mode} is not a CUstreamCaptureMode (0, 1, 2)");
            return Err(Error::new(CudaStatus::InvalidValue, message));
        }
    };
    engine::get()?.begin_capture(StreamHandle(of as u64), mode)
}

/// Ends a capture. The graph is null if the capture fails.
pub(crate) fn end_capture(of: Stream, graph: Out<Graph>) -> CudaResult<()> {
    graph.give(std::ptr::null_mut())?;
    let GraphHandle(made) = engine::get()?.end_capture(StreamHandle(of as u64))?;
    graph.give(made as Graph)
}

pub(crate) fn is_capturing(of: Stream, status: Out<c_uint>) -> CudaResult<()> {
    status.give(engine::get()?.capture_status(StreamHandle(of as u64))? as c_uint)
}

pub(crate) fn instantiate(exec: Out<GraphExec>, graph: Graph, flags: c_ulonglong) -> CudaResult<()> {
    exec.give(std::ptr::null_mut())?;
    let GraphExecHandle(made) = engine::get()?.instantiate_graph(GraphHandle(graph as u64), flags)?;
    exec.give(made as GraphExec)
}

pub(crate) fn launch(exec: GraphExec, of: Stream) -> CudaResult<()> {
    engine::get()?.launch_graph(GraphExecHandle(exec as u64), StreamHandle(of as u64))
}

pub(crate) fn upload(exec: GraphExec, of: Stream) -> CudaResult<()> {
    engine::get()?.upload_graph(GraphExecHandle(exec as u64), StreamHandle(of as u64))
}

pub(crate) fn destroy(graph: Graph) -> CudaResult<()> {
    engine::get()?.destroy_graph(GraphHandle(graph as u64))
}

pub(crate) fn destroy_exec(exec: GraphExec) -> CudaResult<()> {
    engine::get()?.destroy_graph_exec(GraphExecHandle(exec as u64))
}
