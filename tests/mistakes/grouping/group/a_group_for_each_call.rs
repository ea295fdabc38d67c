// mistake: each call has a group to itself, which is as good as none
// fails: group::every_gpu_gets_the_average
// says: deadlock: rank 1 is missing in a group
// says: one group_start before the calls of all these ranks

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
    comms.iter().zip(buffers).try_for_each(|(comm, buffer)| in_group(|| average_in_place(comm, buffer)))
}
