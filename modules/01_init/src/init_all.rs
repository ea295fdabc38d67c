//! A communicator for each GPU, all driven by one thread.
//!
//! A *communicator* makes a GPU a member of a group. The group has as many members as its *world size*, and each member has a
//! number, its *rank*. A rank is not a GPU's number: rank 0 may well be on GPU 3.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::Comm;
use lab::Readable;

/// What a communicator is in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its number in the group, from 0.
    pub rank: usize,
    /// Ranks in the group.
    pub world_size: usize,
    /// The number of the GPU that it works on.
    pub gpu: usize,
}

/// Makes one group of all streams' GPUs: element `i` is rank `i`, and works on `streams[i]`.
///
/// # Errors
/// NCCL refuses, such as when two streams are on the same GPU.
pub fn communicators(streams: &[Arc<CudaStream>]) -> anyhow::Result<Vec<Comm>> {
    // ANCHOR: communicators
    // Make one group of all the streams, in their order, with a single call of `Comm::from_devices`.
    // `readable()` (from `lab::Readable`) gives NCCL's error the words that cudarc leaves out.
    todo!("Make one group of all the streams, in their order, with a single call of `Comm::from_devices`")
    // ANCHOR_END: communicators
}

/// Reports the identity of a communicator.
pub fn identity(communicator: &Comm) -> Identity {
    // ANCHOR: identity
    // Ask the communicator for its rank, its world size and the ordinal of its GPU.
    todo!("Ask the communicator for its rank, its world size and the ordinal of its GPU")
    // ANCHOR_END: identity
}
