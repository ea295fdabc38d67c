//! Checks for `grouping/straggler`.

mod missing;

use std::cell::Cell;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cudarc::driver::{CudaSlice, CudaStream, LaunchConfig};
use cudarc::nccl::Comm;
use cudarc::nvrtc::Ptx;
use init::rendezvous::rendezvous;
use lab::kernels::TRAP;
use lab::yields::yields;
use lab::{Block, Budget, Check, Expected, Kernels, each_call_fails, ensure, without_panic, world_of_one};

use crate::grouping::straggler::{Register, barrier, complete_by, lateness};

pub(crate) fn checks() -> Vec<Check> {
    [
        Check::new("straggler::a_wait_ends_when_its_event_comes", a_wait_ends_when_its_event_comes)
            .calls(&["complete_by"]),
        Check::new("straggler::a_wait_ends_when_time_is_up", a_wait_ends_when_time_is_up)
            .calls(&["complete_by"]),
        Check::new("straggler::a_wait_ends_with_an_error", a_wait_ends_with_an_error).calls(&["complete_by"]),
        Check::new("straggler::others_may_run_during_a_wait", others_may_run_during_a_wait)
            .calls(&["complete_by"]),
        Check::new("straggler::the_rank_that_waited_least_was_last", the_rank_that_waited_least_was_last)
            .calls(&["lateness"]),
        Check::new("straggler::a_late_gpu_is_told_by_how_much", a_late_gpu_is_told_by_how_much)
            .calls(&["barrier"])
            .min_ranks(2),
        Check::new("straggler::a_missing_rank_is_named_by_all", missing::a_missing_rank_is_named_by_all)
            .calls(&["barrier"])
            .min_ranks(2),
        Check::new(
            "straggler::a_gpu_that_is_too_late_is_named_by_all",
            missing::a_gpu_that_is_too_late_is_named_by_all,
        )
        .calls(&["barrier"])
        .min_ranks(2),
        Check::new("straggler::lateness_takes_one_collective", lateness_takes_one_collective)
            .calls(&["lateness", "barrier"]),
        Check::new("straggler::a_failed_call_is_an_error", a_failed_call_is_an_error).calls(&[
            "complete_by",
            "lateness",
            "barrier",
        ]),
    ]
    .into_iter()
    .map(Check::measures_time)
    .collect()
}

const MILLISECOND: u64 = 1_000_000;
const DEADLINE: Duration = Duration::from_millis(777);
/// The message for a wait that gives up too early.
const NOT_SEEN: &str =
    "complete_by returned false before time was up; expected true, as soon as the event is complete";
/// A time that is later than any deadline.
const LONG_AFTER: Duration = Duration::from_secs(1_000_000);

/// Returns a clock that advances by a millisecond with each reading.
fn ticking() -> impl Fn() -> Duration {
    let looks = Cell::new(0);
    move || Duration::from_millis(looks.replace(looks.get() + 1))
}

fn a_wait_ends_when_its_event_comes() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let kernels = Kernels::load(stream.context())?;
    early_is_seen_early(&stream, &kernels)?;
    kernels.spin(&stream, 2 * MILLISECOND)?;
    let event = stream.record_event(None)?;
    let complete = complete_by(&event, || Duration::ZERO, DEADLINE)?;
    ensure!(complete, "{NOT_SEEN}");
    ensure!(event.try_is_complete()?, "complete_by returned true before the event was complete");
    let complete = complete_by(&event, || LONG_AFTER, DEADLINE)?;
    ensure!(
        complete,
        "complete_by returned false for an event that is already complete, because time is up; expected true"
    );
    Ok(())
}

/// Checks with a running clock that the wait ends soon after its event completes, long before the deadline.
fn early_is_seen_early(stream: &Arc<CudaStream>, kernels: &Kernels) -> anyhow::Result<()> {
    // A correct wait takes milliseconds, or a second on a busy machine; a wait that sleeps takes all of it.
    const FAR: Duration = Duration::from_secs(3);
    // The spin is short: on the virtual GPU, each query advances the clock by only a microsecond.
    kernels.spin(stream, MILLISECOND / 10)?;
    let event = stream.record_event(None)?;
    let start = Instant::now();
    let complete = complete_by(&event, || start.elapsed(), FAR)?;
    let took = start.elapsed();
    // Two thirds of the deadline separates the two cases.
    ensure!(
        took < FAR * 2 / 3,
        "complete_by returned {complete} after {:.1} s, expected true after a few ms\n  the event was complete after 0.1 \
         ms, but the deadline is {} s: query the event repeatedly, and don't sleep until the deadline",
        took.as_secs_f64(),
        FAR.as_secs()
    );
    ensure!(complete, "{NOT_SEEN}");
    Ok(())
}

fn a_wait_ends_when_time_is_up() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let kernels = Kernels::load(stream.context())?;
    kernels.spin(&stream, 0)?;
    stream.synchronize()?;
    kernels.spin(&stream, 10 * MILLISECOND)?;
    let event = stream.record_event(None)?;
    let (clock, looks) = (ticking(), Cell::new(0));
    let counted = || {
        looks.set(looks.get() + 1);
        clock()
    };
    let complete = complete_by(&event, counted, Duration::from_millis(5))?;
    ensure!(
        !complete,
        "complete_by kept waiting for the event after time was up, and read the clock {} times\n  time was up when the \
         clock was read for the 6th time, but the GPU was busy for 10 ms",
        looks.get()
    );
    Ok(stream.synchronize()?)
}

fn others_may_run_during_a_wait() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let kernels = Kernels::load(stream.context())?;
    kernels.spin(&stream, 0)?;
    stream.synchronize()?;
    // The spin is short, because on the virtual GPU each query advances the clock by only a microsecond, even while the
    // host sleeps.
    kernels.spin(&stream, MILLISECOND / 5)?;
    let event = stream.record_event(None)?;
    let looks = Cell::new(0_u64);
    let counted = || {
        looks.set(looks.get() + 1);
        Duration::ZERO
    };
    let (_, yields) = yields(|| complete_by(&event, counted, DEADLINE))?;
    let Some(yields) = yields else {
        println!("skipped, because this system does not count how often a thread yields");
        return Ok(());
    };
    // A wait may spin briefly before it yields.
    ensure!(
        yields >= looks.get() / 100,
        "complete_by read the clock {} times in one wait, and slept, blocked, or yielded {yields} times; expected the \
         two numbers to be similar, because a wait that only spins keeps other threads off the core",
        looks.get()
    );
    Ok(())
}

fn a_wait_ends_with_an_error() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let kernels = Kernels::load(stream.context())?;
    let trap = stream.context().load_module(Ptx::from_src(TRAP))?.load_function("trap")?;
    kernels.spin(&stream, 0)?;
    stream.synchronize()?;
    // If the exercise is not written yet, it panics here, before the kernel below causes an error.
    complete_by(&stream.record_event(None)?, ticking(), DEADLINE)?;
    // The GPU must not fail before the event is enqueued: recording it would already return the error.
    let block = Block::enqueue(&stream)?;
    // SAFETY: the kernel has no arguments and accesses no memory.
    unsafe { stream.launch_builder(&trap).launch(LaunchConfig::for_num_elems(1)) }?;
    let event = stream.record_event(None)?;
    block.release();
    // Each reading of the clock takes a millisecond.
    let clock = ticking();
    let slow = || {
        std::thread::sleep(Duration::from_millis(1));
        clock()
    };
    let answer =
        without_panic("complete_by after a kernel that failed", || complete_by(&event, slow, DEADLINE));
    // The GPU's context is lost, so these can't be released properly.
    std::mem::forget((event, trap, kernels, stream));
    if let Ok(complete) = answer? {
        bail!(
            "a kernel before the event failed, so the event will never complete, but complete_by returned \
             Ok({complete}); expected the error that `try_is_complete` returns"
        );
    }
    Ok(())
}

fn the_rank_that_waited_least_was_last() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let rank = comm.rank();
            // Multiples of 1/8 are exact in an `f32`. Unless a rank is alone, the second one arrived first.
            let first = usize::from(world_size > 1);
            let late: Vec<f32> = (0..world_size).map(|rank| rank.abs_diff(first) as f32 * 1.125).collect();
            let longest = 4.0;
            let waited: Vec<f32> = late.iter().map(|late| longest - late).collect();
            let least = waited.iter().copied().fold(f32::INFINITY, f32::min);
            let each =
                |value: &dyn Fn(f32) -> f32| -> Vec<f32> { waited.iter().map(|&one| value(one)).collect() };
            let got = lateness(&comm, waited[rank])?;
            Expected::new(
                rank,
                &format!("the lateness of {world_size} ranks that waited {waited:?} ms"),
                &late,
            )
            .if_instead(
                &waited,
                "this is how long each rank waited, but the longer a rank waits, the earlier it arrived",
            )
            .if_instead(
                &each(&|one| one - least),
                "it is the wrong way around: the rank that waited least arrived last",
            )
            .if_instead(
                &each(&|one| one - longest),
                "it has the wrong sign: no rank arrived before the first one",
            )
            .if_instead(
                &each(&|one| waited[0] - one),
                "it is relative to rank 0, not to the rank that arrived first",
            )
            .if_instead(
                &each(&|one| waited[rank] - one),
                "it is relative to this rank, not to the rank that arrived first",
            )
            .exactly(&got)
        })?;
    }
    Ok(())
}

/// Loads and connects everything that a barrier needs, and returns a token to sum. The first collective sets up
/// its connections; if a rank were missing from it, a host might wait forever.
fn prepared(comm: &Comm, register: &Register) -> anyhow::Result<(CudaSlice<f32>, Kernels)> {
    let stream = comm.stream();
    let kernels = Kernels::load(stream.context())?;
    kernels.spin(&stream, 0)?;
    let mut token = stream.alloc_zeros::<f32>(1)?;
    barrier(comm, &mut token, register, || Duration::ZERO, DEADLINE)?;
    stream.synchronize()?;
    Ok((token, kernels))
}

/// Returns the smallest and the largest world in which a rank can be late. The others are skipped, because spins take
/// time.
fn worlds() -> Vec<usize> {
    let sizes: Vec<usize> = lab::world_sizes().into_iter().filter(|&size| size >= 2).collect();
    let mut ends: Vec<usize> = [sizes.first(), sizes.last()].into_iter().flatten().copied().collect();
    ends.dedup();
    ends
}

/// Returns whether a time in milliseconds is close to a nonzero multiple of 1000 s, the difference between the hosts'
/// clocks. The tolerance allows for the duration of the check.
fn is_between_hosts(milliseconds: f32) -> bool {
    let hosts = (milliseconds / 1e6).round();
    hosts != 0.0 && (milliseconds - 1e6 * hosts).abs() < 1e5
}

fn a_late_gpu_is_told_by_how_much() -> anyhow::Result<()> {
    const SPIN: u64 = 5;
    for world_size in worlds() {
        let late = world_size / 2;
        let (warm_up, register) = (Register::new(world_size), Register::new(world_size));
        let start = Barrier::new(world_size);
        rendezvous(&lab::streams(world_size)?, |comm| {
            let rank = comm.rank();
            let (mut token, kernels) = prepared(&comm, &warm_up)?;
            // Each rank simulates a separate host that started at a different time.
            let (booted, up) = (Instant::now(), Duration::from_secs(1000 * (1 + rank as u64)));
            start.wait();
            if rank == late {
                kernels.spin(&comm.stream(), SPIN * MILLISECOND)?;
            }
            let told = barrier(&comm, &mut token, &register, || up + booted.elapsed(), 100 * DEADLINE)
                .with_context(|| {
                    format!(
                        "all ranks arrived, but barrier returned an error after {:?}; its deadline is {:?}, and its \
                         clock started at {up:?}",
                        booted.elapsed(),
                        100 * DEADLINE
                    )
                })?;
            comm.stream().synchronize()?;
            let of = format!(
                "rank {rank}: rank {late} of {world_size} was kept busy for {SPIN} ms, and barrier reported that the \
                 ranks arrived {told:?} ms after the first one"
            );
            ensure!(told.len() == world_size, "{of}; expected one time for each rank");
            ensure!(
                told.iter().all(|&late| (0.0..1e5).contains(&late)),
                "{of}{}",
                match told.iter().any(|&late| is_between_hosts(late)) {
                    true => {
                        "\n  likely cause: the hosts' clocks are 1000 s apart, and times from different hosts' clocks \
                         were compared; a host knows only how long it has waited"
                    }
                    false => "; expected times from 0 to 100 s",
                }
            );
            let last = (0..world_size).max_by(|&one, &other| told[one].total_cmp(&told[other]));
            ensure!(
                last == Some(late) && told[late] > 0.2 * SPIN as f32,
                "{of}; expected rank {late} to be last, by more than {} ms",
                0.2 * SPIN as f32
            );
            Ok(())
        })?;
    }
    Ok(())
}

fn lateness_takes_one_collective() -> anyhow::Result<()> {
    let largest = lab::world_sizes().into_iter().max().unwrap_or(1);
    let register = Register::new(largest);
    rendezvous(&lab::streams(largest)?, |comm| {
        let bytes = (largest * size_of::<f32>()) as u64;
        let budget = |function: &str, collectives: u64| {
            let budget = Budget::of(function).any_collectives(collectives).messages(0);
            let budget = budget.bytes_to_device(bytes + 4).bytes_to_host(bytes).copies(3).allocations(3);
            budget.host_waits(3).new_streams(0).communicators(0)
        };
        budget("lateness", 1).spend(|| lateness(&comm, 1.0))?;
        let mut token = comm.stream().alloc_zeros::<f32>(1)?;
        let start = Instant::now();
        // The sum of the token, and the calls made by `lateness`. The events of its buffers count, too.
        let budget = budget("barrier", 2).events(12);
        budget.spend(|| barrier(&comm, &mut token, &register, || start.elapsed(), 100 * DEADLINE))?;
        Ok(comm.stream().synchronize()?)
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("complete_by", || {
        let stream = lab::streams(1)?.remove(0);
        let event = stream.record_event(None)?;
        Ok(move || complete_by(&event, ticking(), DEADLINE).map(drop))
    })?;
    each_call_fails("lateness", || {
        let comm = world_of_one()?;
        Ok(move || lateness(&comm, 1.0).map(drop))
    })?;
    each_call_fails("barrier", || {
        let comm = world_of_one()?;
        let mut token = comm.stream().alloc_zeros::<f32>(1)?;
        Ok(move || {
            let start = Instant::now();
            let clock = || start.elapsed();
            barrier(&comm, &mut token, &Register::new(1), clock, 100 * DEADLINE).map(drop)
        })
    })
}
