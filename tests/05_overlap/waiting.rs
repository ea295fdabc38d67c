//! Checks for `overlap/waiting`.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut, LaunchConfig};
use cudarc::nccl::Comm;
use cudarc::nvrtc::Ptx;
use lab::compare::UNIT_ROUNDOFF;
use lab::kernels::TRAP;
use lab::{
    Block, Budget, Check, Expected, Guarded, each_call_fails, ensure, irregular, while_blocked, without_panic,
};

use super::two_streams::{MILLISECOND, Rank, alone, on_each_rank, on_two_ranks, one_rank};
use crate::overlap::waiting::{Pending, all_at_the_end, at_once, before_use, polling};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("waiting::the_handle_gives_the_average_back", the_handle_gives_the_average_back)
            .calls(&["Pending::average", "Pending::wait"]),
        Check::new("waiting::starting_an_average_waits_for_nothing", starting_an_average_waits_for_nothing)
            .calls(&["Pending::average"]),
        Check::new("waiting::the_average_arrives_in_each_way", the_average_arrives_in_each_way).calls(&[
            "at_once",
            "before_use",
            "all_at_the_end",
            "polling",
        ]),
        Check::new("waiting::a_late_filling_is_waited_for", a_late_filling_is_waited_for)
            .calls(&["at_once", "before_use", "all_at_the_end", "polling"])
            .min_ranks(2),
        Check::new("waiting::a_late_average_is_waited_for", a_late_average_is_waited_for)
            .calls(&["at_once", "before_use", "all_at_the_end", "polling"])
            .min_ranks(2),
        Check::new("waiting::no_host_waits", no_host_waits).calls(&[
            "at_once",
            "before_use",
            "all_at_the_end",
            "polling",
        ]),
        Check::new("waiting::work_overlaps_the_average", work_overlaps_the_average)
            .calls(&["at_once", "before_use", "all_at_the_end", "polling"])
            .min_ranks(2),
        Check::new("waiting::polling_works_until_it_is_complete", polling_works_until_it_is_complete)
            .calls(&["polling"]),
        Check::new("waiting::polling_ends_with_an_error", polling_ends_with_an_error).calls(&["polling"]),
        Check::new("waiting::an_average_is_one_all_reduce", an_average_is_one_all_reduce).calls(&[
            "Pending::average",
            "Pending::wait",
            "Pending::is_complete",
        ]),
        Check::new("waiting::each_way_averages_each_buffer_once", each_way_averages_each_buffer_once)
            .calls(&["before_use", "all_at_the_end", "polling"]),
        Check::new("waiting::a_failed_call_is_an_error", a_failed_call_is_an_error).calls(&[
            "Pending::average",
            "Pending::wait",
            "Pending::is_complete",
            "before_use",
            "all_at_the_end",
            "polling",
        ]),
    ]
}

const LEN: usize = 1031;
/// The number of buffers for checks that need several.
const BUFFERS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    AtOnce,
    BeforeUse,
    AllAtTheEnd,
    Polling,
}

const WAYS: [Way; 4] = [Way::AtOnce, Way::BeforeUse, Way::AllAtTheEnd, Way::Polling];

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::AtOnce => "at_once",
            Self::BeforeUse => "before_use",
            Self::AllAtTheEnd => "all_at_the_end",
            Self::Polling => "polling",
        })
    }
}

fn input(rank: usize, buffer: usize) -> Vec<f32> {
    irregular::integers(10 * buffer + rank, LEN)
}

fn stale(buffer: usize) -> Vec<f32> {
    irregular::integers(1000 + buffer, LEN)
}

/// Returns a bound on the error of an average of integers up to 1000. NCCL multiplies each integer by 1/n, and then
/// sums. 1/n, the n products, and the n − 1 sums each round by at most half a unit in the last place of 1000.
fn bound(world_size: usize) -> f64 {
    (3 * world_size) as f64 * 1000.0 * UNIT_ROUNDOFF
}

/// The buffers that the compute stream fills, and the outputs for their averages.
struct Data {
    inputs: Vec<CudaSlice<f32>>,
    buffers: Vec<Guarded<f32>>,
    outputs: Vec<CudaSlice<f32>>,
}

impl Data {
    fn new(rank: &Rank, buffers: usize) -> anyhow::Result<Self> {
        let stream = &rank.compute;
        let upload = |values: Vec<f32>| anyhow::Ok(stream.clone_htod(&values)?);
        let data = Self {
            inputs: (0..buffers).map(|i| upload(input(rank.number(), i))).collect::<anyhow::Result<_>>()?,
            buffers: (0..buffers).map(|i| Guarded::new(stream, &stale(i))).collect::<anyhow::Result<_>>()?,
            outputs: (0..buffers).map(|i| upload(stale(i))).collect::<anyhow::Result<_>>()?,
        };
        stream.synchronize()?;
        Ok(data)
    }

    /// Fills the buffers on the compute stream, and runs the chosen way.
    fn go(
        &mut self,
        rank: &Rank,
        way: Way,
        mut independent: impl FnMut() -> anyhow::Result<()>,
        mut at_use: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let Self { inputs, buffers, outputs } = self;
        let (comm, compute) = (&rank.comm, &rank.compute);
        let mut views: Vec<_> = buffers.iter_mut().map(Guarded::view_mut).collect();
        for (view, input) in views.iter_mut().zip(inputs) {
            compute.memcpy_dtod(input, view)?;
        }
        let mut dependent = |index: usize, average: &CudaViewMut<f32>| {
            at_use()?;
            Ok(compute.memcpy_dtod(average, &mut outputs[index])?)
        };
        if way == Way::AllAtTheEnd {
            return all_at_the_end(comm, compute, views, independent, dependent);
        }
        for (index, view) in views.into_iter().enumerate() {
            let dependent = |average: &CudaViewMut<f32>| dependent(index, average);
            match way {
                Way::AtOnce => at_once(comm, compute, view, &mut independent, dependent)?,
                Way::BeforeUse => before_use(comm, compute, view, &mut independent, dependent)?,
                _ => polling(comm, compute, view, &mut independent, dependent)?,
            }
        }
        Ok(())
    }

    fn compare(&self, rank: &Rank, way: &str) -> anyhow::Result<()> {
        rank.synchronize().with_context(|| format!("`{way}` returned, but then the GPU failed"))?;
        let world_size = rank.comm.world_size();
        for (index, (buffer, output)) in self.buffers.iter().zip(&self.outputs).enumerate() {
            let inputs: Vec<_> = (0..world_size).map(|rank| input(rank, index)).collect();
            let sum = |at: usize| inputs.iter().map(|input| input[at]).sum::<f32>();
            let sums: Vec<f32> = (0..LEN).map(sum).collect();
            let averages: Vec<f32> = sums.iter().map(|sum| sum / world_size as f32).collect();
            let name = |what: &str| format!("{what} {index} after `{way}` on {world_size} ranks");
            let compare = |what: &str, got: &[f32]| {
                Expected::new(rank.number(), &name(what), &averages)
                    .if_instead(&sums, "this is the sum, not the average")
                    .if_instead(
                        &input(rank.number(), index),
                        "these are the rank's own values, not the average",
                    )
                    .if_instead(&stale(index), "it holds its old values")
                    .within(bound(world_size), got)
            };
            compare("what was read from buffer", &rank.compute.clone_dtoh(output)?)?;
            compare("buffer", &buffer.read()?)?;
        }
        Ok(())
    }
}

fn the_handle_gives_the_average_back() -> anyhow::Result<()> {
    on_each_rank(1, |rank| {
        let mut data = Data::new(rank, BUFFERS)?;
        let Data { inputs, buffers, outputs } = &mut data;
        for ((input, buffer), output) in inputs.iter().zip(buffers).zip(outputs) {
            let mut view = buffer.view_mut();
            rank.compute.memcpy_dtod(input, &mut view)?;
            let pending = Pending::average(&rank.comm, &rank.compute, view)?;
            let average = pending.wait(&rank.compute)?;
            ensure!(
                average.len() == LEN,
                "Pending::wait returned a buffer of {} elements, expected {LEN}",
                average.len()
            );
            rank.compute.memcpy_dtod(&average, output)?;
        }
        data.compare(rank, "Pending::average` and `Pending::wait")
    })
}

fn starting_an_average_waits_for_nothing() -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        let mut data = Data::new(rank, 1)?;
        let late = rank.communicate_for(10 * MILLISECOND)?;
        let pending = Pending::average(&rank.comm, &rank.compute, data.buffers[0].view_mut())?;
        let worked = rank.compute_for(0)?;
        pending.wait(&rank.compute)?;
        rank.synchronize()?;
        let (late, worked) = (rank.interval(&late)?, rank.interval(&worked)?);
        ensure!(
            worked.end < late.end,
            "rank {}: work that was enqueued on the compute stream after `Pending::average` ran only after the average; \
             `Pending::average` must leave the wait to `Pending::wait`",
            rank.number()
        );
        Ok(())
    })
}

fn the_average_arrives_in_each_way() -> anyhow::Result<()> {
    on_each_rank(1, |rank| {
        for way in WAYS {
            let mut data = Data::new(rank, BUFFERS)?;
            let used = Cell::new(0);
            let count = || {
                used.set(used.get() + 1);
                Ok(())
            };
            data.go(rank, way, || Ok(()), count)?;
            ensure!(
                used.get() == BUFFERS,
                "`{way}` called `dependent` {} times for {BUFFERS} buffers, expected one call for each",
                used.get()
            );
            data.compare(rank, &way.to_string())?;
        }
        Ok(())
    })
}

fn a_late_filling_is_waited_for() -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        for way in WAYS {
            let mut data = Data::new(rank, 1)?;
            rank.compute_for(if rank.number() == 1 { MILLISECOND } else { 0 })?;
            data.go(rank, way, || Ok(()), || Ok(()))?;
            data.compare(rank, &way.to_string())?;
        }
        Ok(())
    })
}

fn a_late_average_is_waited_for() -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        for way in WAYS {
            let mut data = Data::new(rank, BUFFERS)?;
            rank.communicate_for(if rank.number() == 0 { MILLISECOND } else { 0 })?;
            data.go(rank, way, || Ok(()), || Ok(()))?;
            data.compare(rank, &way.to_string())?;
        }
        Ok(())
    })
}

fn no_host_waits() -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        for way in [Way::BeforeUse, Way::AllAtTheEnd] {
            let mut first = Data::new(rank, BUFFERS)?;
            first.go(rank, way, || Ok(()), || Ok(()))?;
            rank.synchronize()?;
            let mut data = Data::new(rank, BUFFERS)?;
            while_blocked(&way.to_string(), "the compute stream", &rank.compute, || {
                data.go(rank, way, || Ok(()), || Ok(()))
            })?;
            data.compare(rank, &way.to_string())?;
        }
        Ok(())
    })
}

fn work_overlaps_the_average() -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        for way in [Way::BeforeUse, Way::AllAtTheEnd] {
            let buffers = if way == Way::AllAtTheEnd { BUFFERS } else { 1 };
            let mut data = Data::new(rank, buffers)?;
            let stream = rank.comm.stream();
            let worked = RefCell::new(None);
            // The spin before the collective simulates a slow collective.
            let communicated = rank.mark(&stream, || {
                rank.kernels.spin(&stream, 2 * MILLISECOND)?;
                let independent = || {
                    *worked.borrow_mut() = Some(rank.compute_for(10 * MILLISECOND)?);
                    Ok(())
                };
                data.go(rank, way, independent, || Ok(()))
            })?;
            data.compare(rank, &way.to_string())?;
            let Some(worked) = worked.into_inner() else { bail!("{way} never called `independent`") };
            let (worked, communicated) = (rank.interval(&worked)?, rank.interval(&communicated)?);
            ensure!(
                worked.overlap(communicated) > 0.0,
                "rank {}: the communication in {way} and the independent work never overlapped, but they must",
                rank.number()
            );
            ensure!(
                communicated.end < worked.end,
                "rank {}: in {way}, {} done only after the independent work, although no average needs that work",
                rank.number(),
                if buffers == 1 { "the average was" } else { "the last average was" }
            );
        }
        Ok(())
    })
}

fn polling_works_until_it_is_complete() -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        let mut data = Data::new(rank, 1)?;
        let late = rank.communicate_for(10 * MILLISECOND)?;
        let pieces = Cell::new(0);
        let piece = || {
            pieces.set(pieces.get() + 1);
            Ok(())
        };
        let complete_at_use = Cell::new(false);
        data.go(rank, Way::Polling, piece, || {
            complete_at_use.set(late.is_over()?);
            Ok(())
        })?;
        ensure!(
            complete_at_use.get(),
            "rank {}: `polling` called `independent` {} times, and then used the average before it was complete",
            rank.number(),
            pieces.get()
        );
        ensure!(
            pieces.get() > 1,
            "rank {}: the average took 10 ms, but `polling` called `independent` only {} times in that time; expected \
             a call each time the average is not complete",
            rank.number(),
            pieces.get()
        );
        data.compare(rank, "polling")
    })
}

/// The maximum number of polls, a millisecond apart. A real GPU reports a trap within milliseconds.
const MOST_POLLS: usize = 1000;

fn polling_ends_with_an_error() -> anyhow::Result<()> {
    alone(|rank| {
        // If the exercise is not written yet, it panics here, before the kernel below causes an error.
        Data::new(&rank, 1)?.go(&rank, Way::Polling, || Ok(()), || Ok(()))?;
        rank.synchronize()?;
        let polled = Cell::new(0);
        let trap = rank.compute.context().load_module(Ptx::from_src(TRAP))?.load_function("trap")?;
        let mut data = Data::new(&rank, 1)?;
        // The GPU must not fail before the exercise has enqueued its work: each of its calls would return the error.
        let block = Block::enqueue(&rank.compute)?;
        // SAFETY: the kernel has no arguments and accesses no memory.
        unsafe { rank.compute.launch_builder(&trap).launch(LaunchConfig::for_num_elems(1)) }?;
        let independent = || {
            block.release();
            polled.set(polled.get() + 1);
            std::thread::sleep(Duration::from_millis(1));
            ensure!(polled.get() < MOST_POLLS, "the check stops polling");
            Ok(())
        };
        let answer = without_panic("polling after a kernel that failed", || {
            data.go(&rank, Way::Polling, independent, || Ok(()))
        });
        // The GPU's context is lost, so these can't be released properly.
        std::mem::forget((rank, data, trap));
        ensure!(
            polled.get() < MOST_POLLS,
            "a kernel before the collective failed, so the average will never complete, but polling called \
             `independent` {MOST_POLLS} times and went on; expected the error that `try_is_complete` returns"
        );
        ensure!(
            answer?.is_err(),
            "a kernel before the collective failed, but polling returned Ok; expected the error that `try_is_complete` \
             returns"
        );
        Ok(())
    })
}

/// Returns a budget for the collectives of these lengths. It also allows events and waits, but nothing else.
fn all_reduces(function: &str, lengths: &[usize], comm: &Comm) -> Budget {
    let collectives: Vec<_> = lengths.iter().map(|&len| ("AllReduce", len)).collect();
    let budget = Budget::of(function).collectives(&collectives).messages(0).kernels(0).copies(0).fills(0);
    budget.allocations(0).new_streams(0).communicators(0).stream_of(comm)
}

fn an_average_is_one_all_reduce() -> anyhow::Result<()> {
    on_two_ranks(|rank| {
        let (comm, compute) = (&rank.comm, &rank.compute);
        let mut buffer = compute.alloc_zeros::<f32>(LEN)?;
        rank.synchronize()?;
        // Two events before the average, and two after it.
        let budget = all_reduces("Pending::average", &[LEN], comm).events(4).host_waits(0).polls(0);
        let pending = budget.spend(|| Pending::average(comm, compute, buffer.as_view_mut()))?;
        all_reduces("Pending::is_complete", &[], comm)
            .events(0)
            .host_waits(0)
            .polls(2)
            .spend(|| pending.is_complete())?;
        // A stream need not wait for an event that is already complete.
        let budget = all_reduces("Pending::wait", &[], comm).events(2).host_waits(0).polls(1);
        budget.spend(|| pending.wait(compute).map(drop))?;
        rank.synchronize()
    })
}

/// `independent` and `dependent` make no CUDA calls, so that only the exercise's calls are counted.
fn each_way_averages_each_buffer_once() -> anyhow::Result<()> {
    /// The first and last lengths are equal, and one tensor has a single element.
    const LENGTHS: [usize; 4] = [37, 1, 1031, 37];
    on_each_rank(1, |rank| {
        let (comm, compute) = (&rank.comm, &rank.compute);
        let mut buffers: Vec<CudaSlice<f32>> =
            LENGTHS.iter().map(|&len| compute.alloc_zeros(len)).collect::<Result<_, _>>()?;
        rank.synchronize()?;
        // Polling may also make the host wait once for an average that is already complete, because that costs nothing.
        for (way, function, waits) in [(Way::BeforeUse, BEFORE_USE, 0), (Way::Polling, POLLING, 1)] {
            let budget = all_reduces(&way.to_string(), &LENGTHS[..1], comm).events(5).host_waits(waits);
            budget.spend(|| {
                function(comm, compute, buffers[0].as_view_mut(), &mut || Ok(()), &mut |_| Ok(()))
            })?;
            rank.synchronize()?;
        }
        let mut used = Vec::new();
        let budget = all_reduces("all_at_the_end", &LENGTHS, comm)
            .events(5 * LENGTHS.len() as u64)
            .host_waits(0)
            .polls(LENGTHS.len() as u64);
        budget.spend(|| {
            let views = buffers.iter_mut().map(CudaSlice::as_view_mut).collect();
            all_at_the_end(
                comm,
                compute,
                views,
                || Ok(()),
                |index, average| {
                    used.push((index, average.len()));
                    Ok(())
                },
            )
        })?;
        rank.synchronize()?;
        let expected: Vec<_> = LENGTHS.iter().copied().enumerate().collect();
        ensure!(
            used == expected,
            "rank {}: `all_at_the_end` called `dependent` with these buffers and lengths: {used:?}; expected {expected:?}",
            rank.number()
        );
        let calls = Cell::new(0);
        let independent = || {
            calls.set(calls.get() + 1);
            Ok(())
        };
        all_at_the_end(comm, compute, Vec::new(), independent, |index, _| {
            bail!("`dependent` was called for buffer {index}")
        })
        .context("`all_at_the_end`: there are no buffers, which must not be an error")?;
        let calls = calls.get();
        ensure!(
            calls == 1,
            "`all_at_the_end` called `independent` {calls} times with no buffers; expected one call"
        );
        Ok(())
    })
}

/// A way to use a single buffer.
type Single = fn(
    &Comm,
    &Arc<CudaStream>,
    CudaViewMut<f32>,
    &mut dyn FnMut() -> anyhow::Result<()>,
    &mut dyn FnMut(&CudaViewMut<f32>) -> anyhow::Result<()>,
) -> anyhow::Result<()>;

const BEFORE_USE: Single =
    |comm, compute, buffer, independent, dependent| before_use(comm, compute, buffer, independent, dependent);
const POLLING: Single =
    |comm, compute, buffer, independent, dependent| polling(comm, compute, buffer, independent, dependent);

/// Runs one of the exercise's functions with failing calls, on a rank with a new buffer.
fn fails(function: &str, run: impl Fn(&Rank, CudaViewMut<f32>) -> anyhow::Result<()>) -> anyhow::Result<()> {
    each_call_fails(function, || {
        let rank = one_rank()?;
        let mut buffer = rank.compute.alloc_zeros::<f32>(LEN)?;
        rank.synchronize()?;
        let run = &run;
        Ok(move || {
            let result = run(&rank, buffer.as_view_mut());
            // Nothing else orders the release of the buffer.
            rank.synchronize()?;
            result
        })
    })
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    let work = |rank: &Rank| rank.kernels.spin(&rank.compute, 0);
    fails("Pending", |rank, buffer| {
        let pending = Pending::average(&rank.comm, &rank.compute, buffer)?;
        pending.is_complete()?;
        pending.wait(&rank.compute).map(drop)
    })?;
    for (function, way) in [("before_use", BEFORE_USE), ("polling", POLLING)] {
        fails(function, |rank, buffer| {
            way(&rank.comm, &rank.compute, buffer, &mut || work(rank), &mut |_| work(rank))
        })?;
    }
    fails("all_at_the_end", |rank, mut buffer| {
        let (one, other) = buffer.split_at_mut(LEN / 2);
        all_at_the_end(&rank.comm, &rank.compute, vec![one, other], || work(rank), |_, _| work(rank))
    })
}
