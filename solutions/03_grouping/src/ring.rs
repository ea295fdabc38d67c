//! Point-to-point messages around a ring: each rank sends to its right neighbor and receives from its left neighbor.
//!
//! A send may wait for its receive, and a receive for its send.

use cudarc::driver::{CudaView, CudaViewMut};
use cudarc::nccl::{Comm, group_end, group_start};
use lab::{Kernels, Readable};

/// Returns the left and the right neighbor of `rank`, in that order. The ranks form a circle: the right neighbor of the
/// last rank is rank 0. `rank` is below `world_size`.
pub fn neighbors(rank: usize, world_size: usize) -> (usize, usize) {
    // ANCHOR: neighbors
    // Find the two neighbors of `rank`:
    // 1. the left neighbor comes first in the pair;
    // 2. the ranks form a circle, so both neighbors are ranks in this world.
    ((rank + world_size - 1) % world_size, (rank + 1) % world_size)
    // ANCHOR_END: neighbors
}

/// Sends `outgoing` to the right neighbor, and fills `incoming` with what the left neighbor sends. Returns without waiting for the
/// GPU. All buffers have the same length. Every rank must call it; a single rank is its own neighbor.
///
/// Later work on the communicator's stream sees `incoming` filled. Any other stream has to wait for that stream.
///
/// # Errors
/// Returns any error from NCCL. No group is left open.
pub fn shift(comm: &Comm, outgoing: &CudaView<f32>, incoming: &mut CudaViewMut<f32>) -> anyhow::Result<()> {
    // ANCHOR: shift
    // Pass a buffer to the right:
    // 1. `outgoing` goes to the right neighbor, and `incoming` comes from the left neighbor;
    // 2. the ranks never deadlock, no matter how large the buffers are;
    // 3. no group is left open, even if one of the calls fails; after a failed send, the receive is optional;
    // 4. the host does not wait for the GPU.
    let (left, right) = neighbors(comm.rank(), comm.world_size());
    group_start().readable()?;
    let sent = comm.send(outgoing, right as i32).readable();
    let received = comm.recv(incoming, left as i32).readable();
    let ended = group_end().readable();
    sent.and(received).and(ended).map(drop)
    // ANCHOR_END: shift
}

/// Writes the sum of all ranks' `own` into `total`, on every rank, by sending around the ring. Returns without waiting for the GPU.
/// Both buffers have the same length on all ranks. Every rank must call it.
///
/// # Errors
/// Returns any error from [`shift`] or the driver.
pub fn sum_around(
    comm: &Comm,
    kernels: &Kernels,
    own: &CudaView<f32>,
    total: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: sum_around
    // Sum over all ranks with `shift`:
    // 1. `total` is the sum of every rank's `own`, each counted once, no matter what `total` contained before;
    // 2. `own` does not change;
    // 3. the values travel from neighbor to neighbor only through `shift`, with `world_size - 1` calls on each rank;
    // 4. no round of the loop allocates memory;
    // 5. the host does not wait for the GPU.
    let stream = comm.stream();
    stream.memcpy_dtod(own, total)?;
    let mut passing = stream.clone_dtod(own)?;
    let mut arriving = stream.alloc_zeros::<f32>(own.len())?;
    for _ in 1..comm.world_size() {
        shift(comm, &passing.as_view(), &mut arriving.as_view_mut())?;
        kernels.axpy(&stream, total, &arriving, 1.0)?;
        std::mem::swap(&mut passing, &mut arriving);
    }
    Ok(())
    // ANCHOR_END: sum_around
}
