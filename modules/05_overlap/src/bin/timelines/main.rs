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
use lab::explain::error_text;
use lab::timeline::{Chart, Row, Span};

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

/// The picture of an exercise.
struct Picture {
    title: String,
    /// The names of the rows, if they are not named after their GPUs.
    names: Vec<String>,
    rows: Vec<Row>,
    /// What is wrong with the results, for each rank with a wrong result.
    wrong: Vec<String>,
}

/// The result of a rank.
struct Done {
    spans: Vec<Span>,
    /// What is wrong with its results, if anything.
    wrong: Option<String>,
}

impl Done {
    fn new(spans: Vec<Span>, verified: anyhow::Result<()>) -> Self {
        Self { spans, wrong: verified.err().map(|error| error_text(&error)) }
    }
}

/// Separates the ranks' spans from what is wrong with their results.
fn apart(ranks: Vec<Done>) -> (Vec<Vec<Span>>, Vec<String>) {
    let (spans, wrong): (Vec<_>, Vec<_>) = ranks.into_iter().map(|done| (done.spans, done.wrong)).unzip();
    (spans, wrong.into_iter().flatten().collect())
}

impl Picture {
    /// Creates an empty picture of several runs.
    fn of_runs(title: String) -> Self {
        Self { title, names: Vec::new(), rows: Vec::new(), wrong: Vec::new() }
    }

    /// Adds a run, as a row for rank 0 that begins with its first span.
    fn add_run(&mut self, name: &str, ranks: Vec<Done>) {
        let (spans, wrong) = apart(ranks);
        let spans = spans.into_iter().next().unwrap_or_default();
        let first = spans.iter().map(|span| span.start).fold(f64::INFINITY, f64::min);
        self.names.push(name.to_owned());
        self.rows.push(Row { spans: shifted(spans, -first), uncertainty: 0.0 });
        self.wrong.extend(wrong.into_iter().map(|wrong| format!("{name}: {wrong}")));
    }
}

/// Returns the same spans, `by` milliseconds later.
fn shifted(spans: Vec<Span>, by: f64) -> Vec<Span> {
    spans.into_iter().map(|span| Span { start: span.start + by, end: span.end + by, ..span }).collect()
}

impl Exercise {
    fn default_gpus(self) -> u64 {
        match self {
            Self::Depth | Self::PipelineParallel | Self::Copies => 4,
            Self::Waiting | Self::Layerwise => 2,
        }
    }

    /// Runs the exercise with one rank per stream.
    fn run(self, streams: &[Arc<CudaStream>], scale: usize) -> anyhow::Result<Picture> {
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
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {}", error_text(&error));
            ExitCode::from(2)
        }
    }
}

/// Runs everything, and returns whether every result is right.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let Arguments { exercise, gpus, scale, timeline, svg } = arguments;
    let ranks = usize::try_from(gpus.unwrap_or(exercise.default_gpus()))?;
    println!("tier: {}", lab::attach(ranks)?);
    let Picture { title, names, rows, wrong } =
        exercise.run(&lab::streams(ranks)?, usize::try_from(*scale)?)?;
    println!("{title}");
    let whose_times = lab::tier::whose_times()?;
    let chart = Chart { title, note: format!("Times are {whose_times}."), rows, names };
    print!("{}", chart.terminal());
    println!("times are {whose_times}");
    chart.write(timeline.as_deref(), svg.as_deref())?;
    for path in [timeline, svg].into_iter().flatten() {
        println!("written: {}", path.display());
    }
    for wrong in &wrong {
        eprintln!("{wrong}");
    }
    println!("Results verified: {}", if wrong.is_empty() { "PASSED" } else { "FAILED" });
    Ok(wrong.is_empty())
}
