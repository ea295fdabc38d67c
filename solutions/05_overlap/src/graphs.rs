//! CUDA graphs: work that is captured once, and then launched many times as a unit.
//!
//! While a stream is *captured*, enqueued work does not run: it becomes a node of a graph. A launch enqueues the entire
//! graph with one call, and with the arguments from the capture: the same kernels on the same addresses.

use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaSlice, CudaStream, CudaViewMut};

/// Captures the work that `enqueue` adds to `stream`, and to other streams that fork from `stream` and join it again at the
/// end.
///
/// # Errors
/// Returns any error from `enqueue` or the driver. Also fails if the capture produces no graph.
pub fn capture(
    stream: &Arc<CudaStream>,
    enqueue: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<CudaGraph> {
    // ANCHOR: capture
    // Capture the stream into a graph:
    // 1. nothing that `enqueue` enqueues runs now;
    // 2. during the capture, other threads may do anything, including allocating memory;
    // 3. `stream` is no longer being captured afterwards, even if `enqueue` fails;
    // 4. an error from `enqueue` is returned, even if the capture can't be ended either.
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let enqueued = enqueue();
    let graph = stream.end_capture(CUgraphInstantiate_flags(0));
    enqueued?;
    graph?.context("the capture ended without a graph")
    // ANCHOR_END: capture
}

/// Runs the pipeline once for each input: `outputs[i]` is the result for `inputs[i]`. `iteration` enqueues one run, in
/// place in `buffer`, on `stream` and on other streams that fork from it and join it again at the end. The run contains
/// a collective, so every rank must make the same call.
///
/// Returns the graph immediately. The graph must live until its launches are done. There are as many outputs as inputs,
/// each as long as the buffer. cudarc's event tracking is off.
///
/// # Errors
/// Returns any error from `iteration` or the driver.
pub fn replay(
    stream: &Arc<CudaStream>,
    buffer: &mut CudaViewMut<f32>,
    inputs: &[CudaSlice<f32>],
    outputs: &mut [CudaSlice<f32>],
    mut iteration: impl FnMut(&mut CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<CudaGraph> {
    // ANCHOR: replay
    // Replay one captured iteration for each input:
    // 1. `iteration` is called once, even if there is no input;
    // 2. each input passes through the graph, and each result ends up in its own output, with one copy for each;
    // 3. the host does not wait.
    let graph = capture(stream, || iteration(buffer))?;
    for (input, output) in inputs.iter().zip(outputs) {
        stream.memcpy_dtod(input, buffer)?;
        graph.launch()?;
        stream.memcpy_dtod(buffer, output)?;
    }
    Ok(graph)
    // ANCHOR_END: replay
}
