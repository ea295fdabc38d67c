//! Group calls: several calls that NCCL treats as one.
//!
//! With a group, one thread can drive all GPUs. Without one, its first call may wait for calls that the thread has yet to make.

use anyhow::ensure;
use collectives::all_reduce::average_in_place;
use cudarc::driver::CudaViewMut;
use cudarc::nccl::{Comm, group_end, group_start};
use lab::Readable;

/// Makes the NCCL calls in `calls` as one group, and returns what `calls` returns. Groups may be nested: the end of the
/// outermost group launches everything.
///
/// After an error, no group is left open. If `calls` fails for a reason unrelated to NCCL, the NCCL calls that it has made are launched.
///
/// # Errors
/// Returns any error from `calls`. If `calls` succeeds, returns any NCCL error from the start or the end of the group.
pub fn in_group<T>(calls: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    // ANCHOR: in_group
    // Run `calls` as one group:
    // 1. NCCL treats all calls that `calls` makes as one group;
    // 2. the group has ended when this function returns, whether `calls` returned a value or an error (a panic may leave it open);
    // 3. if both `calls` and the end of the group fail, return the error from `calls`: it came first, and it is the cause.
    group_start().readable()?;
    let result = calls();
    let ended = group_end().readable();
    let value = result?;
    ended?;
    Ok(value)
    // ANCHOR_END: in_group
}

/// Replaces every buffer with the average of all buffers, and returns without waiting for the GPUs. `buffers[i]`
/// belongs to `comms[i]`, and `comms` contains all ranks of one world, all driven by this thread. Without communicators
/// and buffers, does nothing.
///
/// Later work on the stream of `comms[i]` sees the average in `buffers[i]`. Any other stream has to wait for that
/// stream: cudarc records the use of a buffer at the call, but the group launches the work later.
///
/// # Errors
/// Fails, without sending anything, if the numbers of buffers and communicators differ, or if the lengths of two
/// buffers differ. The error contains both numbers. Also returns any error from NCCL.
pub fn average_all(comms: &[Comm], buffers: &mut [CudaViewMut<f32>]) -> anyhow::Result<()> {
    // ANCHOR: average_all
    // Average all buffers as one group:
    // 1. if there are not as many buffers as communicators, the error contains both numbers;
    // 2. if the buffers are not all equally long, the error contains two lengths that differ;
    // 3. if the arguments are wrong, NCCL is not called at all;
    // 4. every communicator averages its own buffer in place, with a single all-reduce;
    // 5. the host does not wait for the GPUs.
    ensure!(
        comms.len() == buffers.len(),
        "{} communicators, but {} buffers: each communicator needs one buffer",
        comms.len(),
        buffers.len()
    );
    for pair in buffers.windows(2) {
        let (one, next) = (pair[0].len(), pair[1].len());
        ensure!(one == next, "one buffer has {one} elements, but another has {next}");
    }
    in_group(|| comms.iter().zip(buffers).try_for_each(|(comm, buffer)| average_in_place(comm, buffer)))
    // ANCHOR_END: average_all
}
