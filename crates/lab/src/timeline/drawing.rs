//! Draws the runs of several ranks, whose results were also compared.

use std::path::Path;

use cudarc::nccl::{Comm, ReduceOp};

use super::{Chart, Kind, Row, Span, Timeline};
use crate::explain::{Readable, error_text};

/// The name of the all-reduces that align the GPUs' clocks.
const CLOCK: &str = "clock";

/// What a rank did, and whether its results are right.
pub struct RankRun {
    /// Its work.
    pub spans: Vec<Span>,
    /// What is wrong with its results, if anything.
    pub wrong: Option<String>,
}

impl RankRun {
    /// Creates a rank's run from its work and the comparison of its results.
    pub fn new(spans: Vec<Span>, compared: anyhow::Result<()>) -> Self {
        Self { spans, wrong: compared.err().map(|error| error_text(&error)) }
    }
}

/// A chart of runs, and what is wrong with their results.
pub struct Drawing {
    /// The subject of the chart.
    pub title: String,
    /// The names of the rows, if they are not named after their GPUs.
    pub names: Vec<String>,
    /// The rows, one for each GPU or each run.
    pub rows: Vec<Row>,
    /// What is wrong with the results, for each rank with a wrong result.
    pub wrong: Vec<String>,
}

impl Drawing {
    /// Creates an empty drawing of several runs.
    pub fn of_runs(title: String) -> Self {
        Self { title, names: Vec::new(), rows: Vec::new(), wrong: Vec::new() }
    }

    /// Adds a run, as a row for rank 0 that begins with its first span.
    pub fn add_run(&mut self, name: &str, ranks: Vec<RankRun>) {
        let (spans, wrong) = apart(ranks);
        let spans = spans.into_iter().next().unwrap_or_default();
        let first = spans.iter().map(|span| span.start).fold(f64::INFINITY, f64::min);
        self.names.push(name.to_owned());
        self.rows.push(Row { spans: shifted(spans, -first), uncertainty: 0.0 });
        self.wrong.extend(wrong.into_iter().map(|wrong| format!("{name}: {wrong}")));
    }

    /// Creates a drawing with a row for each GPU. `align` brings the GPUs' spans to a common clock, and `title` gets the
    /// rows.
    ///
    /// # Errors
    /// Returns any error from `align`.
    pub fn of_gpus(
        ranks: Vec<RankRun>,
        align: impl FnOnce(Vec<Vec<Span>>) -> anyhow::Result<Vec<Row>>,
        title: impl FnOnce(&[Row]) -> String,
    ) -> anyhow::Result<Self> {
        let (spans, wrong) = apart(ranks);
        let rows = align(spans)?;
        Ok(Self { title: title(&rows), names: Vec::new(), rows, wrong })
    }

    /// Prints the chart, writes the files whose paths are given, and prints what is wrong with the results. Returns
    /// whether all of them are right.
    ///
    /// # Errors
    /// Fails if a file can't be written.
    pub fn show(self, perfetto: Option<&Path>, svg: Option<&Path>) -> anyhow::Result<bool> {
        let Self { title, names, rows, wrong } = self;
        println!("{title}");
        let whose_times = crate::tier::whose_times()?;
        let chart = Chart { title, note: format!("Times are {whose_times}."), rows, names };
        print!("{}", chart.terminal());
        println!("times are {whose_times}");
        chart.write(perfetto, svg)?;
        for path in [perfetto, svg].into_iter().flatten() {
            println!("written: {}", path.display());
        }
        for wrong in &wrong {
            eprintln!("{wrong}");
        }
        println!("Results verified: {}", if wrong.is_empty() { "PASSED" } else { "FAILED" });
        Ok(wrong.is_empty())
    }
}

/// Separates the ranks' spans from what is wrong with their results.
fn apart(ranks: Vec<RankRun>) -> (Vec<Vec<Span>>, Vec<String>) {
    let (spans, wrong): (Vec<_>, Vec<_>) = ranks.into_iter().map(|rank| (rank.spans, rank.wrong)).unzip();
    (spans, wrong.into_iter().flatten().collect())
}

/// Returns the same spans, `by` milliseconds later.
fn shifted(spans: Vec<Span>, by: f64) -> Vec<Span> {
    spans.into_iter().map(|span| Span { start: span.start + by, end: span.end + by, ..span }).collect()
}

impl Timeline {
    /// Enqueues an all-reduce as a common mark for [`on_one_clock`], because it ends on all GPUs at about the same time.
    /// Every rank must call it, before and after its work.
    ///
    /// # Errors
    /// Returns any error from NCCL or the driver.
    pub fn mark_clock(&mut self, comm: &Comm) -> anyhow::Result<()> {
        let stream = comm.stream();
        let mut one = stream.alloc_zeros::<f32>(1)?;
        self.record(&stream, Kind::Communication, CLOCK, || {
            comm.all_reduce_in_place(&mut one, &ReduceOp::Sum).readable().map(drop)
        })
    }
}

/// Shifts each GPU's work to a common clock, and leaves out the marks from [`Timeline::mark_clock`], which `align` aligns.
///
/// # Errors
/// Returns any error from `align`.
pub fn on_one_clock(
    gpus: Vec<Vec<Span>>,
    align: impl FnOnce(Vec<Vec<Span>>) -> anyhow::Result<Vec<Row>>,
) -> anyhow::Result<Vec<Row>> {
    let split = |spans: Vec<Span>| spans.into_iter().partition(|span| span.name == CLOCK);
    let (clocks, work): (Vec<Vec<Span>>, Vec<Vec<Span>>) = gpus.into_iter().map(split).unzip();
    let aligned = align(clocks.clone())?;
    let rows = aligned.into_iter().zip(clocks).zip(work).map(|((aligned, own), work)| Row {
        spans: shifted(work, aligned.spans[0].end - own[0].end),
        uncertainty: aligned.uncertainty,
    });
    Ok(rows.collect())
}

/// Returns the fraction of the total time in which a GPU doesn't compute, as the mean over all GPUs.
pub fn idle(rows: &[Row]) -> f64 {
    let computing = || rows.iter().flat_map(|row| &row.spans).filter(|span| span.kind == Kind::Compute);
    let busy: f64 = computing().map(|span| span.end - span.start).sum();
    let start = computing().map(|span| span.start).fold(f64::INFINITY, f64::min);
    let end = computing().map(|span| span.end).fold(f64::NEG_INFINITY, f64::max);
    1.0 - busy / (end - start) / rows.len() as f64
}
