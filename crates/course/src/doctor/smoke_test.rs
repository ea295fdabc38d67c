//! A kernel and an all-reduce, to test whether anything runs at all.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cudarc::driver::CudaContext;
use cudarc::nccl::safe::{Comm, Id, ReduceOp};
use lab::explain::error_text;
use lab::{Kernels, Readable};

use super::diagnosis::{Diagnosis, Status};

/// The number of ranks in the smoke test.
const RANKS: usize = 2;

/// Runs a kernel on each of two GPUs, or on the only one, and an all-reduce between them, and checks the numbers.
pub(super) fn run() -> Diagnosis {
    let started = Instant::now();
    match smoke() {
        Ok(ranks) => {
            let took = format!(
                "a kernel and an all-reduce on {ranks} GPU{}, {:.2} s",
                if ranks == 1 { "" } else { "s" },
                started.elapsed().as_secs_f64()
            );
            match started.elapsed() > Duration::from_secs(10) {
                true => Diagnosis::new("smoke test", Status::Note, took)
                    .help("this is slow; is something else running?"),
                false => Diagnosis::good("smoke test", took),
            }
        }
        Err(error) => Diagnosis::new("smoke test", Status::Bad, error_text(&error)),
    }
}

fn smoke() -> anyhow::Result<usize> {
    // On a machine with one real GPU, this process has already attached to that GPU.
    let ranks = if lab::attach(RANKS).is_ok() { RANKS } else { 1 };
    lab::attach(ranks)?;
    let id = Id::new().readable()?;
    let sums = lab::each_rank(ranks, |rank| {
        let stream = CudaContext::new(rank)?.new_stream()?;
        let kernels = Kernels::load(stream.context())?;
        let comm = Comm::from_rank(stream.clone(), rank, ranks, id).readable()?;
        let mut buffer = stream.clone_htod(&[1.0f32 + rank as f32; 1000])?;
        kernels.scale(&stream, &mut buffer.as_view_mut(), 2.0)?;
        comm.all_reduce_in_place(&mut buffer, &ReduceOp::Sum).readable()?;
        let sums = stream.clone_dtoh(&buffer)?;
        stream.synchronize()?;
        Ok(sums)
    })?;
    let expected: f32 = (1..=ranks).map(|rank| 2.0 * rank as f32).sum();
    for (rank, sums) in sums.iter().enumerate() {
        let wrong = sums.iter().find(|sum| **sum != expected);
        ensure!(
            wrong.is_none(),
            "rank {rank} has the sum {}, but {expected} was expected",
            wrong.context("one")?
        );
    }
    Ok(ranks)
}
