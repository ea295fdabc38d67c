//! Trains a perceptron on handwritten digits, on several GPUs at once.

use std::process::ExitCode;

use anyhow::ensure;
use clap::Parser;
use collectives::broadcast::replicas_equal;
use cudarc::nccl::Comm;
use indicatif::{ProgressBar, ProgressStyle};
use init::rendezvous::rendezvous;
use lab::Perceptron;
use lab::digits::Digits;
use lab::explain::error_text;
use m04_multi_gpu::data_parallel::{start_equal, step};

/// Share of unseen digits that a trained model has to tell.
const WANTED_ACCURACY: f64 = 0.95;

/// Train a perceptron on handwritten digits, on several GPUs at once
#[derive(Parser)]
struct Arguments {
    /// Ranks, each with a GPU of its own
    #[arg(long, default_value_t = 4, value_parser = at_least_one)]
    gpus: usize,
    /// Units in the hidden layer
    #[arg(long, default_value_t = 32, value_parser = at_least_one)]
    hidden: usize,
    /// Samples per step, over all ranks
    #[arg(long, default_value_t = 128, value_parser = at_least_one)]
    batch: usize,
    /// Passes over the training digits
    #[arg(long, default_value_t = 20, value_parser = at_least_one)]
    epochs: usize,
    /// Length of a step against the gradient
    #[arg(long, default_value_t = 0.5, value_parser = above_zero)]
    learning_rate: f32,
}

/// Large enough for every use, small enough for every product of two of them.
const MOST: usize = 1_000_000;

fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MOST).contains(number));
    number.ok_or_else(|| format!("a whole number from 1 to {MOST}"))
}

fn above_zero(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number: &f32| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "a number above 0".to_owned())
}

/// What a rank has at the end.
#[derive(Clone, Copy)]
struct Trained {
    replicas_equal: bool,
    accuracy: f64,
}

/// Exits with 0 if the training is as good as wanted, with 1 if it isn't, and with 2 if it couldn't be done.
fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {}", error_text(&error));
            ExitCode::from(2)
        }
    }
}

/// Trains and tells the verdict.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let tier = lab::attach(arguments.gpus)?;
    let digits = Digits::load()?;
    println!("tier: {tier}");
    let (known, unseen) = (digits.train.len(), digits.test.len());
    println!("world size {}, {known} digits to learn from, {unseen} unseen", arguments.gpus);

    let ranks = rendezvous(&lab::streams(arguments.gpus)?, |comm| train(&comm, arguments, &digits))?;
    let Trained { replicas_equal, accuracy } = ranks[0];
    let good = replicas_equal && accuracy >= WANTED_ACCURACY;

    println!("replicas: {}", if replicas_equal { "bit-identical on every rank" } else { "DIFFERENT" });
    let (accuracy, wanted) = (100.0 * accuracy, 100.0 * WANTED_ACCURACY);
    println!("accuracy: {accuracy:.1} % of the unseen digits, at least {wanted:.0} % wanted");
    println!("verdict:  {}", if good { "trained as one" } else { "FAILED" });
    Ok(good)
}

/// One rank's training. Rank 0 reports.
fn train(comm: &Comm, arguments: &Arguments, digits: &Digits) -> anyhow::Result<Trained> {
    let stream = comm.stream();
    let samples = digits.train.to_device(&stream)?;
    let unseen = digits.test.to_device(&stream)?;
    let most_samples = arguments.batch.min(samples.len()).div_ceil(comm.world_size());
    let seed_of_its_own = comm.rank() as u64;
    let mut model = Perceptron::new(&stream, arguments.hidden, most_samples, seed_of_its_own)?;
    start_equal(comm, &mut model)?;

    let steps = arguments.epochs * samples.len().div_ceil(arguments.batch);
    let progress = if comm.rank() == 0 { ProgressBar::new(steps as u64) } else { ProgressBar::hidden() };
    progress.set_style(ProgressStyle::with_template("{bar:40} step {pos} of {len}  {msg}")?);
    for epoch in 1..=arguments.epochs {
        let mut loss = 0.0;
        for start in (0..samples.len()).step_by(arguments.batch) {
            let batch = start..samples.len().min(start + arguments.batch);
            loss = step(comm, &mut model, &samples, batch, arguments.learning_rate)?;
            ensure!(loss.is_finite(), "the loss is {loss} in epoch {epoch}: is the learning rate too large?");
            progress.set_message(format!("loss {loss:.3}"));
            progress.inc(1);
        }
        if comm.rank() == 0 {
            let accuracy = 100.0 * model.accuracy(&unseen)?;
            progress.suspend(|| println!("epoch {epoch:>3}  loss {loss:.3}  unseen digits {accuracy:.1} %"));
        }
    }
    progress.finish_and_clear();
    Ok(Trained {
        replicas_equal: replicas_equal(comm, &model.parameters())?,
        accuracy: model.accuracy(&unseen)?,
    })
}
