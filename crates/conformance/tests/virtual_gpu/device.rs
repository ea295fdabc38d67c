//! Contexts and launch shapes that the checks share.

use std::sync::Arc;

use cudarc::driver::{CudaContext, LaunchConfig};

/// Returns a context without cudarc's event tracking, which would order streams and can't be captured. Each check
/// orders its streams itself, or shows what happens otherwise.
pub(crate) fn untracked(gpu: usize) -> Arc<CudaContext> {
    let context = CudaContext::new(gpu).unwrap();
    // SAFETY: the checks order their streams themselves, as described above.
    unsafe { context.disable_event_tracking() };
    context
}

/// Returns a launch shape with blocks and threads along x.
pub(crate) fn shape(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}
