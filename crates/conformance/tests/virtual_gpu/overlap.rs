//! Tests that the formulas for overlap hold on the virtual clock, with times measured by events.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaContext, CudaEvent, CudaSlice, CudaStream, PushKernelArg};
use cudarc::nccl::safe::{Comm, Id, ReduceOp};
use cudarc::nvrtc::Ptx;
use lab::{Check, Kernels};

use crate::child;
use crate::device::{shape, untracked};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("overlap::equal_buckets_take_the_predicted_time", buckets),
        Check::new("overlap::a_pipeline_takes_the_predicted_time", pipeline),
        Check::new("overlap::in_steady_state_an_iteration_takes_the_longer_stream", steady_state),
        Check::new("overlap::compute_during_a_collective_is_slower", slowdown),
        Check::new("overlap::kernels_of_two_streams_overlap_while_their_blocks_fit", kernels_that_fit),
        Check::new("overlap::kernels_of_two_streams_share_the_memory", kernels_that_share),
    ]
}

const MICROSECOND: u64 = 1_000;

/// The allowed relative error of a formula.
const WITHIN: f32 = 0.03;

/// One of two ranks. It has a compute stream in addition to its communicator's stream.
struct Rank {
    comm: Comm,
    compute: Arc<CudaStream>,
    kernels: Kernels,
}

/// Runs `program` on two ranks, each in its own thread.
fn two_ranks(program: impl Fn(&Rank) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    let id = Id::new().unwrap();
    lab::each_rank(2, |rank| {
        let context = untracked(rank);
        let kernels = Kernels::load(&context)?;
        let compute = context.new_stream()?;
        let comm = Comm::from_rank(context.new_stream()?, rank, 2, id).unwrap();
        let rank = Rank { comm, compute, kernels };
        program(&rank)?;
        rank.comm.stream().synchronize()?;
        Ok(rank.compute.synchronize()?)
    })?;
    Ok(())
}

/// A stage between two events.
struct Interval {
    start: CudaEvent,
    end: CudaEvent,
}

impl Interval {
    fn of(stream: &CudaStream, stage: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Self> {
        let mark = || stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
        let start = mark()?;
        stage()?;
        Ok(Self { start, end: mark()? })
    }

    fn milliseconds(&self) -> anyhow::Result<f32> {
        Ok(self.start.elapsed_ms(&self.end)?)
    }
}

/// Returns the mean of the stages' times, in milliseconds.
fn mean(intervals: &[Interval]) -> anyhow::Result<f32> {
    let sum = intervals.iter().map(Interval::milliseconds).sum::<anyhow::Result<f32>>()?;
    Ok(sum / intervals.len() as f32)
}

fn near(measured: f32, formula: f32, what: &str) {
    let off = (measured / formula - 1.0).abs();
    assert!(off <= WITHIN, "{what}: measured {measured} ms, but the formula predicts {formula} ms");
}

impl Rank {
    fn reduce(&self, buffer: &mut CudaSlice<f32>) -> anyhow::Result<Interval> {
        let stream = self.comm.stream();
        Interval::of(&stream, || {
            self.comm.all_reduce_in_place(buffer, &ReduceOp::Sum).unwrap();
            Ok(())
        })
    }

    fn zeros(&self, len: usize) -> anyhow::Result<CudaSlice<f32>> {
        let zeros = self.compute.alloc_zeros(len)?;
        self.compute.synchronize()?;
        Ok(zeros)
    }
}

/// With B buckets that take c to compute and m to communicate: T = c + (B − 1) · max(c, m) + m.
fn buckets() -> anyhow::Result<()> {
    const BUCKETS: usize = 6;
    // The cases are compute-bound, balanced, and communication-bound, with a kernel that spins or one that shares the
    // GPU.
    for (spin, scaled, reduced) in
        [(400, 0, 1 << 12), (120, 0, 1 << 12), (50, 0, 1 << 14), (0, 1 << 15, 1 << 12), (0, 1 << 13, 1 << 14)]
    {
        two_ranks(|rank| {
            let mut work = rank.zeros(scaled.max(1))?;
            let mut buffers =
                (0..BUCKETS).map(|_| rank.zeros(reduced)).collect::<anyhow::Result<Vec<_>>>()?;
            let (mut computed, mut communicated) = (Vec::new(), Vec::new());
            for buffer in &mut buffers {
                computed.push(Interval::of(&rank.compute, || match spin {
                    0 => rank.kernels.scale(&rank.compute, &mut work.as_view_mut(), 1.0),
                    spin => rank.kernels.spin(&rank.compute, spin * MICROSECOND),
                })?);
                rank.comm.stream().wait(&rank.compute.record_event(None)?)?;
                communicated.push(rank.reduce(buffer)?);
            }
            let last = &communicated[BUCKETS - 1].end;
            let (c, m) = (mean(&computed)?, mean(&communicated)?);
            let whole = computed[0].start.elapsed_ms(last)?;
            near(whole, c + (BUCKETS - 1) as f32 * c.max(m) + m, &format!("c = {c} ms, m = {m} ms"));
            Ok(())
        })?;
    }
    Ok(())
}

/// With k stages and n chunks: T = Σ tᵢ + (n − 1) · max tᵢ.
fn pipeline() -> anyhow::Result<()> {
    const CHUNKS: usize = 8;
    for (first, second) in [(80, 150), (300, 100), (40, 40)] {
        two_ranks(|rank| {
            let third_stream = rank.compute.context().new_stream()?;
            let mut buffers = (0..CHUNKS).map(|_| rank.zeros(1 << 12)).collect::<anyhow::Result<Vec<_>>>()?;
            let mut stages: [Vec<Interval>; 3] = Default::default();
            for buffer in &mut buffers {
                let spin = |stream: &CudaStream, length: u64| {
                    Interval::of(stream, || rank.kernels.spin(stream, length * MICROSECOND))
                };
                stages[0].push(spin(&rank.compute, first)?);
                rank.comm.stream().wait(&rank.compute.record_event(None)?)?;
                stages[1].push(rank.reduce(buffer)?);
                third_stream.wait(&rank.comm.stream().record_event(None)?)?;
                stages[2].push(spin(&third_stream, second)?);
            }
            third_stream.synchronize()?;
            let times = [mean(&stages[0])?, mean(&stages[1])?, mean(&stages[2])?];
            let longest = times.iter().copied().fold(0.0, f32::max);
            let whole = stages[0][0].start.elapsed_ms(&stages[2][CHUNKS - 1].end)?;
            let formula = times.iter().sum::<f32>() + (CHUNKS - 1) as f32 * longest;
            near(whole, formula, &format!("stages of {times:?} ms"));
            Ok(())
        })?;
    }
    Ok(())
}

/// If an iteration's work surrounds an all-reduce, one compute stream and one comm stream take max(before + after,
/// reduce) per iteration.
fn steady_state() -> anyhow::Result<()> {
    const ITERATIONS: usize = 12;
    const FIRST: usize = 4;
    for (before, after, reduced) in [(1 << 14, 1 << 13, 1 << 12), (1 << 11, 1 << 11, 1 << 14)] {
        two_ranks(|rank| {
            let mut work = [rank.zeros(before)?, rank.zeros(after)?];
            let mut buffers =
                (0..ITERATIONS).map(|_| rank.zeros(reduced)).collect::<anyhow::Result<Vec<_>>>()?;
            let mut stages: [Vec<Interval>; 3] = Default::default();
            let mut summed: Option<CudaEvent> = None;
            // One more round than there are iterations lets the last iteration end.
            for buffer in buffers.iter_mut().map(Some).chain([None]) {
                let mut compute = |stage: usize| {
                    Interval::of(&rank.compute, || {
                        rank.kernels.scale(&rank.compute, &mut work[stage].as_view_mut(), 1.0)
                    })
                };
                let last = summed.take();
                if let Some(buffer) = buffer {
                    stages[0].push(compute(0)?);
                    rank.comm.stream().wait(&rank.compute.record_event(None)?)?;
                    stages[1].push(rank.reduce(buffer)?);
                    summed = Some(rank.comm.stream().record_event(None)?);
                }
                if let Some(last) = last {
                    rank.compute.wait(&last)?;
                    stages[2].push(compute(1)?);
                }
            }
            let steady = FIRST..ITERATIONS - 1;
            let [pre, comm, post] = [0, 1, 2].map(|stage| mean(&stages[stage][steady.clone()]));
            let (pre, comm, post) = (pre?, comm?, post?);
            let first = &stages[1][FIRST].start;
            let period =
                first.elapsed_ms(&stages[1][ITERATIONS - 1].start)? / (ITERATIONS - 1 - FIRST) as f32;
            near(period, (pre + post).max(comm), &format!("{pre} + {post} ms in parallel with {comm} ms"));
            Ok(())
        })?;
    }
    Ok(())
}

/// A kernel takes 19% longer if all of it overlaps with the collective, and at most 19% longer if part of it does.
fn slowdown() -> anyhow::Result<()> {
    two_ranks(|rank| {
        let mut work = rank.zeros(1 << 14)?;
        let mut buffer = rank.zeros(1 << 16)?;
        let mut compute = || {
            Interval::of(&rank.compute, || rank.kernels.scale(&rank.compute, &mut work.as_view_mut(), 1.0))
        };
        let alone = compute()?;
        rank.compute.synchronize()?;
        let reduced = rank.reduce(&mut buffer)?;
        let overlapped = compute()?;
        rank.compute.synchronize()?;
        rank.comm.stream().synchronize()?;
        let (alone, overlapped, reduced) =
            (alone.milliseconds()?, overlapped.milliseconds()?, reduced.milliseconds()?);
        assert!(overlapped < reduced, "the kernel runs within the collective: {overlapped} and {reduced} ms");
        near(overlapped, 1.19 * alone, "overlapping a collective");
        Ok(())
    })
}

/// Returns two streams on one GPU that share nothing.
fn two_streams() -> anyhow::Result<(Arc<CudaContext>, [Arc<CudaStream>; 2])> {
    let context = untracked(0);
    let streams = [context.new_stream()?, context.new_stream()?];
    Ok((context, streams))
}

/// Returns when the kernels on two streams end, in milliseconds after the first kernel starts.
fn ends(
    streams: &[Arc<CudaStream>; 2],
    mut launch: impl FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<[f32; 2]> {
    let first = Interval::of(&streams[0], || launch(0))?;
    let second = Interval::of(&streams[1], || launch(1))?;
    streams[0].context().synchronize()?;
    Ok([first.milliseconds()?, first.start.elapsed_ms(&second.end)?])
}

/// Each of an H100's 132 multiprocessors holds 32 blocks, at the H100's real speed.
fn kernels_that_fit() -> anyhow::Result<()> {
    let (well, said) = child::start("overlap::fit", &[("VIRTUAL_GPU_TOPOLOGY", "dgx-h100")])?;
    assert!(well, "{said}");
    Ok(())
}

pub(crate) fn fit() -> anyhow::Result<()> {
    const LENGTH: u64 = 5 * MICROSECOND;
    lab::attach(1)?;
    let (context, streams) = two_streams()?;
    let spin = context.load_module(Ptx::from_src(lab::kernels::SPIN))?.load_function("spin")?;
    for (blocks, overlap) in [(1, true), (16 * 132, true), (16 * 132 + 1, false)] {
        let shape = shape(blocks, 1);
        let [first, second] = ends(&streams, |stream| {
            // SAFETY: the kernel is spin(unsigned long long).
            unsafe { streams[stream].launch_builder(&spin).arg(&LENGTH).launch(shape)? };
            Ok(())
        })?;
        // The second kernel is enqueued some calls later.
        let between = second - first;
        ensure!(
            (between < 0.9 * LENGTH as f32 / 1e6) == overlap,
            "{blocks} blocks: {first} and {second} ms, side by side: {overlap}"
        );
    }
    Ok(())
}

/// Kernels that each use the full memory bandwidth gain nothing from two streams.
fn kernels_that_share() -> anyhow::Result<()> {
    let (context, streams) = two_streams()?;
    let kernels = Kernels::load(&context)?;
    let mut work = [streams[0].alloc_zeros::<f32>(1 << 16)?, streams[1].alloc_zeros::<f32>(1 << 16)?];
    context.synchronize()?;
    let [first, second] =
        ends(&streams, |stream| kernels.scale(&streams[stream], &mut work[stream].as_view_mut(), 1.0))?;
    near(second, 2.0 * first, "two kernels that each use the full memory");
    Ok(())
}
