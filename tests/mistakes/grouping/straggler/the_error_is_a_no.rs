// mistake: the query that says `false` of an error too
// fails: straggler::a_wait_ends_with_an_error
// says: `is_complete` says `false` of an error too

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::bail;
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaSlice};
use cudarc::nccl::{Comm, ReduceOp};
use lab::Readable;

#[derive(Debug)]
pub struct Register(Vec<AtomicBool>);

impl Register {
    pub fn new(world_size: usize) -> Self {
        Self((0..world_size).map(|_| AtomicBool::new(false)).collect())
    }

    pub fn sign(&self, rank: usize) {
        self.0[rank].store(true, Ordering::SeqCst);
    }

    pub fn missing(&self) -> Vec<usize> {
        (0..self.0.len()).filter(|&rank| !self.0[rank].load(Ordering::SeqCst)).collect()
    }
}

pub fn complete_by(event: &CudaEvent, clock: impl Fn() -> Duration, until: Duration) -> anyhow::Result<bool> {
    while !event.is_complete() {
        if clock() >= until {
            return Ok(false);
        }
        std::thread::yield_now();
    }
    Ok(true)
}

pub fn lateness(comm: &Comm, waited: f32) -> anyhow::Result<Vec<f32>> {
    let stream = comm.stream();
    let own = stream.clone_htod(&[waited])?;
    let mut all = stream.alloc_zeros::<f32>(comm.world_size())?;
    comm.all_gather(&own, &mut all).readable()?;
    let all = stream.clone_dtoh(&all)?;
    let longest = all.iter().copied().fold(0.0, f32::max);
    Ok(all.iter().map(|waited| longest - waited).collect())
}

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
}
