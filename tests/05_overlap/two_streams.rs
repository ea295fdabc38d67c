//! A rank with a compute stream and a communicator's stream, and the times when their work ran.

use std::sync::Arc;

use approx::abs_diff_eq;
use cudarc::driver::{CudaEvent, CudaStream};
use cudarc::nccl::{Comm, ReduceOp};
use init::rendezvous::rendezvous;
use lab::timeline::timed;
use lab::{Kernels, Readable, ensure, world_of_one};

pub(super) const MILLISECOND: u64 = 1_000_000;

/// A rank without event tracking, so that only the exercise orders its work.
pub(super) struct Rank {
    pub(super) comm: Comm,
    pub(super) compute: Arc<CudaStream>,
    pub(super) kernels: Kernels,
    origin: CudaEvent,
}

/// The events before and after some work, on that work's stream.
pub(super) struct Mark {
    start: CudaEvent,
    end: CudaEvent,
}

/// When work ran, in milliseconds since its rank started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) start: f32,
    pub(super) end: f32,
}

impl Interval {
    /// Returns the overlap of two intervals in milliseconds. A negative result is the gap between them.
    pub(super) fn overlap(self, other: Self) -> f32 {
        self.end.min(other.end) - self.start.max(other.start)
    }

    pub(super) fn length(self) -> f32 {
        self.end - self.start
    }
}

/// Formats the interval, such as `from 1.0 to 2.5 ms`.
impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "from {:.1} to {:.1} ms", self.start, self.end)
    }
}

impl Rank {
    /// Creates a rank and warms it up: the first use of a kernel loads it, and the first all-reduce sets up
    /// its connections. Both may block the host and wait for the GPU.
    fn new(comm: Comm) -> anyhow::Result<Self> {
        // SAFETY: events or a synchronize call must order all uses on different streams; the check verifies this.
        let compute = unsafe { lab::untracked_compute_stream(&comm)? };
        let kernels = Kernels::load(comm.context())?;
        let (mut one, other) = (compute.alloc_zeros::<f32>(1)?, compute.alloc_zeros::<f32>(1)?);
        kernels.spin(&compute, 0)?;
        kernels.scale(&compute, &mut one, 1.0)?;
        kernels.axpy(&compute, &mut one, &other, 1.0)?;
        kernels.sgd_step(&compute, &mut one, &other, 1.0)?;
        compute.synchronize()?;
        comm.all_reduce_in_place(&mut one, &ReduceOp::Sum).readable()?;
        comm.stream().synchronize()?;
        let origin = timed(&compute)?;
        Ok(Self { comm, compute, kernels, origin })
    }

    /// Returns the rank's number.
    pub(super) fn number(&self) -> usize {
        self.comm.rank()
    }

    /// Keeps the compute stream busy.
    pub(super) fn compute_for(&self, nanoseconds: u64) -> anyhow::Result<Mark> {
        self.mark(&self.compute, || self.kernels.spin(&self.compute, nanoseconds))
    }

    /// Keeps the communicator's stream busy.
    pub(super) fn communicate_for(&self, nanoseconds: u64) -> anyhow::Result<Mark> {
        let stream = self.comm.stream();
        self.mark(&stream, || self.kernels.spin(&stream, nanoseconds))
    }

    /// Enqueues `work` on `stream`, with an event before and after it.
    pub(super) fn mark(
        &self,
        stream: &CudaStream,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<Mark> {
        let start = timed(stream)?;
        work()?;
        Ok(Mark { start, end: timed(stream)? })
    }

    /// Waits for the marked work, and returns when it ran.
    pub(super) fn interval(&self, mark: &Mark) -> anyhow::Result<Interval> {
        let since = |event: &CudaEvent| self.origin.elapsed_ms(event);
        Ok(Interval { start: since(&mark.start)?, end: since(&mark.end)? })
    }

    /// Waits for both streams before a comparison. Stream errors are more informative than a failed comparison.
    pub(super) fn synchronize(&self) -> anyhow::Result<()> {
        self.compute.synchronize()?;
        Ok(self.comm.stream().synchronize()?)
    }
}

impl Mark {
    pub(super) fn is_over(&self) -> anyhow::Result<bool> {
        Ok(self.end.try_is_complete()?)
    }
}

/// Runs `check` on each rank of each world with at least `least` ranks.
pub(super) fn on_each_rank(
    least: usize,
    check: impl Fn(&Rank) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    worlds(least).into_iter().try_for_each(|world_size| on_each_rank_of(world_size, &check))
}

/// Runs `check` on two ranks, or on one rank if there is only one. Use it for slow checks that hardly depend on the
/// world size.
pub(super) fn on_two_ranks(check: impl Fn(&Rank) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    on_each_rank_of(worlds(1).len().min(2), check)
}

/// Runs `check` on the only rank of a world.
pub(super) fn alone(check: impl Fn(Rank) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    rendezvous(&lab::streams(1)?, |comm| check(Rank::new(comm)?))?;
    Ok(())
}

/// Creates the only rank of a world on this thread, for calls that are made to fail.
pub(super) fn one_rank() -> anyhow::Result<Rank> {
    Rank::new(world_of_one()?)
}

fn worlds(least: usize) -> Vec<usize> {
    lab::world_sizes().into_iter().filter(|&size| size >= least).collect()
}

fn on_each_rank_of(
    world_size: usize,
    check: impl Fn(&Rank) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    rendezvous(&lab::streams(world_size)?, |comm| {
        let rank = Rank::new(comm)?;
        check(&rank)?;
        rank.synchronize()
    })?;
    Ok(())
}

/// Returns the mean length of the intervals, in milliseconds.
pub(super) fn mean(intervals: &[Interval]) -> f32 {
    intervals.iter().map(|interval| interval.length()).sum::<f32>() / intervals.len() as f32
}

/// The tolerance when modeled times are compared with a formula: it covers launches and events, which take microseconds
/// each and which the formula leaves out.
const WITHIN: f32 = 0.03;

/// Compares a time with a formula based on times that events measured in the same run. Modeled times must match within
/// 3%. Times on a real GPU are not compared, because other factors can slow it down.
pub(super) fn check_formula(rank: &Rank, what: &str, measured: f32, formula: f32) -> anyhow::Result<()> {
    let off = measured / formula - 1.0;
    ensure!(
        abs_diff_eq!(measured / formula, 1.0, epsilon = WITHIN) || !lab::tier::times_are_modeled(),
        "rank {}: {what} took {measured:.3} ms, expected {formula:.3} ms based on the times of its parts ({:+.1}% \
         off, but only 3% is allowed)",
        rank.number(),
        100.0 * off
    );
    Ok(())
}
