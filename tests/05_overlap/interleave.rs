//! Checks for `overlap/interleave`.

mod pipeline;

use anyhow::Context;
use cudarc::driver::{CudaSlice, CudaViewMut};
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::{Budget, Check, each_call_fails, ensure, while_blocked};

use super::quiet::QuietStages;
use super::two_streams::{on_two_ranks, one_rank};
use crate::overlap::interleave::interleave;
use pipeline::{Delays, Interval, Pipeline};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("interleave::the_result_is_the_serial_one", the_result_is_the_serial_one)
            .calls(&["interleave"])
            .min_ranks(2),
        Check::new("interleave::a_late_preprocess_is_waited_for", a_late_preprocess_is_waited_for)
            .calls(&["interleave"])
            .min_ranks(2),
        Check::new("interleave::a_late_sum_is_waited_for", a_late_sum_is_waited_for)
            .calls(&["interleave"])
            .min_ranks(2),
        Check::new("interleave::the_comm_stream_comes_after_it_too", the_comm_stream_comes_after_it_too)
            .calls(&["interleave"])
            .min_ranks(2),
        Check::new("interleave::communication_overlaps_computation", communication_overlaps_computation)
            .measures_time()
            .calls(&["interleave"])
            .min_ranks(2),
        Check::new("interleave::it_returns_with_everything_enqueued", it_returns_with_everything_enqueued)
            .calls(&["interleave"])
            .min_ranks(2),
        Check::new("interleave::only_events_are_used", only_events_are_used).calls(&["interleave"]),
        Check::new("interleave::a_failed_call_is_an_error", a_failed_call_is_an_error).calls(&["interleave"]),
    ]
}

const MILLISECOND: u64 = 1_000_000;
const LEN: usize = 1031;

/// Runs `check` on each rank of each world.
fn on_each_rank(check: impl Fn(&Comm) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    worlds().into_iter().try_for_each(|world_size| on_each_rank_of(world_size, &check))
}

/// Runs `check` on each rank of the largest world. Use it for slow checks that hardly depend on the world size.
fn on_each_rank_of_the_largest(check: impl Fn(&Comm) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    worlds().last().map_or(Ok(()), |&world_size| on_each_rank_of(world_size, check))
}

fn worlds() -> Vec<usize> {
    lab::world_sizes().into_iter().filter(|&size| size >= 2).collect()
}

fn on_each_rank_of(
    world_size: usize,
    check: impl Fn(&Comm) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    rendezvous(&lab::streams(world_size)?, |comm| check(&comm))?;
    Ok(())
}

fn the_result_is_the_serial_one() -> anyhow::Result<()> {
    on_each_rank(|comm| {
        for iterations in [0, 1, 2, 5] {
            let mut pipeline = Pipeline::new(comm, iterations, LEN, Delays::default())?;
            let compute = pipeline.compute.clone();
            let buffers = pipeline.run(&compute)?;
            // In all runs, stream errors are checked first, because they are more informative than a failed comparison.
            comm.stream().synchronize()?;
            pipeline.compare(&buffers)?;
        }
        Ok(())
    })
}

/// Reads the results on the compute stream. Starts with a single iteration, because its report is simplest.
fn delayed(comm: &Comm, delays: Delays) -> anyhow::Result<()> {
    for iterations in [1, 3] {
        let mut pipeline = Pipeline::new(comm, iterations, LEN, delays)?;
        let compute = pipeline.compute.clone();
        let buffers = pipeline.run(&compute)?;
        // Stream errors are checked first, because they are more informative than a failed comparison.
        comm.stream().synchronize()?;
        pipeline.compare(&buffers)?;
    }
    Ok(())
}

fn a_late_preprocess_is_waited_for() -> anyhow::Result<()> {
    on_each_rank(|comm| {
        let preprocess = if comm.rank() == 1 { MILLISECOND } else { 0 };
        delayed(comm, Delays { preprocess, ..Delays::default() })
    })
}

fn a_late_sum_is_waited_for() -> anyhow::Result<()> {
    on_each_rank(|comm| {
        let all_reduce = if comm.rank() == 0 { MILLISECOND } else { 0 };
        delayed(comm, Delays { all_reduce, ..Delays::default() })
    })
}

fn the_comm_stream_comes_after_it_too() -> anyhow::Result<()> {
    on_each_rank(|comm| {
        let delays = Delays { postprocess: MILLISECOND, ..Delays::default() };
        let mut pipeline = Pipeline::new(comm, 2, LEN, delays)?;
        let buffers = pipeline.run(&comm.stream())?;
        // A race report contains the line in the check that reads the buffer.
        pipeline.compare(&buffers).context(
            "the comm stream read the buffer: interleave must make the comm stream wait for the last \
                 postprocessing, too",
        )
    })
}

fn communication_overlaps_computation() -> anyhow::Result<()> {
    on_each_rank_of_the_largest(|comm| {
        let delays =
            Delays { preprocess: 2 * MILLISECOND, all_reduce: 2 * MILLISECOND, postprocess: MILLISECOND };
        let mut pipeline = Pipeline::new(comm, 3, LEN, delays)?;
        let compute = pipeline.compute.clone();
        let buffers = pipeline.run(&compute)?;
        pipeline.compare(&buffers)?;
        let (preprocessed, reduced) = pipeline.intervals()?;
        for (iteration, (sum, next)) in reduced.iter().zip(&preprocessed[1..]).enumerate() {
            let both = overlap(*sum, *next);
            let why = match pipeline.was_over(iteration + 1) {
                true => "the host enqueued the preprocessing only after the all-reduce was over",
                false if next.start < sum.start => {
                    "the all-reduce started only after the preprocessing was over, so the comm stream waited"
                }
                false => {
                    "the preprocessing was enqueued before the all-reduce was over, so the compute stream waited"
                }
            };
            ensure!(
                both > 0.0,
                "rank {}: the all-reduce of iteration {iteration} and the preprocessing of iteration {} never overlapped, but \
                 they must; {why}",
                comm.rank(),
                iteration + 1
            );
        }
        Ok(())
    })
}

/// Returns the overlap of two intervals in milliseconds. A negative result is the gap between them.
fn overlap(one: Interval, other: Interval) -> f32 {
    one.end.min(other.end) - one.start.max(other.start)
}

fn it_returns_with_everything_enqueued() -> anyhow::Result<()> {
    on_each_rank_of_the_largest(|comm| {
        // The buffers belong to the comm stream, because `run` waits for their stream before the exercise's call.
        let owner = comm.stream();
        let mut first = Pipeline::new(comm, 2, 37, Delays::default())?;
        let _first_buffers = first.run(&owner)?;
        comm.context().synchronize()?;
        let mut pipeline = Pipeline::new(comm, 2, 37, Delays::default())?;
        let compute = pipeline.compute.clone();
        let buffers = while_blocked("interleave", "the compute stream", &compute, || pipeline.run(&owner))?;
        pipeline.compare(&buffers)
    })
}

/// The stages make no CUDA calls, so that only the exercise's calls are counted.
fn only_events_are_used() -> anyhow::Result<()> {
    // There are more iterations than a pipeline has in flight.
    const ITERATIONS: usize = 7;
    on_two_ranks(|rank| {
        let (compute, comm) = (&rank.compute, rank.comm.stream());
        let mut buffers: Vec<CudaSlice<f32>> =
            (0..ITERATIONS).map(|_| compute.alloc_zeros(LEN)).collect::<Result<_, _>>()?;
        let mut views: Vec<CudaViewMut<f32>> = buffers.iter_mut().map(CudaSlice::as_view_mut).collect();
        let mut stages = QuietStages::new(rank);
        // Two events for each of the three stages, and a few around all of them.
        let budget = Budget::of("interleave").events(6 * ITERATIONS as u64 + 4).collectives(&[]).messages(0);
        let budget =
            budget.copies(0).fills(0).kernels(0).allocations(0).new_streams(0).host_waits(0).polls(0);
        budget.spend(|| interleave(compute, &comm, &mut stages, &mut views))?;
        stages.compare("interleave", ITERATIONS)
    })
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("interleave", || {
        let rank = one_rank()?;
        let mut buffers: Vec<CudaSlice<f32>> =
            (0..3).map(|_| rank.compute.alloc_zeros(LEN)).collect::<Result<_, _>>()?;
        rank.synchronize()?;
        Ok(move || {
            let mut views: Vec<CudaViewMut<f32>> = buffers.iter_mut().map(CudaSlice::as_view_mut).collect();
            let mut stages = QuietStages::at_work(&rank);
            let result = interleave(&rank.compute, &rank.comm.stream(), &mut stages, &mut views);
            // Nothing else orders the release of the buffers.
            rank.synchronize()?;
            result
        })
    })
}
