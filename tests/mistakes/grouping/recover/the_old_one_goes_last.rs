// mistake: the old communicator is aborted when the new one is there
// fails: recover::the_old_communicator_goes_first
// says: the GPU of old rank 1 had 2 communicators at one time; expected 1
// says: the new one was made before the old one was aborted

use anyhow::Context;
use collectives::all_reduce;
use cudarc::driver::{CudaEvent, CudaView, CudaViewMut};
use cudarc::nccl::{Comm, Id};
use lab::Readable;

#[derive(Clone, Debug)]
pub struct Muster {
    pub survivors: Vec<usize>,
    pub id: Id,
}

pub fn rejoin(comm: Comm, muster: impl FnOnce(usize) -> anyhow::Result<Muster>) -> anyhow::Result<Comm> {
    let (stream, old_rank) = (comm.stream(), comm.rank());
    let Muster { survivors, id } = muster(old_rank)?;
    let rank = survivors.iter().position(|&survivor| survivor == old_rank);
    let rank = rank.with_context(|| format!("rank {old_rank} is none of the survivors {survivors:?}"))?;
    let new = Comm::from_rank(stream, rank, survivors.len(), id).readable()?;
    drop(comm);
    Ok(new)
}

pub fn sum_of_survivors(
    mut comm: Comm,
    values: &CudaView<f32>,
    total: &mut CudaViewMut<f32>,
    arrives: impl Fn(&CudaEvent) -> anyhow::Result<bool>,
    muster: impl Fn(usize) -> anyhow::Result<Muster>,
) -> anyhow::Result<Comm> {
    loop {
        all_reduce::sum(&comm, values, total)?;
        if arrives(&comm.stream().record_event(None)?)? {
            return Ok(comm);
        }
        comm = rejoin(comm, &muster)?;
    }
}
