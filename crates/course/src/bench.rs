//! `cargo course bench` prints a table like the one from nccl-tests, and can also write it to a file and draw a
//! picture. `cargo course compare` compares two such files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use chart::lines::{Lines, Point};
use serde::Deserialize;

use crate::demo;
use crate::session::Session;

/// The module whose program measures collectives.
const MODULE: &str = "02_collectives";

/// Runs the measurement with the student's arguments, and plots the resulting table.
pub(crate) fn run(
    session: &Session,
    csv: Option<&Path>,
    svg: Option<&Path>,
    arguments: &[String],
) -> anyhow::Result<ExitCode> {
    let own = course::progress::folder(session.root).join("bench.csv");
    let csv = std::path::absolute(csv.unwrap_or(&own)).context("can't determine the path for the table")?;
    if let Some(folder) = csv.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
    }
    let file = csv.to_str().with_context(|| format!("{}: the file name must be UTF-8", csv.display()))?;
    let arguments = [arguments, &["--csv".to_owned(), file.to_owned()]].concat();
    let code = demo::run(session, MODULE, &arguments)?;
    if code == ExitCode::SUCCESS
        && let Some(svg) = svg
    {
        let picture = drawn(&read_rows(&csv)?).with_context(|| format!("can't draw {}", svg.display()))?;
        std::fs::write(svg, picture).with_context(|| format!("can't write {}", svg.display()))?;
    }
    Ok(code)
}

/// A row that the module's program has written. Bandwidths are in GB/s.
#[derive(Deserialize)]
struct Row {
    operation: String,
    r#type: String,
    world_size: usize,
    bytes: f64,
    busbw_gbps: f64,
    /// Where the times come from: whether they are measured or modeled.
    times: String,
}

fn read_rows(file: &Path) -> anyhow::Result<Vec<Row>> {
    let mut reader =
        csv::Reader::from_path(file).with_context(|| format!("can't read {}", file.display()))?;
    let rows = reader.deserialize().collect::<Result<Vec<Row>, _>>();
    rows.with_context(|| format!("{} is not a table written by `cargo course bench`", file.display()))
}

/// Plots the bus bandwidth against the size, with one line per type.
fn drawn(rows: &[Row]) -> anyhow::Result<String> {
    let first = rows.first().context("the table has no rows")?;
    let mut of_type: BTreeMap<&str, Vec<Point>> = BTreeMap::new();
    for row in rows {
        of_type.entry(&row.r#type).or_default().push((row.bytes, row.busbw_gbps));
    }
    let label = |(name, points): (&str, Vec<Point>)| {
        let end = points.last().map_or(0.0, |end| end.1);
        (format!("{name} {end:.3} GB/s"), points)
    };
    let lines: Vec<_> = of_type.into_iter().map(label).collect();
    let labels: Vec<&str> = lines.iter().map(|(label, _)| label.as_str()).collect();
    let chart = Lines {
        title: &format!("Bus bandwidth of {} on {} ranks", first.operation, first.world_size),
        description: &format!("Bus bandwidth against the size. At the largest size: {}.", labels.join(", ")),
        sizes: "bytes in a rank's buffer",
        unit: "GB/s",
        note: &format!("Times: {}.", first.times),
        logarithmic: false,
        lines,
    };
    Ok(chart.svg())
}

/// The columns that identify a row, and the column to compare, for the tables from `cargo course bench` and from module
/// 05's ladder.
const TABLES: [(&[&str], &str); 2] = [
    (&["operation", "type", "world_size", "bytes"], "time_us"),
    (&["implementation", "model_size", "world_size"], "avg_step_time_ms"),
];

/// Compares the rows that two tables share: both times and their ratio.
pub(crate) fn compare(one: &Path, other: &Path) -> anyhow::Result<String> {
    let (columns, what, first) = read_table(one)?;
    let (other_columns, _, second) = read_table(other)?;
    ensure!(
        columns == other_columns,
        "{} and {} are different kinds of tables",
        one.display(),
        other.display()
    );
    let mut text = format!(
        "{}: {what} in {}, in {}, and their ratio\n",
        columns.join(" "),
        one.display(),
        other.display()
    );
    let mut shared = 0;
    let width = first.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
    for (key, time) in &first {
        let Some((_, then)) = second.iter().find(|row| row.0 == *key) else { continue };
        shared += 1;
        let _ = writeln!(text, "  {key:width$} {time:12.3} {then:12.3} {:8.3}", then / time);
    }
    for (rows, file) in [(&first, one), (&second, other)] {
        ensure!(!rows.is_empty(), "{} has no rows", file.display());
    }
    ensure!(shared > 0, "{} and {} have no rows in common", one.display(), other.display());
    let left_out = first.len() + second.len() - 2 * shared;
    if left_out > 0 {
        let _ = writeln!(text, "rows that are in only one of the tables: {left_out}");
    }
    Ok(text)
}

/// The names of the key columns, the name of the compared column, and the rows.
type Table = (Vec<&'static str>, &'static str, Vec<(String, f64)>);

fn read_table(file: &Path) -> anyhow::Result<Table> {
    let mut reader =
        csv::Reader::from_path(file).with_context(|| format!("can't read {}", file.display()))?;
    let header = reader.headers().with_context(|| format!("{} is no table", file.display()))?.clone();
    let place = |name: &str| header.iter().position(|column| column == name);
    let known = TABLES.iter().find_map(|(key, value)| {
        Some((*key, *value, key.iter().map(|name| place(name)).collect::<Option<Vec<_>>>()?, place(value)?))
    });
    let (key, value, key_at, value_at) = known.with_context(|| {
        format!(
            "{} is neither a table from `cargo course bench` nor one from module 05's ladder",
            file.display()
        )
    })?;
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.with_context(|| format!("{} is damaged", file.display()))?;
        let cells: Vec<&str> = key_at.iter().filter_map(|&at| record.get(at)).collect();
        let cell = record.get(value_at).unwrap_or_default();
        let time = cell.parse().ok().filter(|time: &f64| time.is_finite() && *time > 0.0);
        let line = record.position().map_or(0, csv::Position::line);
        let time = time.with_context(|| {
            format!("{}, line {line}: {value} must be a time above 0, but is `{cell}`", file.display())
        })?;
        rows.push((cells.join(" "), time));
    }
    Ok((key.to_vec(), value, rows))
}

/// The output files of a measurement.
#[derive(clap::Args)]
pub(crate) struct Files {
    /// Write the table to a file as well
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Draw the bus bandwidth against the size
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}
