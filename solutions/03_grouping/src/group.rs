//! Group calls: several calls that NCCL treats as one.
//!
//! With a group, one thread can drive all GPUs. Without a group, its first call may wait for calls that the thread has yet to make.

use anyhow::ensure;
use collectives::all_reduce::average_in_place;
use cudarc::driver::CudaViewMut;
use cudarc::nccl::{Comm, group_end, group_start};
use lab::Readable;

/// Makes the NCCL calls in `calls` as one group, and returns what `calls` returns. Groups may nest: the end of the outermost group
/// launches everything.
///
/// After an error, no group is left open. If `calls` fails for a reason unrelated to NCCL, the NCCL calls before that are launched.
///
/// # Errors
/// Returns the error of `calls`. If `calls` succeeds, returns NCCL's error at the start or at the end of the group.
pub fn in_group<T>(calls: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    // ANCHOR: in_group
    // Run `calls` as one group:
    // 1. NCCL takes everything that `calls` asks for as one group;
    // 2. the group has ended when this function returns, whether `calls` succeeded or failed;
    // 3. if both `calls` and the end of the group fail, the error of `calls` is returned: it came first, and it is the cause.
    group_start().readable()?;
    let result = calls();
    let ended = group_end().readable();
    let value = result?;
    ended?;
    Ok(value)
    // ANCHOR_END: in_group
}

/// Replaces every buffer with the average of all buffers, and returns without waiting for the GPUs. `buffers[i]` belongs to
/// `comms[i]`, and `comms` are all ranks of one world, driven by this thread.
///
/// Later work on the stream of `comms[i]` finds the average in `buffers[i]`. Any other stream has to wait for that stream: cudarc
/// records the use of a buffer at the call, but the group launches the work later.
///
/// # Errors
/// Fails, without sending anything, if the numbers of buffers and communicators differ, or the lengths of two buffers. The error
/// has both numbers. Also returns NCCL's errors.
pub fn average_all(comms: &[Comm], buffers: &mut [CudaViewMut<f32>]) -> anyhow::Result<()> {
    // ANCHOR: average_all
    // Average all buffers as one group:
    // 1. there are as many buffers as communicators, or the error has both numbers;
    // 2. all buffers have the same length, or the error has two lengths that differ;
    // 3. if the arguments are wrong, NCCL was not called at all;
    // 4. every communicator averages its own buffer in place, with a single all-reduce;
    // 5. the host does not wait for the GPUs.
    ensure!(
        comms.len() == buffers.len(),
        "{} communicators, but {} buffers: each needs one",
        comms.len(),
        buffers.len()
    );
    for pair in buffers.windows(2) {
        let (one, next) = (pair[0].len(), pair[1].len());
        ensure!(one == next, "one buffer has {one} elements, another has {next}");
    }
    in_group(|| comms.iter().zip(buffers).try_for_each(|(comm, buffer)| average_in_place(comm, buffer)))
    // ANCHOR_END: average_all
}
