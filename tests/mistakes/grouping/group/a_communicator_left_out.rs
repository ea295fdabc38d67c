// mistake: rank 0 is left out, as if it were only there to start the others
// fails: group::every_gpu_gets_the_average
// says: deadlock: rank 0 is missing in a group

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
    in_group(|| {
        let others = comms.iter().zip(buffers).skip(1);
        others.into_iter().try_for_each(|(comm, buffer)| average_in_place(comm, buffer))
    })
}
