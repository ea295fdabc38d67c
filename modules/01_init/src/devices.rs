//! A stream on each GPU.
//!
//! A *context* is one GPU's state in this process: its memory, its loaded kernels, its streams. A *stream* is a queue of
//! work for that GPU. Work in one stream runs in order; two streams run side by side. Everything later in this course
//! takes a stream and finds the context, and so the GPU, behind it.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaContext, CudaStream};

/// Opens the first `count` GPUs: element `i` is a new stream of a context on GPU `i`.
///
/// # Errors
/// There are fewer than `count` GPUs (the error says how many were asked for, and how many there are), or the driver
/// refuses a context or a stream.
pub fn open(count: usize) -> anyhow::Result<Vec<Arc<CudaStream>>> {
    // ANCHOR: open
    // Open GPUs 0 to count − 1: on each a context, and in each context a new stream, not the default one.
    // Count the GPUs first. If there are too few, return an error with both numbers; don't panic.
    todo!("Open GPUs 0 to count − 1")
    // ANCHOR_END: open
}
