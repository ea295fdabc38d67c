//! A stream on each GPU.
//!
//! A *context* is one GPU's state in this process. A *stream* is a queue of work for that GPU. Every later function
//! takes a stream, and a stream knows its context and its GPU.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::{CudaContext, CudaStream};

/// Opens the first `count` GPUs, and returns a stream on each.
///
/// # Errors
/// Fails if there are fewer than `count` GPUs, or if the driver can't create a context or a stream.
pub fn open(count: usize) -> anyhow::Result<Vec<Arc<CudaStream>>> {
    // ANCHOR: open
    // Open GPUs 0 to count − 1:
    // 1. element `i` is a stream of a context on GPU `i`;
    // 2. each stream is a new one, not the default stream;
    // 3. if there are too few GPUs, open none of them, and return an error that contains both numbers instead of panicking;
    // 4. for a `count` of 0, the result is an empty list.
    todo!("Open GPUs 0 to count − 1")
    // ANCHOR_END: open
}
