//! Backends: the same all-reduce by two ways, through the host's memory and over the GPUs' own links.
//!
//! A CPU backend can't reach the GPUs' memory. It copies each buffer to the host, sums there, and copies the sum back. The numbers
//! are the same; the way is longer.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};
use lab::{HostGroup, Stopwatch};

/// Replaces every rank's `buffer` by the sum over all ranks, as a CPU backend does it: without NCCL. Every rank must call it, with
/// a buffer of the same length on its `stream`. What comes later in the stream finds the sum.
///
/// # Errors
/// A rank did not come (the error names it), or what the driver answers.
pub fn staged_sum(
    group: &HostGroup,
    rank: usize,
    stream: &Arc<CudaStream>,
    buffer: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: staged_sum
    // Bring the buffer to the host, exchange it with all ranks, sum there, and bring the sum back.
    // `group.all_gather(rank, values)` takes a `Vec`, and gives those of all ranks, in an `Arc`. The sum is of the buffer's own type.
    let own = stream.clone_dtoh(buffer)?;
    stream.synchronize()?;
    let mut sum = vec![0.0_f32; own.len()];
    for values in group.all_gather(rank, own)?.iter() {
        for (sum, value) in sum.iter_mut().zip(values) {
            *sum += value;
        }
    }
    stream.memcpy_htod(&sum, buffer)?;
    Ok(())
    // ANCHOR_END: staged_sum
}

/// How many times as long `staged` takes as `nccl`, by the clock of the stream's GPU. Each of them runs once to warm up, and then
/// `rounds` times, which are measured together. Both put their work into `stream`.
///
/// # Errors
/// Those of `staged` and `nccl`, or what the driver answers.
pub fn times_as_long(
    stream: &Arc<CudaStream>,
    rounds: usize,
    mut staged: impl FnMut() -> anyhow::Result<()>,
    mut nccl: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    // ANCHOR: times_as_long
    // Measure both in the same way, and compare.
    // `Stopwatch::start(stream)` marks where the stream is; its `microseconds()` are those since then, on the GPU's clock.
    let measure = |work: &mut dyn FnMut() -> anyhow::Result<()>| {
        work()?;
        let watch = Stopwatch::start(stream)?;
        (0..rounds).try_for_each(|_| work())?;
        watch.microseconds()
    };
    Ok(measure(&mut staged)? / measure(&mut nccl)?)
    // ANCHOR_END: times_as_long
}
