//! Checks of `collectives/timing`.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use anyhow::{bail, ensure};
use cudarc::driver::CudaEvent;
use cudarc::nccl::ReduceOp;
use init::rendezvous::rendezvous;
use lab::{Check, Readable, irregular};

use crate::collectives::timing::{finish_line, gpu_milliseconds, host_times};
use crate::exercise::spinning::spinning;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("timing::the_mean_is_that_of_a_round", the_mean_is_that_of_a_round),
        Check::new("timing::warming_up_is_not_measured", warming_up_is_not_measured),
        Check::new("timing::the_call_is_not_the_work", the_call_is_not_the_work),
        Check::new("timing::earlier_work_takes_no_part", earlier_work_takes_no_part),
        Check::new("timing::the_event_comes_with_the_work", the_event_comes_with_the_work),
        Check::new("timing::a_collective_can_be_timed", a_collective_can_be_timed).min_ranks(2),
    ]
}

const MILLISECOND: u64 = 1_000_000;
/// How long a round keeps the GPU busy.
const ROUND: u64 = 400_000;

/// A spin lasts at least as long as it is asked to. A little less is allowed, for the clocks' resolution; five times as
/// much is allowed for a GPU that others use too.
fn check_milliseconds(got: f64, too_long: &str) -> anyhow::Result<()> {
    let round = ROUND as f64 / MILLISECOND as f64;
    let cause = if got < round {
        "that is not the time of a round on the GPU: do both events lie in the stream, around all the rounds?"
    } else {
        too_long
    };
    ensure!(
        (0.95 * round..5.0 * round).contains(&got),
        "a round kept the GPU busy for {round} ms, and {got:.3} ms were measured\n  likely cause: {cause}"
    );
    Ok(())
}

fn the_mean_is_that_of_a_round() -> anyhow::Result<()> {
    let (stream, kernels) = spinning()?;
    for rounds in [1, 10] {
        let calls = Cell::new(0);
        let got = gpu_milliseconds(&stream, 0, rounds, || {
            calls.set(calls.get() + 1);
            kernels.spin(&stream, ROUND)
        })?;
        ensure!(calls.get() == rounds, "{rounds} rounds without warm-up called `work` {} times", calls.get());
        check_milliseconds(
            got,
            "all rounds together take that long (divide by their number), or the host's clock was read",
        )?;
    }
    Ok(())
}

fn warming_up_is_not_measured() -> anyhow::Result<()> {
    let (stream, kernels) = spinning()?;
    let calls = Cell::new(0);
    let got = gpu_milliseconds(&stream, 3, 2, || {
        let call = calls.replace(calls.get() + 1);
        kernels.spin(&stream, if call < 3 { 10 * ROUND } else { ROUND })
    })?;
    ensure!(calls.get() == 5, "3 warm-ups and 2 rounds called `work` {} times", calls.get());
    check_milliseconds(got, "the warm-ups, 4 ms each, were measured too, or the host's clock was read")
}

/// A clock that shows how far things are, whenever and however often it is read.
struct Stages {
    earlier: CudaEvent,
    own: RefCell<Option<CudaEvent>>,
}

const EARLIER_WORK: Duration = Duration::from_secs(1000);
const NOTHING: Duration = Duration::from_secs(1100);
const CALLED: Duration = Duration::from_secs(1101);
const DONE: Duration = Duration::from_secs(1105);

impl Stages {
    fn read(&self) -> Duration {
        let done = |event: &CudaEvent| event.try_is_complete().unwrap_or(false);
        match &*self.own.borrow() {
            Some(own) if done(own) => DONE,
            Some(_) => CALLED,
            None if done(&self.earlier) => NOTHING,
            None => EARLIER_WORK,
        }
    }
}

/// What `host_times` says of a spin of 20 ms, behind another one of so many nanoseconds.
fn staged(earlier: u64) -> anyhow::Result<(Duration, Duration)> {
    let (stream, kernels) = spinning()?;
    if earlier > 0 {
        kernels.spin(&stream, earlier)?;
    }
    let stages = Stages { earlier: stream.record_event(None)?, own: RefCell::new(None) };
    let times = host_times(
        &stream,
        || stages.read(),
        || {
            kernels.spin(&stream, 20 * MILLISECOND)?;
            *stages.own.borrow_mut() = Some(stream.record_event(None)?);
            Ok(())
        },
    )?;
    stream.synchronize()?;
    Ok(times)
}

fn check_stages((called, done): (Duration, Duration)) -> anyhow::Result<()> {
    let expected = (CALLED - NOTHING, DONE - NOTHING);
    if (called, done) == expected {
        return Ok(());
    }
    let cause = if called >= CALLED - EARLIER_WORK {
        "the clock was first read while earlier work was in the stream: wait for that before"
    } else if called == done {
        "both were read at one stage: a call returns at once, and its work is done when the stream is"
    } else if called > expected.0 {
        "the call's time was read when its work was done"
    } else {
        "the clock is to be read before the call, behind it, and when the work is done"
    };
    bail!(
        "on a clock that shows 0 s before the call, 1 s when it has returned and 5 s when its work is done: expected \
         {expected:?}, got {:?}\n  likely cause: {cause}",
        (called, done)
    )
}

fn the_call_is_not_the_work() -> anyhow::Result<()> {
    check_stages(staged(0)?)
}

fn earlier_work_takes_no_part() -> anyhow::Result<()> {
    check_stages(staged(20 * MILLISECOND)?)
}

fn the_event_comes_with_the_work() -> anyhow::Result<()> {
    let (stream, kernels) = spinning()?;
    let behind = RefCell::new(None);
    let event = finish_line(&stream, || {
        kernels.spin(&stream, 20 * MILLISECOND)?;
        *behind.borrow_mut() = Some(stream.record_event(None)?);
        Ok(())
    })?;
    let complete = event.try_is_complete()?;
    let Some(behind) = behind.into_inner() else { bail!("`work` was never called") };
    ensure!(
        !behind.try_is_complete()?,
        "the work keeps the GPU busy for 20 ms, and finish_line did not return before that: does it wait on the host?"
    );
    ensure!(
        !complete,
        "the work keeps the GPU busy for 20 ms, and the event already says that it is complete\n  \
         likely cause: it was never recorded, or recorded before the work"
    );
    event.synchronize()?;
    ensure!(
        behind.try_is_complete()?,
        "the host waited for the event, and the work wasn't done\n  \
         likely cause: the event was never recorded, or recorded before the work"
    );
    stream.synchronize()?;
    ensure!(event.try_is_complete()?, "the stream is done, and the event isn't complete");
    Ok(())
}

fn a_collective_can_be_timed() -> anyhow::Result<()> {
    let world_size = lab::world_sizes().into_iter().max().unwrap_or(2);
    rendezvous(&lab::streams(world_size)?, |comm| {
        let stream = comm.stream();
        let mut buffer = stream.clone_htod(&irregular::integers(comm.rank(), 1 << 16))?;
        let got = gpu_milliseconds(&stream, 2, 5, || {
            comm.all_reduce_in_place(&mut buffer, &ReduceOp::Max).readable()?;
            Ok(())
        })?;
        ensure!(got > 0.0, "an all-reduce of 256 KiB on {world_size} ranks took {got:?} ms");
        Ok(())
    })?;
    Ok(())
}
