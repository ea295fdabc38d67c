//! Bandwidth: how fast an operation is, and how busy it keeps the links between the GPUs.
//!
//! The figures are defined as in nccl-tests (`doc/PERFORMANCE.md`). The *algorithm bandwidth* is the operation's size divided by its time.
//! The *bus bandwidth* is the rate at which each GPU's link carries data meanwhile, so it can be compared with hardware specifications.

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::CudaStream;
use lab::Stopwatch;

/// The operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Every rank gets the sum over all buffers.
    AllReduce,
    /// Every rank gets the root's buffer.
    Broadcast,
    /// The root gets the sum over all buffers.
    Reduce,
    /// Every rank gets all ranks' shards.
    AllGather,
    /// Every rank gets its shard of the sum.
    ReduceScatter,
}

/// The number of warm-up rounds, as with nccl-tests' `-w 5`.
pub const WARM_UPS: usize = 5;
/// The number of measured rounds, as with nccl-tests' `-n 20`.
pub const ROUNDS: usize = 20;

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The operation's size in bytes.
    pub bytes: usize,
    /// The time of one round, in microseconds.
    pub microseconds: f64,
    /// The algorithm bandwidth in GB/s, where a GB is 10⁹ bytes.
    pub algbw: f64,
    /// The bus bandwidth in GB/s.
    pub busbw: f64,
}

/// The time that an operation on S bytes takes, as `α + β · S`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// The latency: the number of microseconds that even an empty operation takes.
    pub alpha: f64,
    /// The number of microseconds per byte. Large operations approach `1e-3 / beta` GB/s.
    pub beta: f64,
}

impl Line {
    /// Returns the number of microseconds that an operation on `bytes` bytes should take.
    pub fn microseconds(&self, bytes: usize) -> f64 {
        self.alpha + self.beta * bytes as f64
    }
}

/// Returns the size of an operation in bytes, as nccl-tests counts it. `count` is the count passed to NCCL.
pub fn operation_bytes(operation: Operation, world_size: usize, count: usize, element_bytes: usize) -> usize {
    // ANCHOR: operation_bytes
    // Count the bytes of an operation:
    // 1. the size is that of a rank's larger buffer;
    // 2. `count` is in elements, of `element_bytes` bytes each.
    let shards = match operation {
        Operation::AllGather | Operation::ReduceScatter => world_size,
        Operation::AllReduce | Operation::Broadcast | Operation::Reduce => 1,
    };
    shards * count * element_bytes
    // ANCHOR_END: operation_bytes
}

/// Returns the bus bandwidth as a multiple of the algorithm bandwidth.
pub fn bus_factor(operation: Operation, world_size: usize) -> f64 {
    // ANCHOR: bus_factor
    // Compute the factor for each operation:
    // 1. it is the least amount that each rank has to send, as a multiple of the operation's size;
    // 2. for a broadcast and a reduce, it is the amount that the busiest rank has to send or receive;
    // 3. in a world of one rank, a broadcast and a reduce have the same factor as in a larger world, as in nccl-tests.
    let n = world_size as f64;
    match operation {
        Operation::AllReduce => 2.0 * (n - 1.0) / n,
        Operation::AllGather | Operation::ReduceScatter => (n - 1.0) / n,
        Operation::Broadcast | Operation::Reduce => 1.0,
    }
    // ANCHOR_END: bus_factor
}

/// Measures an operation on `bytes` bytes in a world of `world_size` ranks. `launch` enqueues it on `stream` once.
///
/// # Errors
/// Returns any error from `launch` or the driver.
pub fn measure(
    stream: &Arc<CudaStream>,
    operation: Operation,
    world_size: usize,
    bytes: usize,
    mut launch: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Row> {
    // ANCHOR: measure
    // Measure one row of the table:
    // 1. `launch` is called `WARM_UPS` times, and then `ROUNDS` times;
    // 2. the row's time is the mean of the last `ROUNDS` rounds, measured together on the GPU's clock;
    // 3. the row contains the given size, and both bandwidths in GB/s.
    (0..WARM_UPS).try_for_each(|_| launch())?;
    let watch = Stopwatch::start(stream)?;
    (0..ROUNDS).try_for_each(|_| launch())?;
    let microseconds = watch.microseconds()? / ROUNDS as f64;
    let algbw = bytes as f64 / microseconds / 1e3;
    Ok(Row { bytes, microseconds, algbw, busbw: algbw * bus_factor(operation, world_size) })
    // ANCHOR_END: measure
}

/// Computes `Σ w · term(S, t)` over the rows, for a row's bytes S, microseconds t, and weight `w = 1 / t²`.
pub fn weighed(rows: &[Row], term: impl Fn(f64, f64) -> f64) -> f64 {
    let terms = rows.iter().map(|row| (row.bytes as f64, row.microseconds));
    terms.map(|(s, t)| term(s, t) / (t * t)).sum()
}

/// Fits a line to the rows' times, so that the sum of `((α + β · S − t) / t)²` over the rows is minimal.
///
/// # Errors
/// Fails if the rows have fewer than two different sizes.
pub fn fit(rows: &[Row]) -> anyhow::Result<Line> {
    // ANCHOR: fit
    // Fit α and β to the rows:
    // 1. relative errors are minimized, so a short time has as much weight as a long one;
    // 2. if the times lie on a line, the result is that line;
    // 3. with fewer than two different sizes, return an error instead of panicking.
    ensure!(rows.iter().any(|row| row.bytes != rows[0].bytes), "a line needs at least two different sizes");
    let weight = weighed(rows, |_, _| 1.0);
    let (mean_s, mean_t) = (weighed(rows, |s, _| s) / weight, weighed(rows, |_, t| t) / weight);
    let beta = weighed(rows, |s, t| (s - mean_s) * (t - mean_t)) / weighed(rows, |s, _| (s - mean_s).powi(2));
    Ok(Line { alpha: mean_t - beta * mean_s, beta })
    // ANCHOR_END: fit
}
