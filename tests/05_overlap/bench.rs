//! Helpers that several checks share, for running ranks and examining spans.

use anyhow::{Context, bail};
use approx::abs_diff_eq;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, CudaViewMut, DevicePtr};
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::timeline::Span;
use lab::{Tier, ensure};

pub(super) const MILLISECOND: u64 = 1_000_000;

/// Runs `check` on each rank of each world with at least two ranks.
pub(super) fn on_each_rank(check: impl Fn(&Comm) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    let mut worlds = lab::world_sizes().into_iter().filter(|&size| size >= 2);
    worlds.try_for_each(|world_size| on_ranks(world_size, &check))
}

/// Runs `check` on two ranks. Use it for checks that are slow because ranks spin, and that hardly depend on the world
/// size.
pub(super) fn on_two_ranks(check: impl Fn(&Comm) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    on_ranks(2, check)
}

/// Runs `check` on this many ranks. Even if `check` fails, communicators are dropped only after their work is done.
pub(super) fn on_ranks(
    world_size: usize,
    check: impl Fn(&Comm) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    rendezvous(&lab::streams(world_size)?, |comm| {
        let checked = check(&comm);
        let done = comm.context().synchronize();
        checked?;
        Ok(done?)
    })?;
    Ok(())
}

/// Returns the address of a buffer.
pub(super) fn address(buffer: &CudaViewMut<f32>, stream: &CudaStream) -> CUdeviceptr {
    buffer.device_ptr(stream).0
}

/// Returns the span with this name.
pub(super) fn span<'a>(spans: &'a [Span], name: &str) -> anyhow::Result<&'a Span> {
    spans.iter().find(|span| span.name == name).with_context(|| format!("{name} was never enqueued"))
}

/// Checks that the two spans overlapped.
pub(super) fn ensure_beside(rank: usize, spans: &[Span], one: &str, other: &str) -> anyhow::Result<()> {
    ensure_beside_or(rank, spans, one, other, || Ok(None))
}

/// Checks like [`ensure_beside`]. If the spans did not overlap, the message also contains the result of `finding`.
pub(super) fn ensure_beside_or(
    rank: usize,
    spans: &[Span],
    one: &str,
    other: &str,
    finding: impl FnOnce() -> anyhow::Result<Option<String>>,
) -> anyhow::Result<()> {
    let (first, second) = (span(spans, one)?, span(spans, other)?);
    if first.overlap(second) > 0.0 {
        return Ok(());
    }
    let (earlier, later) = if first.start < second.start { (one, other) } else { (other, one) };
    let finding = finding()?.map_or_else(String::new, |finding| format!("\n  {finding}"));
    bail!(
        "rank {rank}: {one} and {other} never overlapped, but they must\n  {later} started only after {earlier} was \
         over{finding}"
    )
}

/// Returns the mean length of the spans whose names contain `what`, in milliseconds.
pub(super) fn mean(spans: &[Span], what: &str) -> f64 {
    let lengths: Vec<f64> =
        spans.iter().filter(|span| span.name.contains(what)).map(|span| span.end - span.start).collect();
    lengths.iter().sum::<f64>() / lengths.len() as f64
}

/// The tolerance for formulas when times are modeled: it covers launches and events, which take microseconds each and
/// which the formulas leave out.
pub(super) const WITHIN: f64 = 0.03;

/// Compares the time from the first start to the last end, in milliseconds, with the result of `formula`. Compares only
/// modeled times, because the speed of a real GPU does not matter.
pub(super) fn ensure_takes(
    rank: usize,
    spans: &[Span],
    milliseconds: f64,
    formula: &str,
) -> anyhow::Result<()> {
    if lab::attach(1)? != Tier::Virtual {
        return Ok(());
    }
    let start = spans.iter().map(|span| span.start).fold(f64::INFINITY, f64::min);
    let end = spans.iter().map(|span| span.end).fold(f64::NEG_INFINITY, f64::max);
    let took = end - start;
    ensure!(
        abs_diff_eq!(took / milliseconds, 1.0, epsilon = WITHIN),
        "rank {rank}: the run took {took:.2} ms, expected {milliseconds:.2} ms, which is {formula}"
    );
    Ok(())
}
