// Trains a perceptron on handwritten digits, on several GPUs at once, and compares it with the same training on the host.

mod simulation;

use std::process::ExitCode;
use std::thread;

use anyhow::{Context, ensure};
use clap::Parser;
use lab::digits::Digits;
use lab::perceptron::HostPerceptron;
use m04_multi_gpu::hybrid::Mesh;
use simulation::{Mode, Plan, Serial, assemble, on_gpus, on_the_host};

/// The fraction of unseen digits that a trained model has to recognize.
const WANTED_ACCURACY: f64 = 0.95;

/// How much rounding alone may change a parameter in a few hundred steps.
const OF_ROUNDING: f64 = 1e-3;
/// How often rounding may decide on which side of ReLU's kink a sample falls. That adds the sample's slope, at most 1, to the
/// mean over the batch, or removes it. Momentum doubles the effect.
const OF_BENDS: f64 = 3.0;

/// Train a perceptron on handwritten digits, on several GPUs at once
#[derive(Parser)]
struct Arguments {
    /// What the ranks divide among them
    #[arg(long, value_enum, default_value_t = Mode::Data)]
    mode: Mode,
    /// Ranks, each with its own GPU
    #[arg(long, default_value_t = 4, value_parser = at_least_one)]
    gpus: usize,
    /// Ranks of a row, which divide the model among them, in mode hybrid
    #[arg(long, default_value_t = 2, value_parser = at_least_one)]
    row: usize,
    /// Units in the hidden layer
    #[arg(long, default_value_t = 32, value_parser = at_least_one)]
    hidden: usize,
    /// Samples per step, over all ranks
    #[arg(long, default_value_t = 128, value_parser = at_least_one)]
    batch: usize,
    /// Passes over the training digits
    #[arg(long, default_value_t = 20, value_parser = at_least_one)]
    epochs: usize,
    /// Stop after this many steps
    #[arg(long, value_parser = at_least_one)]
    steps: Option<usize>,
    /// Length of a step against the gradient; with momentum, twice that in the long run
    #[arg(long, default_value_t = 0.5, value_parser = above_zero)]
    learning_rate: f32,
}

/// The largest accepted number. A product of two such numbers does not overflow.
const MOST: usize = 1_000_000;

fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MOST).contains(number));
    number.ok_or_else(|| format!("a whole number from 1 to {MOST}"))
}

fn above_zero(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number: &f32| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "a number above 0".to_owned())
}

impl Arguments {
    /// # Errors
    /// Fails if the ranks can't be divided into rows of that length, or if a row has more ranks than there are hidden
    /// units.
    fn plan(&self, samples: usize) -> anyhow::Result<Plan> {
        let &Self { mode, gpus, row, hidden, .. } = self;
        let tensor = match mode {
            Mode::Data | Mode::Sharded => 1,
            Mode::Tensor => gpus,
            Mode::Hybrid => row,
        };
        ensure!(gpus.is_multiple_of(tensor), "--gpus {gpus} can't be cut into rows of {tensor} (--row)");
        ensure!(hidden >= tensor, "--hidden {hidden}: {tensor} ranks divide them, so there must be {tensor}");
        let batches = (0..samples).step_by(self.batch).map(|start| start..samples.min(start + self.batch));
        let batches: Vec<_> = batches.collect();
        let mut left = self.steps.unwrap_or(usize::MAX);
        let mut epochs = Vec::new();
        for _ in 0..self.epochs {
            let steps = left.min(batches.len());
            left -= steps;
            if steps > 0 {
                epochs.push(batches[..steps].to_vec());
            }
        }
        let mesh = Mesh { data: gpus / tensor, tensor };
        Ok(Plan { mode, hidden, learning_rate: self.learning_rate, mesh, epochs })
    }
}

/// Exits with 0 if the training succeeded, with 1 if its result is not good enough, and with 2 on an error.
fn main() -> ExitCode {
    lab::exit_code(run(&Arguments::parse()))
}

/// Trains on GPUs and on the host, and returns whether the results are good enough.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let digits = Digits::load()?;
    let plan = arguments.plan(digits.train.len())?;
    let tier = lab::attach(arguments.gpus)?;
    let (known, unseen, Mesh { data, tensor }) = (digits.train.len(), digits.test.len(), plan.mesh);
    println!("tier: {tier}");
    println!("world size {}, {known} digits to learn from, {unseen} unseen", arguments.gpus);
    println!("the batch is divided by {data}, the model by {tensor}");

    println!("times: {}", lab::tier::whose_times()?);

    let streams = lab::streams(arguments.gpus)?;
    let (ranks, serial) = thread::scope(|scope| {
        let serial = scope.spawn(|| on_the_host(&plan, &digits));
        let ranks = on_gpus(&plan, &streams, &digits);
        (ranks, serial.join())
    });
    let (ranks, serial) = (ranks?, serial.ok().context("the training on the host failed")?);
    let (parameters, stray) = assemble(&ranks, plan.hidden)?;
    let Serial { parameters: expected, losses } = serial;

    let of_losses = ranks.iter().map(|rank| apart(&rank.losses, &losses)).fold(0.0, f64::max);
    let of_parameters = apart(&parameters, &expected);
    let allowed = OF_ROUNDING + OF_BENDS * 2.0 * f64::from(plan.learning_rate) / arguments.batch as f64;
    let as_one = of_losses <= allowed && of_parameters <= allowed;
    match stray {
        None => println!("replicas: bit-identical on every rank"),
        Some(rank) => println!("replicas: rank {rank}'s DIFFERS from the others'"),
    }
    println!("compared with the same training on the host:");
    println!("  losses     at most {of_losses:.1e} apart in {} steps, {allowed:.0e} allowed", losses.len());
    println!("  parameters at most {of_parameters:.1e} apart at the end, {allowed:.0e} allowed");

    let accuracy = accuracy(&parameters, plan.hidden, &digits);
    // A run with `--steps` may stop too early to reach the accuracy.
    let learned = arguments.steps.is_some() || accuracy >= WANTED_ACCURACY;
    let (percent, wanted) = (100.0 * accuracy, 100.0 * WANTED_ACCURACY);
    match arguments.steps {
        None => println!("accuracy: {percent:.1}% of the unseen digits, at least {wanted:.0}% wanted"),
        Some(_) => println!("accuracy: {percent:.1}% of the unseen digits"),
    }
    let good = stray.is_none() && as_one && learned;
    println!("verdict:  {}", if good { "trained as one" } else { "FAILED" });
    Ok(good)
}

/// Returns the largest difference between two values at the same index.
fn apart(got: &[f32], expected: &[f64]) -> f64 {
    let pairs = got.iter().zip(expected);
    pairs.map(|(got, expected)| (f64::from(*got) - expected).abs()).fold(0.0, f64::max)
}

/// Returns the fraction of the unseen digits that a model with these parameters recognizes.
fn accuracy(parameters: &[f32], hidden: usize, digits: &Digits) -> f64 {
    let mut model = HostPerceptron::new(hidden, 0);
    model.parameters_mut().iter_mut().zip(parameters).for_each(|(to, from)| *to = f64::from(*from));
    model.accuracy(&digits.test)
}
