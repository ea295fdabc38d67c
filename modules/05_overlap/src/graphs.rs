//! A graph: work that is enqueued once, written down, and launched as a whole from then on.
//!
//! While a stream is *captured*, what is enqueued on it does not run: it becomes a node of a graph. So does what is enqueued on a
//! stream that waits for an event of a captured one. A launch then enqueues all of it with one call, with the very same
//! arguments: the same kernels on the same addresses.

use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaSlice, CudaStream, CudaViewMut};

/// Captures what `enqueue` adds to `stream`, and to streams that wait for it and that it waits for in the end. Nothing of
/// it runs. Other threads may do meanwhile what they like, such as allocate. However it ends, `stream` is not captured afterwards.
///
/// # Errors
/// That of `enqueue`, or what the driver answers.
pub fn capture(
    stream: &Arc<CudaStream>,
    enqueue: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<CudaGraph> {
    // ANCHOR: capture
    // Capture the stream, and make a graph of it.
    // `begin_capture` wants a mode, which says whose calls may spoil it. `end_capture(CUgraphInstantiate_flags(0))` has to be
    // called whatever happens in between; it returns no graph where there is none.
    todo!("Capture the stream, and make a graph of it")
    // ANCHOR_END: capture
}

/// Runs the pipeline once for each input: `outputs[i]` is what it makes of `inputs[i]`. `iteration` enqueues one run, in place in
/// `buffer`: in `stream`, and in streams that wait for it and that it waits for in the end. It has a collective in it, so every
/// rank must call this alike.
///
/// `iteration` is called once, and captured; the graph is launched for each input. Returns at once, with the graph, which has to
/// live until its launches are done. Inputs and outputs all have the length of the buffer, and there are as many of them. cudarc's event tracking is off.
///
/// # Errors
/// That of `iteration`, or what the driver answers.
pub fn replay(
    stream: &Arc<CudaStream>,
    buffer: &mut CudaViewMut<f32>,
    inputs: &[CudaSlice<f32>],
    outputs: &mut [CudaSlice<f32>],
    mut iteration: impl FnMut(&mut CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<CudaGraph> {
    // ANCHOR: replay
    // Capture one iteration, then let the graph run over each input.
    // What was captured knows one address, that of `buffer`. `memcpy_dtod` copies from slice to slice.
    todo!("Capture one iteration, then let the graph run over each input")
    // ANCHOR_END: replay
}
