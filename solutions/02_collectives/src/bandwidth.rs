//! Bandwidth: how fast an operation is, and how busy it keeps the links below it.
//!
//! The measures are those of nccl-tests (`doc/PERFORMANCE.md`). The *algorithm bandwidth* is the operation's bytes through its time.
//! The *bus bandwidth* is what each GPU's link carries meanwhile, whatever the number of ranks: it can be compared with the
//! hardware's figures, and between operations.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::CudaStream;
use lab::Stopwatch;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Every rank gets the sum of all buffers.
    AllReduce,
    /// Every rank gets the root's buffer.
    Broadcast,
    /// The root gets the sum of all buffers.
    Reduce,
    /// Every rank gets the shards of all.
    AllGather,
    /// Every rank gets its shard of the sum.
    ReduceScatter,
}

/// Rounds that aren't measured, as nccl-tests' `-w 5`.
pub const WARM_UPS: usize = 5;
/// Rounds that are, as nccl-tests' `-n 20`.
pub const ROUNDS: usize = 20;

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The operation's size.
    pub bytes: usize,
    /// The time of one round.
    pub microseconds: f64,
    /// GB/s (10⁹ bytes).
    pub algbw: f64,
    /// GB/s.
    pub busbw: f64,
}

/// The time of an operation of S bytes, as `α + β · S`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Microseconds that an operation takes however short it is.
    pub alpha: f64,
    /// Microseconds for each byte. `1e-3 / beta` are the GB/s that large operations come near to.
    pub beta: f64,
}

impl Line {
    /// What an operation of so many bytes should take.
    pub fn microseconds(&self, bytes: usize) -> f64 {
        self.alpha + self.beta * bytes as f64
    }
}

/// The size of an operation in bytes, as nccl-tests counts it: that of the larger one of a rank's two buffers. `count` is what
/// NCCL's call is given: for all-gather and reduce-scatter, the elements of one shard.
pub fn operation_bytes(operation: Operation, world_size: usize, count: usize, element_bytes: usize) -> usize {
    // ANCHOR: operation_bytes
    // Count the bytes of the larger buffer.
    // Whose buffers are of different lengths, and by which factor?
    let shards = match operation {
        Operation::AllGather | Operation::ReduceScatter => world_size,
        Operation::AllReduce | Operation::Broadcast | Operation::Reduce => 1,
    };
    shards * count * element_bytes
    // ANCHOR_END: operation_bytes
}

/// The bus bandwidth as a multiple of the algorithm bandwidth.
pub fn bus_factor(operation: Operation, world_size: usize) -> f64 {
    // ANCHOR: bus_factor
    // Work out how many times the operation's bytes each rank has to send, at least.
    // Of an all-reduce it sends n − 1 of n parts twice: once to have them summed, once to have the sums known.
    let n = world_size as f64;
    match operation {
        Operation::AllReduce => 2.0 * (n - 1.0) / n,
        Operation::AllGather | Operation::ReduceScatter => (n - 1.0) / n,
        Operation::Broadcast | Operation::Reduce => 1.0,
    }
    // ANCHOR_END: bus_factor
}

/// Measures an operation of so many bytes in a world of so many ranks. `launch` puts it into the stream once. First come
/// [`WARM_UPS`] rounds that don't count, and then [`ROUNDS`] that do, all of them together.
///
/// # Errors
/// Those of `launch`, or what the driver answers.
pub fn measure(
    stream: &Arc<CudaStream>,
    operation: Operation,
    world_size: usize,
    bytes: usize,
    mut launch: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Row> {
    // ANCHOR: measure
    // Warm up, measure all rounds together, and make a row of the time of one.
    // `Stopwatch::start(stream)` marks where the stream is; its `microseconds()` are those since then, on the GPU's clock.
    (0..WARM_UPS).try_for_each(|_| launch())?;
    let watch = Stopwatch::start(stream)?;
    (0..ROUNDS).try_for_each(|_| launch())?;
    let microseconds = watch.microseconds()? / ROUNDS as f64;
    let algbw = bytes as f64 / microseconds / 1e3;
    Ok(Row { bytes, microseconds, algbw, busbw: algbw * bus_factor(operation, world_size) })
    // ANCHOR_END: measure
}

/// `Σ w · term(S, t)` over the rows, with their bytes S, their microseconds t, and weights `w = 1 / t²`.
pub fn weighed(rows: &[Row], term: impl Fn(f64, f64) -> f64) -> f64 {
    let terms = rows.iter().map(|row| (row.bytes as f64, row.microseconds));
    terms.map(|(s, t)| term(s, t) / (t * t)).sum()
}

/// The line that misses the rows' times by the least, in relation to each time: the sum of `((α + β · S − t) / t)²` over the
/// rows is as small as it can be.
///
/// # Errors
/// The rows have fewer than two different sizes.
pub fn fit(rows: &[Row]) -> anyhow::Result<Line> {
    // ANCHOR: fit
    // Fit the line by weighted least squares.
    // With S̄ and t̄ the weighted means: β = Σ w (S − S̄)(t − t̄) / Σ w (S − S̄)², and α = t̄ − β S̄. `weighed` works out such sums.
    ensure!(rows.iter().any(|row| row.bytes != rows[0].bytes), "a line needs two different sizes");
    let weight = weighed(rows, |_, _| 1.0);
    let (mean_s, mean_t) = (weighed(rows, |s, _| s) / weight, weighed(rows, |_, t| t) / weight);
    let beta = weighed(rows, |s, t| (s - mean_s) * (t - mean_t)) / weighed(rows, |s, _| (s - mean_s).powi(2));
    Ok(Line { alpha: mean_t - beta * mean_s, beta })
    // ANCHOR_END: fit
}
