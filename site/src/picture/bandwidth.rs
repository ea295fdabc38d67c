//! A plot of the bus bandwidth of an all-reduce against its size, on four nodes.

use std::path::Path;

use anyhow::{Context, ensure};
use chart::lines::{Lines, Point, size_text};
use serde::Deserialize;

/// The nodes, by their names in the virtual GPU.
pub(super) const NODES: [&str; 4] = ["dgx-h100", "dgx-a100", "pcie", "classroom"];

/// Returns the file name of a node's table.
pub(super) fn table(node: &str) -> String {
    format!("bandwidth-{node}.csv")
}

/// A line of the table that module 02's program writes: the size in bytes and the bandwidth in GB/s.
#[derive(Deserialize)]
struct Row {
    bytes: f64,
    busbw_gbps: f64,
}

fn read(file: &Path) -> anyhow::Result<Vec<Point>> {
    let name = || format!("can't read {}", file.display());
    let rows: Vec<Row> = csv::Reader::from_path(file)
        .with_context(name)?
        .deserialize()
        .collect::<Result<_, _>>()
        .with_context(name)?;
    let are_positive = rows.iter().all(|row| row.bytes > 0.0 && row.busbw_gbps > 0.0);
    ensure!(rows.len() > 1 && are_positive, "{} contains no lines to draw", file.display());
    Ok(rows.into_iter().map(|row| (row.bytes, row.busbw_gbps)).collect())
}

/// Draws the picture.
///
/// # Errors
/// Fails if a table can't be read.
pub(super) fn draw(data: &Path) -> anyhow::Result<String> {
    let mut lines = Vec::new();
    for node in NODES {
        let line = read(&data.join(table(node)))?;
        let end = line.last().map_or(0.0, |end| end.1);
        lines.push((format!("{node} {} GB/s", figures(end)), line));
    }
    let sizes = || lines.iter().flat_map(|(_, line)| line).map(|point| point.0);
    let labels: Vec<&str> = lines.iter().map(|(label, _)| label.as_str()).collect();
    let description = format!(
        "Four rising curves on logarithmic scales, from {} to {}. At the largest size: {}.",
        size_text(sizes().fold(f64::INFINITY, f64::min)),
        size_text(sizes().fold(0.0, f64::max)),
        labels.join(", ")
    );
    let chart = Lines {
        title: "Bus bandwidth of an all-reduce on eight GPUs",
        description: &description,
        sizes: "bytes in a rank's buffer",
        unit: "GB/s",
        note: "Times are modeled. Both scales are logarithmic: each horizontal line is ten times the one below.",
        logarithmic: true,
        lines,
    };
    Ok(chart.svg())
}

/// Formats a value with no decimals, or with three decimals if it is below 1.
fn figures(value: f64) -> String {
    if value < 1.0 { format!("{value:.3}") } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_short() {
        assert_eq!([figures(0.0476), figures(170.9)], ["0.048", "171"]);
    }
}
