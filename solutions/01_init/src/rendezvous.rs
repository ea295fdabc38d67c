//! Runs one thread for each GPU. Each thread is one rank of a group.
//!
//! A `Comm` is neither `Send` nor `Sync`, so it stays in the thread that created it. The later modules start their
//! ranks with this function.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::{Comm, Id};
use lab::{Readable, each_rank};

/// Runs `work` once for each stream, each time in its own thread. Returns the results in rank order.
///
/// `work` owns its communicator. Dropping a communicator aborts everything it still has in flight, so `work` must synchronize first.
///
/// # Errors
/// Fails if an NCCL call fails on any rank, or if `work` fails or panics there. The error names every such rank.
pub fn rendezvous<T: Send>(
    streams: &[Arc<CudaStream>],
    work: impl Fn(Comm) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    // ANCHOR: rendezvous
    // Run `work` in a thread for each stream:
    // 1. thread `i` is rank `i`, and its communicator uses `streams[i]`;
    // 2. all ranks belong to the same group, whose world size is the number of streams;
    // 3. NCCL uses the GPU of the rank's own stream;
    // 4. result `i` comes from rank `i`, and an error names every rank that failed.
    let id = Id::new().readable()?;
    each_rank(streams.len(), |rank| {
        let stream = &streams[rank];
        stream.context().bind_to_thread()?;
        let communicator = Comm::from_rank(stream.clone(), rank, streams.len(), id).readable()?;
        work(communicator)
    })
    // ANCHOR_END: rendezvous
}
