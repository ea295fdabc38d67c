//! Checks for `collectives/timing`.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use cudarc::driver::{CudaEvent, CudaStream};
use cudarc::nccl::ReduceOp;
use init::rendezvous::rendezvous;
use lab::{Budget, Check, Readable, each_call_fails, ensure, irregular, with_host_waits};

use crate::collectives::timing::{finish_line, gpu_milliseconds, host_times};
use crate::exercise::spinning::spinning;

pub(crate) fn checks() -> Vec<Check> {
    [
        Check::new("timing::the_mean_is_that_of_a_round", the_mean_is_that_of_a_round)
            .calls(&["gpu_milliseconds"]),
        Check::new("timing::warming_up_is_not_measured", warming_up_is_not_measured)
            .calls(&["gpu_milliseconds"]),
        Check::new("timing::the_call_is_not_the_work", the_call_is_not_the_work).calls(&["host_times"]),
        Check::new("timing::earlier_work_is_not_timed", earlier_work_is_not_timed).calls(&["host_times"]),
        Check::new("timing::other_streams_are_not_timed", other_streams_are_not_timed).calls(&["host_times"]),
        Check::new("timing::the_event_comes_with_the_work", the_event_comes_with_the_work)
            .calls(&["finish_line"]),
        Check::new("timing::a_collective_can_be_timed", a_collective_can_be_timed)
            .calls(&["gpu_milliseconds"])
            .min_ranks(2),
        Check::new("timing::measuring_costs_little", measuring_costs_little),
        Check::new("timing::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
    .into_iter()
    .map(Check::measures_time)
    .collect()
}

const MILLISECOND: u64 = 1_000_000;
/// How long a round keeps the GPU busy.
const ROUND: u64 = 400_000;

/// Checks the milliseconds per round. A spin takes at least as long as requested. It may take slightly less because of
/// the clocks' resolution, and up to five times as long because the GPU may have other users. `mistakes` pairs the
/// number of rounds that a known mistake counts as one with its cause. The numbers differ enough for a tolerance of a
/// factor of two.
fn check_milliseconds(got: f64, mistakes: &[(f64, &str)]) -> anyhow::Result<()> {
    let round = ROUND as f64 / MILLISECOND as f64;
    let cause = mistakes.iter().find(|(rounds, _)| (0.95 * rounds..2.0 * rounds).contains(&(got / round)));
    let cause = cause.map_or_else(String::new, |(_, cause)| format!("\n  likely cause: {cause}"));
    ensure!(
        (0.95 * round..5.0 * round).contains(&got),
        "gpu_milliseconds is wrong for rounds that keep the GPU busy for {round} ms each\n  expected about {round} ms, \
         got {got:.3} ms{cause}"
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
        ensure!(
            calls.get() == rounds,
            "{rounds} rounds without warm-ups: gpu_milliseconds called `work` {} times, expected {rounds}",
            calls.get()
        );
        let together =
            (rounds as f64, "that is the time for all rounds together: divide it by the number of rounds");
        check_milliseconds(got, &[together])?;
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
    ensure!(
        calls.get() == 5,
        "3 warm-ups and 2 rounds: gpu_milliseconds called `work` {} times, expected 5",
        calls.get()
    );
    // There are 3 warm-ups, each of which takes as long as 10 rounds, and 2 rounds.
    let measured = "the warm-ups, which take 4 ms each, were measured, too";
    check_milliseconds(got, &[(32.0 / 2.0, measured), (32.0 / 5.0, measured)])
}

/// A clock that shows which stage the work has reached, no matter when and how often it is read.
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

/// Returns the result of `host_times` for a 20 ms spin after an earlier spin of `earlier` nanoseconds.
fn staged(earlier: u64) -> anyhow::Result<(Duration, Duration)> {
    let (stream, kernels) = spinning()?;
    if earlier > 0 {
        kernels.spin(&stream, earlier)?;
    }
    let stages = Stages { earlier: stream.record_event(None)?, own: RefCell::new(None) };
    let reads = Cell::new(0);
    let times = host_times(
        &stream,
        || {
            reads.set(reads.get() + 1);
            stages.read()
        },
        || {
            kernels.spin(&stream, 20 * MILLISECOND)?;
            *stages.own.borrow_mut() = Some(stream.record_event(None)?);
            Ok(())
        },
    )?;
    stream.synchronize()?;
    ensure!(reads.get() > 0, "`host_times` never called `clock`, so {times:?} are times of another clock");
    Ok(times)
}

fn check_stages((called, done): (Duration, Duration)) -> anyhow::Result<()> {
    let expected = (CALLED - NOTHING, DONE - NOTHING);
    if (called, done) == expected {
        return Ok(());
    }
    let cause = match (called, done) {
        // No other two stages are as far apart as the first stage and any later stage.
        _ if called.max(done) >= NOTHING - EARLIER_WORK => {
            "\n  likely cause: the clock was first read while earlier work was still running on the stream: wait for \
             that work first"
        }
        _ if (called, done) == (expected.0, expected.0) => {
            "\n  likely cause: the second time was read right after the call returned: a call returns immediately, but \
             its work is done only once the stream is"
        }
        _ if (called, done) == (expected.0, expected.1 - expected.0) => {
            "\n  likely cause: the second time is from the return of the call; it must be from the same moment as the first"
        }
        _ if (called, done) == (expected.1, expected.1) => {
            "\n  likely cause: the call's time was read only after its work was done"
        }
        _ => "",
    };
    bail!(
        "host_times is wrong with a clock that shows 0 s before the call, 1 s once it has returned, and 5 s once its \
         work is done\n  expected {expected:?}, got {:?}{cause}",
        (called, done)
    )
}

fn the_call_is_not_the_work() -> anyhow::Result<()> {
    check_stages(staged(0)?)
}

fn earlier_work_is_not_timed() -> anyhow::Result<()> {
    check_stages(staged(20 * MILLISECOND)?)
}

fn other_streams_are_not_timed() -> anyhow::Result<()> {
    let (stream, kernels) = spinning()?;
    let other = stream.context().new_stream()?;
    let behind = OnceCell::new();
    // The other stream gets its work once the measurement has begun: an earlier wait for all streams costs nothing.
    let clock = || {
        behind.get_or_init(|| {
            kernels.spin(&other, 40 * MILLISECOND)?;
            anyhow::Ok(other.record_event(None)?)
        });
        Duration::ZERO
    };
    host_times(&stream, clock, || kernels.spin(&stream, 5 * MILLISECOND))?;
    let Some(behind) = behind.into_inner() else { bail!("`host_times` never called `clock`") };
    ensure!(
        !behind?.try_is_complete()?,
        "`host_times` returned only after the work on another stream, which takes 40 ms; it must wait only for `stream`, \
         whose work takes 5 ms"
    );
    Ok(other.synchronize()?)
}

fn the_event_comes_with_the_work() -> anyhow::Result<()> {
    let (stream, kernels) = spinning()?;
    let behind = RefCell::new(None);
    let (event, waits) = with_host_waits(|| {
        finish_line(&stream, || {
            kernels.spin(&stream, 20 * MILLISECOND)?;
            *behind.borrow_mut() = Some(stream.record_event(None)?);
            Ok(())
        })
    })?;
    let complete = event.try_is_complete()?;
    let Some(behind) = behind.into_inner() else { bail!("`work` was never called") };
    ensure!(
        !behind.try_is_complete()?,
        "the work keeps the GPU busy for 20 ms, but `finish_line` returned only after that; it must not wait for \
         the work{waits}"
    );
    ensure!(
        !complete,
        "the event from finish_line is complete although the work is still keeping the GPU busy: an event marks the \
         work that was enqueued on its stream before it was recorded"
    );
    event.synchronize()?;
    ensure!(
        behind.try_is_complete()?,
        "the event from finish_line is complete before the work is: an event marks the work that was enqueued on its \
         stream before it was recorded"
    );
    stream.synchronize()?;
    ensure!(event.try_is_complete()?, "the stream is done, but the event from finish_line is not complete");
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
        ensure!(
            got > 0.0,
            "an all-reduce of 256 KiB on {world_size} ranks took {got:?} ms, expected more than 0"
        );
        Ok(())
    })?;
    Ok(())
}

fn measuring_costs_little() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let streams = [(&stream, "`stream`")];
    let budget = |function: &str| Budget::of(function).kernels(0).copies(0).allocations(0).streams(&streams);
    // All rounds are measured together, so a round needs no event or wait.
    let rounds = budget("gpu_milliseconds").events(4).host_waits(8);
    rounds.spend(|| gpu_milliseconds(&stream, 2, 20, || Ok(())))?;
    let line = budget("finish_line").events(2).host_waits(0).polls(0);
    line.spend(|| finish_line(&stream, || Ok(())))?.synchronize()?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    // The work's calls are made to fail, too.
    let fill = |stream: &Arc<CudaStream>| -> anyhow::Result<()> {
        let mut buffer = stream.alloc_zeros::<f32>(37)?;
        Ok(stream.memset_zeros(&mut buffer)?)
    };
    let stream = || -> anyhow::Result<_> { Ok(lab::streams(1)?.remove(0)) };
    each_call_fails("gpu_milliseconds", || {
        let stream = stream()?;
        Ok(move || gpu_milliseconds(&stream, 1, 2, || fill(&stream)).map(drop))
    })?;
    each_call_fails("host_times", || {
        let (stream, started) = (stream()?, Instant::now());
        Ok(move || host_times(&stream, || started.elapsed(), || fill(&stream)).map(drop))
    })?;
    each_call_fails("finish_line", || {
        let stream = stream()?;
        Ok(move || finish_line(&stream, || fill(&stream)).map(drop))
    })
}
