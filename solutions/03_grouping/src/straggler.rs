//! Stragglers: who is late, by how much, and who does not come at all.
//!
//! A collective is a barrier: it ends on every rank when the last one has come. It says neither who that was, nor ends if
//! somebody never comes. So the host looks at the clock, and the ranks sign a register that needs no GPU.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::bail;
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaSlice};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

/// Who has come to one barrier. Threads of a process share it; processes have a small server for this.
#[derive(Debug)]
pub struct Register(Vec<AtomicBool>);

impl Register {
    /// For one barrier of so many ranks.
    pub fn new(world_size: usize) -> Self {
        Self((0..world_size).map(|_| AtomicBool::new(false)).collect())
    }

    /// The rank has come.
    pub fn sign(&self, rank: usize) {
        self.0[rank].store(true, Ordering::SeqCst);
    }

    /// The ranks that haven't signed, in ascending order.
    pub fn missing(&self) -> Vec<usize> {
        (0..self.0.len()).filter(|&rank| !self.0[rank].load(Ordering::SeqCst)).collect()
    }
}

/// Waits until the event is complete, but not beyond `until`: says whether it is. `clock` is the host's: the time since some
/// moment, another one on each host.
///
/// # Errors
/// What the driver answers: then the event will never be complete.
pub fn complete_by(event: &CudaEvent, clock: impl Fn() -> Duration, until: Duration) -> anyhow::Result<bool> {
    // ANCHOR: complete_by
    // Ask the event again and again, until it is complete or the time is up.
    // `try_is_complete()` asks and returns at once. Between two questions, `std::thread::yield_now()` lets others work.
    while !event.try_is_complete()? {
        if clock() >= until {
            return Ok(false);
        }
        std::thread::yield_now();
    }
    Ok(true)
    // ANCHOR_END: complete_by
}

/// By how many milliseconds each rank came later to a barrier than the first one, in the order of ranks. `waited` is how long
/// this rank's GPU was in the barrier, in milliseconds. Every rank must call it; waits for the answer.
///
/// # Errors
/// What NCCL and the driver answer.
pub fn lateness(comm: &Comm, waited: f32) -> anyhow::Result<Vec<f32>> {
    // ANCHOR: lateness
    // Gather what every rank has waited, and tell from it who came when.
    // All left the barrier at the same time. So who waited longest came first, and who waited least came last.
    let stream = comm.stream();
    let own = stream.clone_htod(&[waited])?;
    let mut all = stream.alloc_zeros::<f32>(comm.world_size())?;
    comm.all_gather(&own, &mut all).readable()?;
    let all = stream.clone_dtoh(&all)?;
    let longest = all.iter().copied().fold(0.0, f32::max);
    Ok(all.iter().map(|waited| longest - waited).collect())
    // ANCHOR_END: lateness
}

/// Waits until every rank's GPU has come here, and returns the [`lateness`] of all ranks. Every rank must call it, with a
/// `token` of one element to sum, and the same register, which is new.
///
/// # Errors
/// Not all have come within `deadline` by the host's `clock`: which ones are missing. The sum is then still in flight, and all
/// that can be done with the communicator is to drop it. Or what NCCL and the driver answer.
pub fn barrier(
    comm: &Comm,
    token: &mut CudaSlice<f32>,
    register: &Register,
    clock: impl Fn() -> Duration,
    deadline: Duration,
) -> anyhow::Result<Vec<f32>> {
    let until = clock() + deadline;
    let stream = comm.stream();
    let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
    // ANCHOR: barrier
    // Sum the token over all ranks between two events, and wait for both, each until `until`.
    // When the first event is complete, this rank's GPU has come: sign. When the second one is, all have. What was between the
    // two is what this rank has waited. If time is up, the register knows who is missing.
    let came = stream.record_event(timed)?;
    comm.all_reduce_in_place(token, &ReduceOp::Sum).readable()?;
    let left = stream.record_event(timed)?;
    if complete_by(&came, &clock, until)? {
        register.sign(comm.rank());
    }
    if complete_by(&left, &clock, until)? {
        return lateness(comm, came.elapsed_ms(&left)?);
    }
    bail!("after {deadline:?} these ranks had not come to the barrier: {:?}", register.missing())
    // ANCHOR_END: barrier
}
