// Draws what the GPUs do in three of the module's exercises, with real work, and compares every result.

mod timelines {
    pub(crate) mod experts;
    pub(crate) mod hierarchical;
    pub(crate) mod one_f_one_b;
}

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::ensure;
use clap::{Parser, ValueEnum};
use cudarc::driver::CudaStream;
use lab::timeline::Drawing;
use timelines::{experts, hierarchical, one_f_one_b};

/// Draw what the GPUs do in three exercises
#[derive(Parser)]
#[command(after_help = "Example: cargo run -p m06_scale -- one-f-one-b --svg one_f_one_b.svg")]
struct Arguments {
    /// The exercise to draw; by default all three
    exercise: Option<Exercise>,
    /// Ranks, each with its own GPU
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..=16))]
    gpus: u64,
    /// A factor for the amount of data; increase it if a GPU finishes kernels faster than they are launched
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 12))]
    scale: u64,
    /// Write the timeline, for <https://ui.perfetto.dev>
    #[arg(long, value_name = "FILE.json", requires = "exercise")]
    timeline: Option<PathBuf>,
    /// Write the timeline as a picture
    #[arg(long, value_name = "FILE.svg", requires = "exercise")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Exercise {
    /// The same sum in one call and in three steps, on two nodes with half of the GPUs each: GPU 0 in both cases
    Hierarchical,
    /// Tokens that go to their experts and back, although one expert has most of them
    Experts,
    /// Forward and backward passes of micro-batches through a stage on each GPU
    #[value(name = "one-f-one-b")]
    OneFOneB,
}

impl Exercise {
    /// Runs the exercise with one rank per stream.
    fn run(self, streams: &[Arc<CudaStream>], scale: usize) -> anyhow::Result<Drawing> {
        match self {
            Self::Hierarchical => hierarchical::run(streams, scale),
            Self::Experts => experts::run(streams, scale),
            Self::OneFOneB => one_f_one_b::run(streams, scale),
        }
    }
}

/// Exits with 0 if every result is right, with 1 if one is wrong, and with 2 on an error.
fn main() -> ExitCode {
    lab::exit_code(run(&Arguments::parse()))
}

/// Runs everything, and returns whether every result is right.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let Arguments { exercise, gpus, scale, timeline, svg } = arguments;
    ensure!(gpus % 2 == 0, "`--gpus {gpus}` can't be divided among two nodes: use an even number");
    let ranks = usize::try_from(*gpus)?;
    println!("tier: {}", lab::attach(ranks)?);
    let streams = lab::streams(ranks)?;
    let exercises: &[Exercise] = exercise.as_ref().map_or(Exercise::value_variants(), std::slice::from_ref);
    let mut is_right = true;
    for exercise in exercises {
        println!();
        let drawing = exercise.run(&streams, usize::try_from(*scale)?)?;
        is_right &= drawing.show(timeline.as_deref(), svg.as_deref())?;
    }
    Ok(is_right)
}
