//! Recovery: a rank is lost, and the others go on without it.
//!
//! A communicator has no way to lose a rank. What it has in flight never ends, and what is enqueued behind that never begins. So
//! every survivor gives it up, and they make a smaller one.

use anyhow::Context;
use collectives::all_reduce;
use cudarc::driver::{CudaEvent, CudaView, CudaViewMut};
use cudarc::nccl::{Comm, Id};
use lab::Readable;

/// What the survivors are told by whoever watches over the ranks: the program that started them, which sees them end.
#[derive(Clone, Debug)]
pub struct Muster {
    /// The ranks that are left, by their numbers in the old world, in ascending order.
    pub survivors: Vec<usize>,
    /// The id of their new world: the same one for all of them.
    pub id: Id,
}

/// Gives up the communicator, and then makes one of the survivors on the same stream: not before the old one is gone, whose sum may
/// block the GPU. They keep their order, and their ranks have no gaps. `muster(rank)` asks, for a rank of the old world, what has
/// become of that world, and returns when all survivors have asked. Every survivor must call it.
///
/// # Errors
/// That of `muster`; this rank is none of the survivors; or what NCCL answers.
pub fn rejoin(comm: Comm, muster: impl FnOnce(usize) -> anyhow::Result<Muster>) -> anyhow::Result<Comm> {
    // ANCHOR: rejoin
    // Abort the old communicator, ask who is left, and join the new world.
    // A `Comm` aborts when it is dropped; what do you need of it before that? In the new world, a rank's number is its place
    // among the survivors.
    let (stream, old_rank) = (comm.stream(), comm.rank());
    drop(comm);
    let Muster { survivors, id } = muster(old_rank)?;
    let rank = survivors.iter().position(|&survivor| survivor == old_rank);
    let rank = rank.with_context(|| format!("rank {old_rank} is none of the survivors {survivors:?}"))?;
    Comm::from_rank(stream, rank, survivors.len(), id).readable()
    // ANCHOR_END: rejoin
}

/// Sums `values` over all ranks into `total`; if a rank is lost, over those that are left. Returns when the sum is there, with
/// the communicator that it was made with. Every rank that is left must call it.
///
/// `arrives(event)` waits for an event, but not for ever: it says whether the event has come. For `muster` see [`rejoin`].
///
/// # Errors
/// Those of `arrives` and of [`rejoin`], and what NCCL and the driver answer.
pub fn sum_of_survivors(
    mut comm: Comm,
    values: &CudaView<f32>,
    total: &mut CudaViewMut<f32>,
    arrives: impl Fn(&CudaEvent) -> anyhow::Result<bool>,
    muster: impl Fn(usize) -> anyhow::Result<Muster>,
) -> anyhow::Result<Comm> {
    // ANCHOR: sum_of_survivors
    // Sum with module 02's `all_reduce::sum`; as long as the sum doesn't arrive, rejoin and begin again.
    // An event behind the sum tells. What has come into `total` by then is worth nothing.
    loop {
        all_reduce::sum(&comm, values, total)?;
        if arrives(&comm.stream().record_event(None)?)? {
            return Ok(comm);
        }
        comm = rejoin(comm, &muster)?;
    }
    // ANCHOR_END: sum_of_survivors
}
