// Runs the pipeline of `interleave` twice: one iteration after the other, and interleaved. Interleaving takes less time.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use cudarc::driver::{CudaSlice, CudaStream, CudaViewMut};
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::explain::error_text;
use lab::timeline::{Chart, Row, Span};
use m05_overlap::analysis::{Overlap, align, measure};
use m05_overlap::interleave::{Stages, interleave};
use m05_overlap::stages::{Load, Work, named};

/// Computation and communication, one after the other and interleaved
#[derive(Parser)]
#[command(
    after_help = "Example: cargo run -p m05_overlap --bin m05_overlap_interleave -- --gpus 8 --svg interleave.svg"
)]
struct Arguments {
    /// Ranks, each with its own GPU
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    gpus: u64,
    /// Iterations of the pipeline
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    iterations: u64,
    /// Elements of each iteration's buffer
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=1 << 28))]
    elements: u64,
    /// How often preprocessing and postprocessing each pass over the buffer
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=100))]
    work: u64,
    /// Write the interleaved run's timeline, for <https://ui.perfetto.dev>
    #[arg(long, value_name = "FILE.json")]
    timeline: Option<PathBuf>,
    /// Write the interleaved run's timeline as a picture
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
}

/// The order in which the stages are enqueued.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    OneAfterTheOther,
    Interleaved,
}

/// Exits with 0 if every result is right, with 1 if one is wrong, and with 2 on an error.
fn main() -> ExitCode {
    lab::exit_code(run(&Arguments::parse()))
}

/// Runs everything, and returns whether every result is right.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let ranks = usize::try_from(arguments.gpus)?;
    let elements = usize::try_from(arguments.elements)?;
    let load = Load {
        iterations: usize::try_from(arguments.iterations)?,
        elements,
        summed: [elements; 2],
        work: [usize::try_from(arguments.work)?; 2],
    };
    println!("tier: {}", lab::attach(ranks)?);
    println!(
        "{ranks} GPUs, {} iterations of {} floats, 3 stages per iteration:",
        load.iterations, load.elements
    );
    println!("  preprocess (compute stream) -> all-reduce (comm stream) -> postprocess (compute stream)");
    let streams = lab::streams(ranks)?;
    let mut verified = true;
    let mut totals = Vec::new();
    let mut interleaved = Vec::new();
    for (order, name) in
        [(Order::OneAfterTheOther, "one after the other"), (Order::Interleaved, "interleaved")]
    {
        let runs = rendezvous(&streams, |comm| pipeline(&comm, load, order))?;
        for wrong in runs.iter().filter_map(|(_, wrong)| wrong.as_ref()) {
            eprintln!("{name}: {wrong}");
            verified = false;
        }
        let rows = align(runs.into_iter().map(|(spans, _)| spans).collect())?;
        let overlaps: Vec<Overlap> = rows.iter().map(|row| measure(&row.spans)).collect();
        let slowest = overlaps.iter().max_by(|one, other| one.total.total_cmp(&other.total));
        let &slowest = slowest.context("a run has a GPU")?;
        println!("{name}: {}", figures(slowest));
        totals.push(slowest);
        interleaved = rows;
    }
    for iteration in 0..load.iterations {
        println!("  iteration {iteration}: {}", stages(&interleaved[0], iteration)?);
    }
    let whose_times = lab::tier::whose_times()?;
    let title = format!("{} iterations on {ranks} GPUs, interleaved", load.iterations);
    let chart = Chart { title, note: format!("Times are {whose_times}."), rows: interleaved, names: vec![] };
    print!("{}", chart.terminal());
    println!("times are {whose_times}; GPUs are aligned at the end of the last all-reduce");
    chart.write(arguments.timeline.as_deref(), arguments.svg.as_deref())?;
    for path in [&arguments.timeline, &arguments.svg].into_iter().flatten() {
        println!("written: {}", path.display());
    }
    let (before, after) = (totals[0].total, totals[1].total);
    println!(
        "speed-up: {:.2} times; at best {:.2}, if nothing but the longer of the two were left",
        before / after,
        before / totals[1].ideal()
    );
    println!("Results verified: {}", if verified { "PASSED" } else { "FAILED" });
    Ok(verified)
}

/// Formats the slowest GPU's figures as one line.
fn figures(overlap: Overlap) -> String {
    let Overlap { compute, communication, total } = overlap;
    // Round before formatting, so that a value just below 0 isn't shown as -0.00.
    let hundredths = |efficiency: f64| format!("{:.2}", (efficiency * 100.0).round() / 100.0 + 0.0);
    let efficiency = overlap.efficiency().map_or("-".to_owned(), hundredths);
    format!(
        "{total:.2} ms; computing {compute:.2}, communicating {communication:.2}; efficiency {efficiency}"
    )
}

/// Describes when the stages of an iteration ran on one GPU.
fn stages(row: &Row, iteration: usize) -> anyhow::Result<String> {
    let told = ["pre", "sum", "post"].map(|stage| {
        let name = named(stage, iteration);
        let found = row.spans.iter().find(|span| span.name == name);
        found.map(|Span { start, end, .. }| format!("{stage} {start:.2} to {end:.2} ms"))
    });
    let told: Option<Vec<String>> = told.into_iter().collect();
    Ok(told.with_context(|| format!("iteration {iteration} has not run"))?.join(" -> "))
}

/// Runs one rank. Returns when its stages ran, and what is wrong with its results, if anything.
fn pipeline(comm: &Comm, load: Load, order: Order) -> anyhow::Result<(Vec<Span>, Option<String>)> {
    let (context, stream) = (comm.context(), comm.stream());
    // SAFETY: each buffer's stages are ordered by events, and the host waits before it reads or frees anything.
    unsafe { context.disable_event_tracking() };
    let compute = context.new_stream()?;
    let buffers = (0..load.iterations).map(|_| Ok(compute.alloc_zeros::<f32>(load.elements)?));
    let mut buffers = buffers.collect::<anyhow::Result<Vec<_>>>()?;
    let mut work = Work::new(comm, &compute, load)?;
    let mut views: Vec<_> = buffers.iter_mut().map(CudaSlice::as_view_mut).collect();
    match order {
        Order::OneAfterTheOther => one_after_the_other(&compute, &stream, &mut work, &mut views)?,
        Order::Interleaved => interleave(&compute, &stream, &mut work, &mut views)?,
    }
    let spans = work.spans()?;
    stream.synchronize()?;
    let wrong = work.verify(&buffers).err();
    Ok((spans, wrong.map(|error| error_text(&error))))
}

/// Enqueues each stage after the previous stage, and each iteration after the previous iteration.
fn one_after_the_other(
    compute: &Arc<CudaStream>,
    comm: &Arc<CudaStream>,
    work: &mut Work,
    buffers: &mut [CudaViewMut<f32>],
) -> anyhow::Result<()> {
    for (iteration, buffer) in buffers.iter_mut().enumerate() {
        work.preprocess(iteration, buffer)?;
        comm.wait(&compute.record_event(None)?)?;
        work.all_reduce(iteration, buffer)?;
        compute.wait(&comm.record_event(None)?)?;
        work.postprocess(iteration, buffer)?;
    }
    Ok(comm.wait(&compute.record_event(None)?)?)
}
