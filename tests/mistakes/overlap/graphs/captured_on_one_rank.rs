// mistake: only GPU 0 captures; the others enqueue the pipeline each time
// fails: graphs::every_input_runs_through_the_graph
// says: not all launch the same graph
// says: called outside of a graph

use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaSlice, CudaStream, CudaViewMut};

pub fn capture(
    stream: &Arc<CudaStream>,
    enqueue: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<CudaGraph> {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let enqueued = enqueue();
    let graph = stream.end_capture(CUgraphInstantiate_flags(0));
    enqueued?;
    graph?.context("the capture has ended without a graph")
}

pub fn replay(
    stream: &Arc<CudaStream>,
    buffer: &mut CudaViewMut<f32>,
    inputs: &[CudaSlice<f32>],
    outputs: &mut [CudaSlice<f32>],
    mut iteration: impl FnMut(&mut CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<CudaGraph> {
    let first = stream.context().ordinal() == 0;
    let graph = capture(stream, || if first { iteration(buffer) } else { Ok(()) })?;
    for (input, output) in inputs.iter().zip(outputs) {
        stream.memcpy_dtod(input, buffer)?;
        if first {
            graph.launch()?;
        } else {
            iteration(buffer)?;
        }
        stream.memcpy_dtod(buffer, output)?;
    }
    Ok(graph)
}
