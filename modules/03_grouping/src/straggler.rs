//! Stragglers: which rank is late, by how much, and which rank never arrives.
//!
//! A collective ends on every rank once the last rank has arrived. It does not report which rank that was, and it has no deadline.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::bail;
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaSlice};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

/// Records which ranks have reached one barrier. The threads of a process share it; separate processes need a small server instead.
#[derive(Debug)]
pub struct Register(Vec<AtomicBool>);

impl Register {
    /// Creates the register for a barrier of `world_size` ranks.
    pub fn new(world_size: usize) -> Self {
        Self((0..world_size).map(|_| AtomicBool::new(false)).collect())
    }

    /// Records that `rank` has arrived.
    pub fn sign(&self, rank: usize) {
        self.0[rank].store(true, Ordering::SeqCst);
    }

    /// Returns the ranks that have not signed, in ascending order.
    pub fn missing(&self) -> Vec<usize> {
        (0..self.0.len()).filter(|&rank| !self.0[rank].load(Ordering::SeqCst)).collect()
    }
}

/// Waits for the event, but not beyond `until`. Returns whether the event is complete. `clock` returns the time since a
/// fixed moment; that moment differs from host to host.
///
/// # Errors
/// Returns any error from the driver. After such an error, the event never completes.
pub fn complete_by(event: &CudaEvent, clock: impl Fn() -> Duration, until: Duration) -> anyhow::Result<bool> {
    // ANCHOR: complete_by
    // Wait for the event, but not beyond the deadline:
    // 1. return `true` if the event is complete, even if time is up;
    // 2. return `false` only if `clock()` has reached `until`, and the event was not complete when it was last checked;
    // 3. return a driver error immediately;
    // 4. other threads get a chance to run during the wait.
    todo!("Wait for the event, but not beyond the deadline")
    // ANCHOR_END: complete_by
}

/// Returns how many milliseconds after the first rank each rank reached a barrier, in rank order. `waited` is how long
/// this rank's GPU spent in the barrier, in milliseconds. Every rank must call it. Waits for the result.
///
/// # Errors
/// Returns any error from NCCL or the driver.
pub fn lateness(comm: &Comm, waited: f32) -> anyhow::Result<Vec<f32>> {
    // ANCHOR: lateness
    // Compute how late each rank was:
    // 1. every rank gets the same list, with one number for each rank, from a single collective;
    // 2. the rank that arrived first has 0, and a rank that arrived x ms later has x;
    // 3. the clocks of different GPUs or hosts are never compared.
    todo!("Compute how late each rank was")
    // ANCHOR_END: lateness
}

/// Waits until all ranks' GPUs have arrived, and returns the [`lateness`] of every rank. Every rank must call it, with
/// a one-element `token` to sum, and with the same new register.
///
/// # Errors
/// Fails if a rank has not arrived within `deadline` by the host's `clock`; the error contains the numbers of the missing ranks.
/// The sum is then still in flight, and the communicator can only be dropped. Also returns any error from NCCL or the driver.
///
/// If the sum ends just before the deadline, one rank may succeed while another one gives up. Then [`lateness`] on the first rank waits
/// without a limit.
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
    // Meet all ranks in a sum of `token`:
    // 1. a rank signs as soon as its own GPU has reached the sum, even if other ranks never do;
    // 2. no wait for an event lasts beyond `until`;
    // 3. if all ranks arrive in time, return their `lateness`, based on the time that this GPU spent in the sum;
    // 4. otherwise, fail with an error that names the ranks missing in the register.
    todo!("Meet all ranks in a sum of `token`")
    // ANCHOR_END: barrier
}
