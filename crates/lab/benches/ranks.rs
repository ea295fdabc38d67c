//! Measures one data-parallel step on many ranks: `cargo bench -p lab --bench ranks`, or with numbers of ranks, as in
//! `cargo bench -p lab --bench ranks -- 16 1024`.
//!
//! Each number has its own process, whose ranks are threads. `join` is the time until all ranks have a communicator and
//! a model, `step` that of one step on [`SAMPLES`] samples per rank, and `memory` the most that the process occupied.
//! All of them are wall-clock results on this CPU, not times of a modeled machine.

use std::fs;
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use cudarc::driver::CudaContext;
use cudarc::nccl::safe::{Comm, Id, ReduceOp};
use lab::Perceptron;
use lab::digits::Digits;

/// The number of samples of each rank.
const SAMPLES: usize = 4;
const HIDDEN: usize = 32;
const RANKS: [usize; 4] = [16, 64, 256, 1024];
/// The variable of a process that measures: its number of ranks.
const OWN_RANKS: &str = "LAB_BENCH_RANKS";

fn main() -> anyhow::Result<()> {
    if let Ok(ranks) = std::env::var(OWN_RANKS) {
        return measure(ranks.parse()?);
    }
    // Cargo adds `--bench`.
    let numbers = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let numbers: Vec<usize> = numbers
        .map(|number| {
            number
                .parse()
                .ok()
                .filter(|&ranks| ranks > 0)
                .with_context(|| format!("{number}: expected a number of ranks"))
        })
        .collect::<Result<_, _>>()?;
    println!("{:>6} {:>9} {:>9} {:>12}", "ranks", "join (s)", "step (s)", "memory (MiB)");
    for ranks in if numbers.is_empty() { RANKS.to_vec() } else { numbers } {
        let status = Command::new(std::env::current_exe()?)
            .env(OWN_RANKS, ranks.to_string())
            .env("VIRTUAL_GPU_COUNT", ranks.to_string())
            .status()?;
        ensure!(status.success(), "{ranks} ranks: {status}");
    }
    Ok(())
}

/// Takes a step on this many ranks, and prints a row of the table.
fn measure(ranks: usize) -> anyhow::Result<()> {
    lab::attach(ranks)?;
    let nccl = |error| anyhow!("NCCL: {error:?}");
    let (samples, id) = (Digits::load()?.train, Id::new().map_err(nccl)?);
    let (all_ready, since) = (Barrier::new(ranks), Instant::now());
    let times = lab::each_rank(ranks, |rank| {
        let stream = CudaContext::new(rank)?.new_stream()?;
        let comm = Comm::from_rank(stream.clone(), rank, ranks, id).map_err(nccl)?;
        let own = samples.to_device(&stream)?;
        let mut model = Perceptron::new(&stream, HIDDEN, SAMPLES, 1)?;
        stream.synchronize()?;
        all_ready.wait();
        let joined = since.elapsed();
        let first = rank * SAMPLES % (samples.len() - SAMPLES);
        let batch = own.batch(first..first + SAMPLES)?;
        model.forward(&batch)?;
        model.backward(&batch, 1.0 / ranks as f32)?;
        comm.all_reduce_in_place(&mut model.gradient_and_loss_mut(), &ReduceOp::Sum).map_err(nccl)?;
        model.descend(0.1)?;
        stream.synchronize()?;
        Ok((joined, since.elapsed() - joined))
    })?;
    let slowest = |time: fn(&(Duration, Duration)) -> Duration| {
        times.iter().map(time).max().unwrap_or_default().as_secs_f64()
    };
    let (join, step) = (slowest(|times| times.0), slowest(|times| times.1));
    println!("{ranks:>6} {join:>9.2} {step:>9.2} {:>12}", most_memory()? / 1024);
    Ok(())
}

/// Returns the most memory that this process has occupied so far, in KiB.
fn most_memory() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB"));
    match most.map(|most| most.trim().parse()) {
        Some(Ok(kibibytes)) => Ok(kibibytes),
        _ => bail!("/proc/self/status has no VmHWM in kB"),
    }
}
