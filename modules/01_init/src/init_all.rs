//! A communicator for each GPU, all driven by one thread.
//!
//! A *communicator* is a GPU's seat in a group. The group has as many seats as its *world size*, and each seat has a
//! number, its *rank*. A rank is not a GPU's number: rank 0 may well sit on GPU 3.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::Comm;
use lab::Readable;

/// Where a communicator sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its number in the group, from 0.
    pub rank: usize,
    /// Seats in the group.
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

/// Reports the seat of a communicator.
pub fn seat(communicator: &Comm) -> Seat {
    // ANCHOR: seat
    // Ask the communicator for its rank, its world size and the ordinal of its GPU.
    todo!("Ask the communicator for its rank, its world size and the ordinal of its GPU")
    // ANCHOR_END: seat
}
