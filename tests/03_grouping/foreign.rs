//! Checks for calls that NCCL rejects because a buffer is on another GPU.

use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::CudaStream;
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;

/// Runs `check` on each rank of each world with at least two ranks, with a new stream on another rank's GPU. NCCL's
/// pointer checks are enabled, so NCCL rejects a buffer on that GPU. Event tracking is off.
///
/// # Safety
/// Sets an environment variable, so no other thread may read or set one at the same time.
pub(super) unsafe fn beside_another_gpu(
    check: impl Fn(&Comm, &Arc<CudaStream>) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    // SAFETY: the caller ensures that no other thread accesses environment variables.
    unsafe { std::env::set_var("NCCL_CHECK_POINTERS", "1") };
    for world_size in lab::world_sizes().into_iter().filter(|&size| size >= 2) {
        let streams = lab::streams(world_size)?;
        for stream in &streams {
            // SAFETY: no buffer is used on two streams. Tracking would fail here, because a stream on one GPU rejects
            // events from another GPU.
            unsafe { stream.context().disable_event_tracking() };
        }
        rendezvous(&streams, |comm| {
            let own = comm.context().ordinal();
            let other = streams.iter().find(|stream| stream.context().ordinal() != own);
            let other = other.context("all ranks are on one GPU, but this check needs a second one")?;
            check(&comm, &other.context().new_stream()?)
        })?;
    }
    Ok(())
}
