//! A kernel and an all-reduce, to test whether anything runs at all.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use cudarc::nccl::safe::{Comm, Id, ReduceOp};
use lab::explain::error_text;
use lab::{Kernels, Readable};

use super::diagnosis::{Diagnosis, Status};

/// The number of ranks in the smoke test.
const RANKS: usize = 2;

/// How long the smoke test may take. NCCL may need some seconds, and waits forever if another rank fails.
const MOST: Duration = Duration::from_secs(60);

/// Runs a kernel on each of two ranks, or on the only one, and an all-reduce between them, and checks the numbers.
pub(super) fn run() -> Diagnosis {
    let started = Instant::now();
    match in_time() {
        Ok(ranks) => {
            let took = format!(
                "a kernel and an all-reduce on {ranks} rank{}, {:.2} s",
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

/// Runs the smoke test on another thread, which can't stop this program from going on.
fn in_time() -> anyhow::Result<usize> {
    let (done, ended) = channel();
    thread::spawn(move || done.send(smoke()));
    match ended.recv_timeout(MOST) {
        Ok(result) => result,
        Err(RecvTimeoutError::Disconnected) => bail!("the smoke test panicked"),
        Err(RecvTimeoutError::Timeout) => bail!(
            "a kernel and an all-reduce did not end within {} s; NCCL_DEBUG=WARN shows what NCCL says",
            MOST.as_secs()
        ),
    }
}

fn smoke() -> anyhow::Result<usize> {
    // On a machine with one real GPU, this process has already attached to that GPU.
    let ranks = if lab::attach(RANKS).is_ok() { RANKS } else { 1 };
    // On the shared tier, there are fewer GPUs than ranks.
    let streams = lab::streams(ranks)?;
    let id = Id::new().readable()?;
    let sums = lab::each_rank(ranks, |rank| {
        let stream = streams[rank].clone();
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
