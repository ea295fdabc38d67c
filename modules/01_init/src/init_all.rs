//! Creates a communicator for each GPU, all in one thread.
//!
//! A *communicator* makes a GPU a member of a group. Its *rank* is its number in the group, from 0 to *world size* − 1.
//! A rank is not a GPU number: rank 0 may be on GPU 3.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::Comm;
use lab::Readable;

/// Identifies a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The rank's number in the group, from 0.
    pub rank: usize,
    /// The number of ranks in the group.
    pub world_size: usize,
    /// The ordinal of the GPU that it uses.
    pub gpu: usize,
}

/// Creates one group with a rank for each stream.
///
/// # Errors
/// Fails if the NCCL call fails, for example because two streams are on the same GPU.
pub fn communicators(streams: &[Arc<CudaStream>]) -> anyhow::Result<Vec<Comm>> {
    // ANCHOR: communicators
    // Create one group for all streams:
    // 1. element `i` is rank `i`, and uses `streams[i]`;
    // 2. the world size is the number of streams;
    // 3. an NCCL error is made readable.
    todo!("Create one group for all streams")
    // ANCHOR_END: communicators
}

/// Reports a communicator's identity.
pub fn identity(communicator: &Comm) -> Identity {
    // ANCHOR: identity
    // Report the communicator's rank, its world size, and the ordinal of its GPU.
    todo!("Report the communicator's rank, its world size, and the ordinal of its GPU")
    // ANCHOR_END: identity
}
