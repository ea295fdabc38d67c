//! Backends: the same all-reduce done in two ways, through host memory and over the links between the GPUs.
//!
//! A CPU backend copies each buffer to the host, sums there, and copies the sum back. The result is the same, but it takes longer.

use std::sync::Arc;

use cudarc::driver::{CudaStream, CudaViewMut};
use lab::{HostGroup, Stopwatch};

/// Replaces every rank's `buffer` with the sum over all ranks, without NCCL. Every rank must call it, with a buffer of the same length,
/// created on `stream`.
///
/// # Errors
/// Fails if a rank does not call it in time (the error then names that rank), or if a driver call fails.
pub fn staged_sum(
    group: &HostGroup,
    rank: usize,
    stream: &Arc<CudaStream>,
    buffer: &mut CudaViewMut<f32>,
) -> anyhow::Result<()> {
    // ANCHOR: staged_sum
    // Sum over all ranks through host memory:
    // 1. on every rank, the sums replace the values;
    // 2. the sums are computed in `f32`, include each rank's values once, and are bit-identical on all ranks;
    // 3. earlier work on `stream` is done before the buffer is read, and later work on `stream` sees the sums;
    // 4. each rank copies its buffer to the host once, and the sums back once.
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

/// Returns the time that `staged` takes, divided by the time that `nccl` takes. Both enqueue their work on `stream`.
/// `rounds` is at least 1.
///
/// # Errors
/// Returns any error from `staged`, `nccl`, or the driver.
pub fn times_as_long(
    stream: &Arc<CudaStream>,
    rounds: usize,
    mut staged: impl FnMut() -> anyhow::Result<()>,
    mut nccl: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    // ANCHOR: times_as_long
    // Compare the two ways:
    // 1. each is called once to warm up, and then `rounds` times;
    // 2. each is measured on the GPU's clock, over its last `rounds` calls together;
    // 3. the result is greater than 1 if `staged` takes longer.
    let measure = |work: &mut dyn FnMut() -> anyhow::Result<()>| {
        work()?;
        let watch = Stopwatch::start(stream)?;
        (0..rounds).try_for_each(|_| work())?;
        watch.microseconds()
    };
    Ok(measure(&mut staged)? / measure(&mut nccl)?)
    // ANCHOR_END: times_as_long
}
