//! One thread for each GPU, and how the threads find each other.
//!
//! `Comm` is neither `Send` nor `Sync`: it belongs to the thread that made it. So each thread makes its own, and all of
//! them show NCCL the same *id*, by which it knows that they belong together. The call returns when every rank is there.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::{Comm, Id};
use lab::{Readable, each_rank};

/// Runs `work` once for each stream, each in a thread of its own with a communicator of its own: rank `i` works on
/// `streams[i]`, and the world has as many ranks as there are streams. Returns the results in the order of ranks.
///
/// `work` owns its communicator, and dropping one ends whatever it still has in flight: synchronize before that.
///
/// # Errors
/// Those of every rank that failed, each with its rank: NCCL refused it, or `work` returned an error or panicked.
pub fn rendezvous<T: Send>(
    streams: &[Arc<CudaStream>],
    work: impl Fn(Comm) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    // ANCHOR: rendezvous
    // Give every stream a thread and a communicator, and run `work` with it.
    // One id for all, made before the threads are. `lab::each_rank(world_size, |rank| …)` runs the threads.
    // In each thread, bind the context of the stream first: NCCL takes the GPU that is current there.
    todo!("Give every stream a thread and a communicator, and run `work` with it")
    // ANCHOR_END: rendezvous
}
