//! A group: several calls that NCCL takes as one.
//!
//! A call may wait until every rank has made it. With a thread for each rank it does so at the same time as the others; a thread that
//! drives all the ranks would wait for itself. Between the start and the end of a group, calls only write down what they
//! want, and the end launches everything together.

use anyhow::ensure;
use collectives::all_reduce::average_in_place;
use cudarc::driver::CudaViewMut;
use cudarc::nccl::{Comm, group_end, group_start};
use lab::Readable;

/// Makes the NCCL calls in `calls` as one group, and returns what `calls` returns. Groups may nest: then the end of the
/// outermost one launches.
///
/// After an error no group is left open. What `calls` had called before its error is launched all the same.
///
/// # Errors
/// That of `calls`; or else NCCL's at the start or at the end.
pub fn in_group<T>(calls: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    // ANCHOR: in_group
    // Start a group, run `calls`, and end the group whatever came of them.
    // Both `calls` and the end may fail. Of two errors, return that of `calls`: it came first, and is the cause.
    group_start().readable()?;
    let result = calls();
    let ended = group_end().readable();
    let value = result?;
    ended?;
    Ok(value)
    // ANCHOR_END: in_group
}

/// Replaces every buffer by the average of all of them: `buffers[i]` is that of `comms[i]`, and `comms` are all ranks of
/// one world, driven by this thread. Returns at once.
///
/// What comes next in the stream of `comms[i]` finds the average in `buffers[i]`. Another stream has to wait for that
/// one: cudarc notes the use of a buffer at the call, and here the work is launched later.
///
/// # Errors
/// There are not as many buffers as communicators, or the buffers differ in length (the error says both numbers; nothing
/// was sent), or NCCL refuses.
pub fn average_all(comms: &[Comm], buffers: &mut [CudaViewMut<f32>]) -> anyhow::Result<()> {
    // ANCHOR: average_all
    // Compare the numbers, then average in one group: a call of module 02's `average_in_place` for each communicator.
    // Everything that you can refuse, refuse before the group.
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
