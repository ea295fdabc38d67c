// mistake: the thread waits for every GPU, and nothing runs in parallel with the average any more
// fails: group::it_returns_before_the_average_is_there
// says: does it wait on the host?

use anyhow::ensure;
use collectives::all_reduce::average_in_place;
use cudarc::driver::CudaViewMut;
use cudarc::nccl::{Comm, group_end, group_start};
use lab::Readable;

pub fn in_group<T>(calls: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    group_start().readable()?;
    let result = calls();
    let ended = group_end().readable();
    let value = result?;
    ended?;
    Ok(value)
}

pub fn average_all(comms: &[Comm], buffers: &mut [CudaViewMut<f32>]) -> anyhow::Result<()> {
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
    in_group(|| comms.iter().zip(buffers).try_for_each(|(comm, buffer)| average_in_place(comm, buffer)))?;
    comms.iter().try_for_each(|comm| Ok(comm.stream().synchronize()?))
}
