//! Recovery: when a rank is lost, the other ranks continue in a smaller world.
//!
//! A communicator cannot do without a rank: its work in flight never ends, and later work on its stream never starts.

use anyhow::Context;
use collectives::all_reduce;
use cudarc::driver::{CudaEvent, CudaView, CudaViewMut};
use cudarc::nccl::{Comm, Id};
use lab::Readable;

/// The list of survivors. It comes from whatever monitors the ranks, such as the program that started them.
#[derive(Clone, Debug)]
pub struct Muster {
    /// The old numbers of the remaining ranks, in ascending order.
    pub survivors: Vec<usize>,
    /// The id for their new world, the same for all of them.
    pub id: Id,
}

/// Aborts `comm`, and returns a communicator for the survivors' new world, on the same stream. The survivors keep their
/// order, and their ranks have no gaps. `muster(rank)` takes this rank's old number, and returns once all survivors
/// have called it. Every survivor must call this function.
///
/// # Errors
/// Fails if this rank is not a survivor. Also returns any error from `muster` or NCCL.
pub fn rejoin(comm: Comm, muster: impl FnOnce(usize) -> anyhow::Result<Muster>) -> anyhow::Result<Comm> {
    // ANCHOR: rejoin
    // Leave the old world and join the new one:
    // 1. nothing waits for the old communicator's work, which may never end;
    // 2. this rank never has two communicators at the same time;
    // 3. the new communicator uses the stream of the old one;
    // 4. the new ranks count from 0 without gaps, in the order of the old ranks;
    // 5. on a rank that is not a survivor, fail without trying to join.
    todo!("Leave the old world and join the new one")
    // ANCHOR_END: rejoin
}

/// Sums `values` over all ranks into `total` or, if ranks are lost, over the remaining ranks. Once the sum is complete,
/// returns the communicator that computed it. Every remaining rank must call it.
///
/// `arrives(event)` waits for an event, but not forever, and returns whether the event completed. For `muster`, see [`rejoin`].
///
/// # Errors
/// Returns any error from `arrives`, [`rejoin`], NCCL, or the driver.
pub fn sum_of_survivors(
    mut comm: Comm,
    values: &CudaView<f32>,
    total: &mut CudaViewMut<f32>,
    arrives: impl Fn(&CudaEvent) -> anyhow::Result<bool>,
    muster: impl Fn(usize) -> anyhow::Result<Muster>,
) -> anyhow::Result<Comm> {
    // ANCHOR: sum_of_survivors
    // Sum until a sum arrives:
    // 1. `total` is the sum over the ranks of the communicator that is returned;
    // 2. a sum that does not arrive is discarded: the survivors rejoin and sum again, with one all-reduce per attempt;
    // 3. that may happen any number of times;
    // 4. if no rank is lost, the old communicator is returned, and `muster` is not called;
    // 5. return an error from `arrives` immediately: it does not mean that the sum has not arrived.
    todo!("Sum until a sum arrives")
    // ANCHOR_END: sum_of_survivors
}
