// mistake: every operation has the factor of an all-gather
// fails: bandwidth::the_factor_is_that_of_the_operation
// says: AllReduce on 5 ranks: expected a factor of 1.6, got 0.8
// says: how many of n parts has each rank to send, and how often?

use std::sync::Arc;

use anyhow::ensure;
use cudarc::driver::CudaStream;
use lab::Stopwatch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
}

pub const WARM_UPS: usize = 5;
pub const ROUNDS: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    pub bytes: usize,
    pub microseconds: f64,
    pub algbw: f64,
    pub busbw: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    pub alpha: f64,
    pub beta: f64,
}

impl Line {
    pub fn microseconds(&self, bytes: usize) -> f64 {
        self.alpha + self.beta * bytes as f64
    }
}

pub fn operation_bytes(operation: Operation, world_size: usize, count: usize, element_bytes: usize) -> usize {
    let shards = match operation {
        Operation::AllGather | Operation::ReduceScatter => world_size,
        Operation::AllReduce | Operation::Broadcast | Operation::Reduce => 1,
    };
    shards * count * element_bytes
}

pub fn bus_factor(operation: Operation, world_size: usize) -> f64 {
    let n = world_size as f64;
    match operation {
        Operation::AllReduce => (n - 1.0) / n,
        Operation::AllGather | Operation::ReduceScatter => (n - 1.0) / n,
        Operation::Broadcast | Operation::Reduce => 1.0,
    }
}

pub fn measure(
    stream: &Arc<CudaStream>,
    operation: Operation,
    world_size: usize,
    bytes: usize,
    mut launch: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Row> {
    (0..WARM_UPS).try_for_each(|_| launch())?;
    let watch = Stopwatch::start(stream)?;
    (0..ROUNDS).try_for_each(|_| launch())?;
    let microseconds = watch.microseconds()? / ROUNDS as f64;
    let algbw = bytes as f64 / microseconds / 1e3;
    Ok(Row { bytes, microseconds, algbw, busbw: algbw * bus_factor(operation, world_size) })
}

pub fn weighed(rows: &[Row], term: impl Fn(f64, f64) -> f64) -> f64 {
    let terms = rows.iter().map(|row| (row.bytes as f64, row.microseconds));
    terms.map(|(s, t)| term(s, t) / (t * t)).sum()
}

pub fn fit(rows: &[Row]) -> anyhow::Result<Line> {
    ensure!(rows.iter().any(|row| row.bytes != rows[0].bytes), "a line needs two different sizes");
    let weight = weighed(rows, |_, _| 1.0);
    let (mean_s, mean_t) = (weighed(rows, |s, _| s) / weight, weighed(rows, |_, t| t) / weight);
    let beta = weighed(rows, |s, t| (s - mean_s) * (t - mean_t)) / weighed(rows, |s, _| (s - mean_s).powi(2));
    Ok(Line { alpha: mean_t - beta * mean_s, beta })
}
