// mistake: only rank 0 looks at the clock, and the others synchronize
// fails: straggler::a_missing_rank_is_named_by_all
// says: this rank waits without looking at the clock: the deadline is for every rank

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
    while !event.try_is_complete()? {
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
    if comm.rank() != 0 {
        stream.synchronize()?;
    }
    if complete_by(&left, &clock, until)? {
        return lateness(comm, came.elapsed_ms(&left)?);
    }
    bail!("after {deadline:?} these ranks had not come to the barrier: {:?}", register.missing())
}
