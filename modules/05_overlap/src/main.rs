// The ladder: the same training in four ways, from an all-reduce per gradient after the backward pass to overlapped buckets.

mod recorded;

use std::fmt::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use collectives::broadcast::replicas_equal;
use cudarc::nccl::Comm;
use indicatif::{ProgressBar, ProgressStyle};
use init::rendezvous::rendezvous;
use lab::timeline::{Chart, Span};
use lab::{Network, NetworkShape, Stopwatch, Trainable};
use m05_overlap::analysis::align;
use m05_overlap::{bucket_plan, buckets, hooks};

use recorded::{Model, Recorded};

/// Train a deep network data-parallel in four ways, and compare their times
#[derive(Parser)]
#[command(after_help = "Example: cargo run -p m05_overlap -- --model-size medium --world-size 2 --steps 5")]
struct Arguments {
    /// The network's size
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Size::Medium, Size::Large, Size::Xl])]
    model_size: Vec<Size>,
    /// Ranks, each with its own GPU
    #[arg(long, alias = "gpus", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    world_size: u64,
    /// Steps to run before the measurement
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=1000))]
    warmup: u64,
    /// Steps to measure
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1000))]
    steps: u64,
    /// The largest bucket in KiB; by default the size of a layer
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    bucket_kib: Option<u64>,
    /// Where to write the table as CSV
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Write the timeline of a step of each way, for <https://ui.perfetto.dev>: to FILE-xl-naive.json and so on
    #[arg(long, value_name = "FILE.json")]
    timeline: Option<PathBuf>,
    /// Write the same timelines as pictures: to FILE-xl-naive.svg and so on
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
}

/// The widths of GPT-2 medium, large, and XL (1024, 1280, 1600) divided by 8, and the numbers of their layers (24, 36, 48)
/// divided by 4. Each layer has about nine parameters, as in GPT-2.
#[derive(Clone, Copy, ValueEnum)]
enum Size {
    Medium,
    Large,
    Xl,
}

impl Size {
    fn shape(self) -> NetworkShape {
        let (width, layers) = match self {
            Self::Medium => (128, 6),
            Self::Large => (160, 9),
            Self::Xl => (200, 12),
        };
        NetworkShape { width, layers, heads: 8, rows: 16 }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Medium => "medium",
            Self::Large => "large",
            Self::Xl => "xl",
        }
    }
}

/// A way to average the gradients.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Implementation {
    Naive,
    Flat,
    Overlapped,
    Bucketed,
}

const LADDER: [Implementation; 4] =
    [Implementation::Naive, Implementation::Flat, Implementation::Overlapped, Implementation::Bucketed];

impl Implementation {
    fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Flat => "flat",
            Self::Overlapped => "overlapped",
            Self::Bucketed => "bucketed",
        }
    }

    /// Returns a rank's number of all-reduces per step.
    fn calls(self, parameters: usize, plan: &[Range<usize>]) -> usize {
        match self {
            Self::Naive | Self::Overlapped => parameters,
            Self::Flat => 1,
            Self::Bucketed => plan.len(),
        }
    }

    /// Returns, for each parameter, the name of the all-reduce that its hook starts, if it starts one.
    fn calls_in_hooks(self, parameters: usize, plan: &[Range<usize>]) -> Vec<Option<String>> {
        let bucket = |parameter| plan.iter().position(|bucket| bucket.start == parameter);
        let call = |parameter| match self {
            Self::Naive | Self::Flat => None,
            Self::Overlapped => Some(format!("gradient {parameter}")),
            Self::Bucketed => bucket(parameter).map(|bucket| format!("bucket {bucket}")),
        };
        (0..parameters).map(call).collect()
    }

    /// Trains one step.
    fn step(self, comm: &Comm, model: &mut impl Model, plan: &[Range<usize>]) -> anyhow::Result<()> {
        let _range = lab::nvtx::range(&format!("{} step", self.name()));
        let layout = model.layout().to_vec();
        model.forward()?;
        match self {
            Self::Naive => behind_the_backward_pass(comm, model, layout.into_iter().rev()),
            Self::Flat => {
                let everything = 0..layout.last().map_or(0, |last| last.end);
                behind_the_backward_pass(comm, model, std::iter::once(everything))
            }
            Self::Overlapped => hooks::step(comm, model),
            Self::Bucketed => buckets::step(comm, model, plan),
        }
    }
}

/// Trains one step, and starts to communicate only after the backward pass: one all-reduce for each of these parts of the
/// gradients.
fn behind_the_backward_pass(
    comm: &Comm,
    model: &mut impl Model,
    parts: impl Iterator<Item = Range<usize>>,
) -> anyhow::Result<()> {
    let (compute, communication) = (model.stream().clone(), comm.stream());
    model.backward(|_, _| Ok(()))?;
    communication.wait(&compute.record_event(None)?)?;
    for part in parts {
        model.average(comm, part)?;
    }
    compute.wait(&communication.record_event(None)?)?;
    model.descend()
}

/// The result of one rank.
struct Trained {
    milliseconds: f64,
    calls: usize,
    replicas_equal: bool,
    parameters: Vec<f32>,
    /// One additional step, if it is drawn.
    spans: Option<Vec<Span>>,
}

/// Trains in one way. All ways start with the same parameters, and use the same samples.
fn train(
    comm: &Comm,
    arguments: &Arguments,
    size: Size,
    implementation: Implementation,
) -> anyhow::Result<Trained> {
    const LEARNING_RATE: f32 = 0.1;
    const SEED: u64 = 1;
    let context = comm.context();
    // SAFETY: in all four ways, events order the uses of each buffer in the two streams.
    unsafe { context.disable_event_tracking() };
    let compute = context.new_stream()?;
    let seed_of_its_own = 100 + comm.rank() as u64;
    let mut model = Network::new(&compute, size.shape(), LEARNING_RATE, SEED, seed_of_its_own)?;
    let layout = model.layout().to_vec();
    let bytes_of_a_layer = size_of::<f32>() * layout.last().map_or(0, |last| last.end) / size.shape().layers;
    let cap = arguments.bucket_kib.map_or(Ok(bytes_of_a_layer), |kib| usize::try_from(kib << 10))?;
    let plan = bucket_plan::plan(&layout, cap);
    let mut step = || implementation.step(comm, &mut model, &plan);
    (0..arguments.warmup).try_for_each(|_| step())?;
    compute.synchronize()?;
    let watch = Stopwatch::start(&compute)?;
    (0..arguments.steps).try_for_each(|_| step())?;
    let milliseconds = watch.microseconds()? / arguments.steps as f64 / 1e3;
    comm.stream().synchronize()?;
    let replicas_equal = replicas_equal(comm, &model.parameters())?;
    let parameters = compute.clone_dtoh(&model.parameters())?;
    let is_drawn = arguments.timeline.is_some() || arguments.svg.is_some();
    Ok(Trained {
        milliseconds,
        calls: implementation.calls(layout.len(), &plan),
        replicas_equal,
        parameters,
        spans: is_drawn.then(|| recorded_step(comm, size, implementation, &mut model, &plan)).transpose()?,
    })
}

/// Trains a step, and returns when each part of it ran.
fn recorded_step(
    comm: &Comm,
    size: Size,
    implementation: Implementation,
    model: &mut Network,
    plan: &[Range<usize>],
) -> anyhow::Result<Vec<Span>> {
    let calls = implementation.calls_in_hooks(model.layout().len(), plan);
    let mut recorded = Recorded::new(model, comm, size.shape().layers, calls)?;
    implementation.step(comm, &mut recorded, plan)?;
    let spans = recorded.spans()?;
    comm.stream().synchronize()?;
    Ok(spans)
}

/// A line of the table.
struct Row {
    implementation: Implementation,
    size: Size,
    calls: usize,
    milliseconds: f64,
    /// How many times faster than the naive way.
    speedup: f64,
    /// The largest difference between a parameter and that of the naive way.
    distance: f32,
    replicas_equal: bool,
    /// The timeline of one step, if it is to be drawn.
    chart: Option<Chart>,
}

/// Returns how far apart the parameters of two ways may be after some steps, because sums in a different order round differently.
///
/// A parameter and its change in a step are below 1. A step rounds the parameter by at most 2⁻²⁵, relatively. An average of n
/// values below 1 rounds each product with 1/n by at most 2⁻²⁵/n, and each of n − 1 sums by at most 2⁻²⁵. Both ways round.
fn rounding(ranks: u64, steps: u64) -> f32 {
    (2 * steps * (1 + ranks)) as f32 * f32::powi(2.0, -25)
}

impl Row {
    /// Returns whether the replicas are equal, and the parameters equal those of the naive way, except for rounding.
    fn is_right(&self, bound: f32) -> bool {
        self.replicas_equal && self.distance <= bound
    }
}

/// Trains a network of one size in all four ways.
fn ladder(arguments: &Arguments, size: Size, progress: &ProgressBar) -> anyhow::Result<Vec<Row>> {
    let streams = lab::streams(usize::try_from(arguments.world_size)?)?;
    let mut rows = Vec::new();
    let mut naive: Option<(f64, Vec<f32>)> = None;
    for implementation in LADDER {
        progress.set_message(format!("{} {}", size.name(), implementation.name()));
        let mut ranks = rendezvous(&streams, |comm| train(&comm, arguments, size, implementation))?;
        progress.inc(1);
        // The slowest rank determines the time of all ranks.
        let milliseconds = ranks.iter().map(|rank| rank.milliseconds).fold(0.0, f64::max);
        let replicas_equal = ranks.iter().all(|rank| rank.replicas_equal);
        let spans: Option<Vec<_>> = ranks.iter_mut().map(|rank| rank.spans.take()).collect();
        let chart = spans.map(|spans| chart(size, implementation, spans)).transpose()?;
        let first = ranks.into_iter().next().context("no rank")?;
        let (naive_milliseconds, parameters) =
            naive.get_or_insert_with(|| (milliseconds, first.parameters.clone()));
        let distances = first.parameters.iter().zip(parameters).map(|(one, other)| (one - *other).abs());
        rows.push(Row {
            implementation,
            size,
            calls: first.calls,
            milliseconds,
            speedup: *naive_milliseconds / milliseconds,
            // A NaN counts as the largest distance.
            distance: distances.fold(0.0, |most, distance| if distance <= most { most } else { distance }),
            replicas_equal,
            chart,
        });
    }
    Ok(rows)
}

/// Returns a chart of one step, with all GPUs on one clock.
fn chart(size: Size, implementation: Implementation, gpus: Vec<Vec<Span>>) -> anyhow::Result<Chart> {
    let (size, implementation) = (size.name(), implementation.name());
    let title = format!("{size}, {implementation}: forward, backward by layers, step");
    let note = format!("Times are {}.", lab::tier::whose_times()?);
    Ok(Chart { title, note, rows: align(gpus)?, names: vec![] })
}

impl Row {
    /// Returns the path of this row's file: `ladder.svg` becomes `ladder-xl-naive.svg`.
    fn file(&self, path: &Path) -> PathBuf {
        let (size, implementation) = (self.size.name(), self.implementation.name());
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let named = path.with_file_name(format!("{stem}-{size}-{implementation}"));
        match path.extension() {
            Some(extension) => named.with_added_extension(extension),
            None => named,
        }
    }

    /// Writes the timeline to the files that the arguments name, and prints their paths.
    fn write_timeline(&self, arguments: &Arguments) -> anyhow::Result<()> {
        let Some(chart) = &self.chart else { return Ok(()) };
        let file = |path: &Option<PathBuf>| path.as_ref().map(|path| self.file(path));
        let (timeline, svg) = (file(&arguments.timeline), file(&arguments.svg));
        chart.write(timeline.as_deref(), svg.as_deref())?;
        for path in [&timeline, &svg].into_iter().flatten() {
            println!("written: {}", path.display());
        }
        Ok(())
    }
}

/// Formats the table in aligned columns.
fn table(rows: &[Row], world_size: u64) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(
        text,
        "{:<14} {:<10} {:>7} {:>10} {:>10} {:>14} {:>16} {:>16}",
        "implementation",
        "model_size",
        "d_model",
        "num_layers",
        "world_size",
        "calls_per_step",
        "avg_step_time_ms",
        "speedup_vs_naive"
    )?;
    for Row { implementation, size, calls, milliseconds, speedup, .. } in rows {
        let NetworkShape { width, layers, .. } = size.shape();
        writeln!(
            text,
            "{:<14} {:<10} {width:>7} {layers:>10} {world_size:>10} {calls:>14} {milliseconds:>16.3} {speedup:>16.4}",
            implementation.name(),
            size.name()
        )?;
    }
    Ok(text)
}

/// Formats the table as CSV.
fn csv(rows: &[Row], world_size: u64) -> anyhow::Result<String> {
    let mut text =
        "implementation,model_size,d_model,num_layers,world_size,calls_per_step,avg_step_time_ms,speedup_vs_naive\n"
            .to_owned();
    for Row { implementation, size, calls, milliseconds, speedup, .. } in rows {
        let NetworkShape { width, layers, .. } = size.shape();
        let (implementation, size) = (implementation.name(), size.name());
        writeln!(
            text,
            "{implementation},{size},{width},{layers},{world_size},{calls},{milliseconds:.6},{speedup:.6}"
        )?;
    }
    Ok(text)
}

/// Runs everything, and returns whether every result is right.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let world_size = arguments.world_size;
    println!("tier: {}", lab::attach(usize::try_from(world_size)?)?);
    let progress = ProgressBar::new((arguments.model_size.len() * LADDER.len()) as u64);
    progress.set_style(ProgressStyle::with_template("{bar:40} {pos} of {len}  {msg}")?);
    let mut rows = Vec::new();
    for &size in &arguments.model_size {
        rows.extend(ladder(arguments, size, &progress)?);
    }
    progress.finish_and_clear();

    println!("times are {}\n", lab::tier::whose_times()?);
    println!("{}", table(&rows, world_size)?);
    for pair in rows.windows(2).filter(|pair| pair[1].implementation != Implementation::Naive) {
        let [before, row] = pair else { continue };
        let less = 100.0 * (1.0 - row.milliseconds / before.milliseconds);
        println!(
            "{}: {} takes {:.2}% {} than {}",
            row.size.name(),
            row.implementation.name(),
            less.abs(),
            if less >= 0.0 { "less" } else { "MORE" },
            before.implementation.name()
        );
    }
    if let Some(path) = &arguments.csv {
        std::fs::write(path, csv(&rows, world_size)?)
            .with_context(|| format!("can't write {}", path.display()))?;
        println!("written to {}", path.display());
    }
    rows.iter().try_for_each(|row| row.write_timeline(arguments))?;
    let bound = rounding(arguments.world_size, arguments.warmup + arguments.steps);
    let good = rows.iter().all(|row| row.is_right(bound));
    let farthest = rows.iter().map(|row| row.distance).fold(0.0, f32::max);
    println!("parameters: no two ways differ by more than {farthest:.1e}, and rounding explains {bound:.0e}");
    println!("verdict: {}", if good { "all four ways train the same model" } else { "DIFFERENT MODELS" });
    Ok(good)
}

/// Exits with 0 if all ways give the same parameters, with 1 if one differs, and with 2 on an error.
fn main() -> ExitCode {
    lab::exit_code(run(&Arguments::parse()))
}
