//! A ring: every rank sends to its right neighbour, and receives from its left one.
//!
//! `send` and `recv` are NCCL's calls between two ranks. Each may wait for the other end. Around a ring, everybody is somebody's
//! other end: so a rank makes both of its calls in one group.

use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, group_end, group_start};
use lab::{Kernels, Readable};

/// The ranks to the left and to the right of `rank`, which is below `world_size`. The ranks sit in a circle: right of the
/// last one sits rank 0.
pub fn neighbours(rank: usize, world_size: usize) -> (usize, usize) {
    // ANCHOR: neighbours
    // Name the left neighbour, then the right one.
    // A `usize` has no −1, and no rank is called `world_size`.
    todo!("Name the left neighbour, then the right one")
    // ANCHOR_END: neighbours
}

/// Sends `outgoing` to the right neighbour, and writes into `incoming` what the left one sends. All have the same length.
/// Every rank must call it; a rank alone is its own neighbour. Returns at once.
///
/// What comes next in the communicator's stream finds `incoming` filled. Another stream has to wait for that one.
///
/// # Errors
/// NCCL refuses. No group is left open.
pub fn shift(comm: &Comm, outgoing: &CudaView<f32>, incoming: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: shift
    // Send to the right and receive from the left, in one group.
    // NCCL counts ranks as `i32`. A group that was started must be ended, also where one of the calls fails.
    todo!("Send to the right and receive from the left, in one group")
    // ANCHOR_END: shift
}

/// Writes the sum of all ranks' `own` into `total`, on every rank, by sending around the ring. Both are equally long, on all
/// ranks. Every rank must call it. Returns at once.
///
/// # Errors
/// As [`shift`], or what the driver answers.
pub fn sum_around(
    comm: &Comm,
    kernels: &Kernels,
    own: &CudaView<f32>,
    total: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: sum_around
    // Sum what comes by, and pass it on.
    // Everybody's values come around, your own are there already. `kernels.axpy(&stream, y, x, 1.0)` adds x to y.
    // How many shifts does it take? And what goes out in the second one?
    todo!("Sum what comes by, and pass it on")
    // ANCHOR_END: sum_around
}
