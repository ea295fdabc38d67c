// mistake: the stream is synchronized while it is captured
// fails: graphs::nothing_runs_before_the_launch
// says: STREAM_CAPTURE
// says: cuStreamSynchronize

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
    stream.synchronize()?;
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
    let graph = capture(stream, || iteration(buffer))?;
    for (input, output) in inputs.iter().zip(outputs) {
        stream.memcpy_dtod(input, buffer)?;
        graph.launch()?;
        stream.memcpy_dtod(buffer, output)?;
    }
    Ok(graph)
}
