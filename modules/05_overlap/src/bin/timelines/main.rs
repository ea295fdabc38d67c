// What the streams do in the exercises where something overlaps: each with work in it, and every result compared.

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
    /// Whose streams
    exercise: Exercise,
    /// Ranks, each with a GPU of its own; by default 2 for waiting and layerwise, and 4 for the others
    #[arg(long, value_parser = clap::value_parser!(u64).range(2..=8))]
    gpus: Option<u64>,
    /// How many times as much data: more, where a GPU is quicker than its launches
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
    /// Two averages, waited for at three places: GPU 0 in each
    Waiting,
    /// The same pipeline with one buffer, two and three: GPU 0 with each
    Depth,
    /// Two layers with the batch in two halves
    Layerwise,
    /// Micro-batches through a stage on each GPU
    PipelineParallel,
    /// Batches that come in and go out beside the computation: GPU 0
    Copies,
}

/// What there is to see of an exercise.
struct Picture {
    title: String,
    /// What the rows are called, if not by their GPUs.
    names: Vec<String>,
    rows: Vec<Row>,
    /// What is wrong with the results of each rank where something is.
    wrong: Vec<String>,
}

/// What a rank has done.
struct Done {
    spans: Vec<Span>,
    /// What is wrong with its results, if something is.
    wrong: Option<String>,
}

impl Done {
    fn new(spans: Vec<Span>, verified: anyhow::Result<()>) -> Self {
        Self { spans, wrong: verified.err().map(|error| error_text(&error)) }
    }
}

/// The spans of each rank, and what is wrong with their results.
fn apart(ranks: Vec<Done>) -> (Vec<Vec<Span>>, Vec<String>) {
    let (spans, wrong): (Vec<_>, Vec<_>) = ranks.into_iter().map(|done| (done.spans, done.wrong)).unzip();
    (spans, wrong.into_iter().flatten().collect())
}

impl Picture {
    /// Nothing yet, of several runs.
    fn of_runs(title: String) -> Self {
        Self { title, names: Vec::new(), rows: Vec::new(), wrong: Vec::new() }
    }

    /// One more run, of which rank 0 is shown, from its first start on.
    fn add_run(&mut self, name: &str, ranks: Vec<Done>) {
        let (spans, wrong) = apart(ranks);
        let spans = spans.into_iter().next().unwrap_or_default();
        let first = spans.iter().map(|span| span.start).fold(f64::INFINITY, f64::min);
        self.names.push(name.to_owned());
        self.rows.push(Row { spans: shifted(spans, -first), uncertainty: 0.0 });
        self.wrong.extend(wrong.into_iter().map(|wrong| format!("{name}: {wrong}")));
    }
}

/// The same spans, so many milliseconds later.
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

    /// Runs it, with a rank for each stream.
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

/// Exits with 0 if every result is right, with 1 if one isn't, and with 2 if it couldn't be done.
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

/// Does all of it, and tells the verdict.
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
