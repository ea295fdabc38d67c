// Draws what the streams do in the exercises about overlap, with real work, and compares every result.

mod copies;
mod depth;
mod layerwise;
mod pipeline_parallel;
mod waiting;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use cudarc::driver::CudaStream;
use lab::timeline::Drawing;

/// Draw what the streams do in an exercise
#[derive(Parser)]
#[command(
    after_help = "Example: cargo run -p m05_overlap --bin m05_overlap_timelines -- depth --svg depth.svg"
)]
struct Arguments {
    /// The exercise to draw
    exercise: Exercise,
    /// Ranks, each with its own GPU; by default 2 for waiting and layerwise, and 4 for the others
    #[arg(long, value_parser = clap::value_parser!(u64).range(2..=8))]
    gpus: Option<u64>,
    /// A factor for the amount of data; increase it if a GPU finishes kernels faster than they are launched
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 14))]
    scale: u64,
    /// Write the timeline, for <https://ui.perfetto.dev>
    #[arg(long, value_name = "FILE.json")]
    timeline: Option<PathBuf>,
    /// Write the timeline as a picture
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Exercise {
    /// Two averages, with the wait in three different places: GPU 0 in each case
    Waiting,
    /// The same pipeline with one, two, and three buffers: GPU 0 in each case
    Depth,
    /// Two layers with the batch in two halves
    Layerwise,
    /// Micro-batches through a stage on each GPU
    PipelineParallel,
    /// Batches that come in and go out in parallel with the computation: GPU 0
    Copies,
}

impl Exercise {
    fn default_gpus(self) -> u64 {
        match self {
            Self::Depth | Self::PipelineParallel | Self::Copies => 4,
            Self::Waiting | Self::Layerwise => 2,
        }
    }

    /// Runs the exercise with one rank per stream.
    fn run(self, streams: &[Arc<CudaStream>], scale: usize) -> anyhow::Result<Drawing> {
        match self {
            Self::Waiting => waiting::run(streams, scale),
            Self::Depth => depth::run(streams, scale),
            Self::Layerwise => layerwise::run(streams, scale),
            Self::PipelineParallel => pipeline_parallel::run(streams, scale),
            Self::Copies => copies::run(streams, scale),
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
    let ranks = usize::try_from(gpus.unwrap_or(exercise.default_gpus()))?;
    println!("tier: {}", lab::attach(ranks)?);
    let drawing = exercise.run(&lab::streams(ranks)?, usize::try_from(*scale)?)?;
    drawing.show(timeline.as_deref(), svg.as_deref())
}
