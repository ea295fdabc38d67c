//! Contexts and launch shapes that checks share.

use std::sync::Arc;

use cudarc::driver::{CudaContext, LaunchConfig};

/// A context without cudarc's event tracking, which would order streams and could not be captured: each check orders its
/// streams itself, or shows what happens otherwise.
pub(crate) fn untracked(gpu: usize) -> Arc<CudaContext> {
    let context = CudaContext::new(gpu).unwrap();
    // SAFETY: as above.
    unsafe { context.disable_event_tracking() };
    context
}

/// Blocks and threads along x.
pub(crate) fn shape(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}
