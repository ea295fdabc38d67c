// Opens several GPUs, computes a part on each, collects the parts, and makes the GPUs a group.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{bail, ensure};
use clap::Parser;
use cudarc::driver::CudaStream;
use lab::explain::error_text;
use lab::irregular;
use lab::roll_call::roll_call;
use m01_init::buffers::{copy, read, spread};
use m01_init::devices::open;
use m01_init::errors::together;
use m01_init::kernel::{axpy, load};
use m01_init::rendezvous::rendezvous;

/// From a device to a group of GPUs
#[derive(Parser)]
struct Arguments {
    /// Ranks, each with its own GPU
    #[arg(long, default_value_t = 4, value_parser = at_least_one)]
    gpus: usize,
    /// Elements of y += a · x, over all GPUs
    #[arg(long, default_value_t = 100_003, value_parser = at_least_one)]
    elements: usize,
    /// A rank that fails before the group communicates
    #[arg(long)]
    fail: Option<usize>,
}

/// The largest accepted number.
const MOST: usize = 100_000_000;
/// The factor in `y += a * x`. A product with one of the test's whole numbers is exact in `f32`.
const A: f32 = 3.0;

fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MOST).contains(number));
    number.ok_or_else(|| format!("a whole number from 1 to {MOST}"))
}

/// Exits with 0 if every result is right, with 1 if one is wrong, and with 2 on an error.
fn main() -> ExitCode {
    lab::exit_code(run(&Arguments::parse()))
}

/// Runs everything, and returns whether every result is right.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let &Arguments { gpus, elements, fail } = arguments;
    ensure!(elements >= gpus, "{elements} elements are too few for {gpus} GPUs: each needs one");
    if let Some(rank) = fail {
        ensure!(rank < gpus, "rank {rank} can't fail: there are {gpus} ranks, from 0");
    }
    println!("tier: {}", lab::attach(gpus)?);
    let streams = open(gpus)?;
    let right = compute(&streams, elements)?;
    println!("all:    y = y + {A} · x is {} in {elements} elements", if right { "right" } else { "WRONG" });
    let group = meet(&streams, fail);
    match &group {
        Ok(()) => println!("group:  {gpus} ranks, and each has heard all of them"),
        Err(error) => println!("group:  {}", error_text(error).replace('\n', "\n        ")),
    }
    let good = right && group.is_ok();
    println!("verdict: {}", if good { "a group of GPUs" } else { "FAILED" });
    Ok(good)
}

/// Computes `y += a * x`, a part on each GPU, and compares with the host's result.
fn compute(streams: &[Arc<CudaStream>], elements: usize) -> anyhow::Result<bool> {
    let (x, y) = (irregular::integers(0, elements), irregular::integers(1, elements));
    let edge = |gpu: usize| elements * gpu / streams.len();
    let parts: Vec<Range<usize>> = (0..streams.len()).map(|gpu| edge(gpu)..edge(gpu + 1)).collect();
    let (on_gpus, mut results) = (spread(streams, &x, &parts)?, spread(streams, &y, &parts)?);
    // GPU 0 collects the parts.
    let mut all = streams[0].alloc_zeros::<f32>(elements)?;
    for (gpu, stream) in streams.iter().enumerate() {
        let context = stream.context();
        let kernel = load(context)?;
        axpy(stream, &kernel, &mut results[gpu].as_view_mut(), &on_gpus[gpu].as_view(), A)?;
        println!("GPU {gpu}:  {}, elements {:?}", context.name()?, parts[gpu]);
        copy(&results[gpu].as_view(), 0..parts[gpu].len(), &mut all.as_view_mut(), parts[gpu].start)?;
    }
    let got = read(&all.as_view(), 0..elements)?;
    let expected = y.iter().zip(&x).map(|(y, x)| y + A * x);
    Ok(got.iter().zip(expected).all(|(&got, expected)| got == expected))
}

/// Creates the group. Every rank checks that each rank answers from the expected GPU. The rank `fail` fails before
/// that.
fn meet(streams: &[Arc<CudaStream>], fail: Option<usize>) -> anyhow::Result<()> {
    rendezvous(streams, |comm| {
        let prepare = || match fail == Some(comm.rank()) {
            true => bail!("this rank was asked to fail"),
            false => Ok(()),
        };
        let heard = together(&comm, prepare, |()| roll_call(&comm))?;
        for (rank, answer) in heard.iter().enumerate() {
            let gpu = streams[rank].context().ordinal();
            ensure!(
                answer.rank == rank && answer.gpu == gpu,
                "{answer} answers for rank {rank} on GPU {gpu}"
            );
        }
        Ok(())
    })?;
    Ok(())
}
