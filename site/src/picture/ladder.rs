//! A bar chart of the ladder: how long a step takes with each of four implementations.

use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;
use svg::node::element::Group;

use super::WAYS;
use chart::card::{
    BLUE, Card, GREEN, INK, LARGE, MARGIN, ORANGE, SKY, SOFT, ending, ink_on, line, rectangle, text,
};

/// A line of the table that module 05's program writes.
#[derive(Deserialize)]
struct Row {
    implementation: String,
    model_size: String,
    d_model: u32,
    num_layers: u32,
    world_size: u32,
    calls_per_step: u32,
    avg_step_time_ms: f64,
    speedup_vs_naive: f64,
}

/// The colors of the implementations, whose names are shown next to the bars.
const COLORS: [&str; 4] = [ORANGE, SKY, BLUE, GREEN];

const LEFT: f64 = 170.0;
const RIGHT: f64 = 790.0;
const TOP: f64 = 72.0;
const BAR: f64 = 29.0;
/// The height of a network's name and bars together.
const GROUP: f64 = HEAD + BAR * WAYS.len() as f64 + 10.0;
/// The height of the name alone.
const HEAD: f64 = 32.0;

/// Draws the picture.
///
/// # Errors
/// Fails if the table can't be read, or if an implementation is missing.
pub(super) fn draw(data: &Path) -> anyhow::Result<String> {
    let file = data.join("ladder.csv");
    let name = || format!("can't read {}", file.display());
    let rows: Vec<Row> = csv::Reader::from_path(&file)
        .with_context(name)?
        .deserialize()
        .collect::<Result<_, _>>()
        .with_context(name)?;
    let groups: Vec<&[Row]> = rows.chunk_by(|one, other| one.model_size == other.model_size).collect();
    let are_whole = groups.iter().all(|group| group.iter().map(|row| row.implementation.as_str()).eq(WAYS));
    ensure!(!rows.is_empty() && are_whole, "{} must have {} for each size", file.display(), WAYS.join(", "));
    let longest = rows.iter().map(|row| row.avg_step_time_ms).fold(0.0, f64::max);
    let said: Vec<String> = groups
        .iter()
        .map(|group| {
            let times: Vec<String> = group
                .iter()
                .map(|row| format!("{} {:.1} ms", row.implementation, row.avg_step_time_ms))
                .collect();
            format!("{}: {}", group[0].model_size, times.join(", "))
        })
        .collect();
    let title = format!("A training step in four ways, on {} GPUs", rows[0].world_size);
    let bottom = TOP + GROUP * groups.len() as f64;
    let mut card =
        Card::new(&title, &format!("Bars show the time for one step. {}.", said.join(". ")), bottom + 56.0)
            .large();
    for (index, group) in groups.iter().enumerate() {
        card = card.add(bars(group, longest, TOP + GROUP * index as f64));
    }
    let note = "Times are modeled for the classroom node and compared with naive. Calls are NCCL calls.";
    Ok(card.add(text(MARGIN, bottom + 28.0, note).set("fill", SOFT)).svg())
}

/// Draws the bars of one network.
fn bars(rows: &[Row], longest: f64, y: f64) -> Group {
    let Row { model_size, d_model, num_layers, .. } = &rows[0];
    let mut group = Group::new().add(text(LEFT, y + 24.0, model_size).set("font-weight", "bold")).add(
        text(LEFT + 125.0, y + 24.0, format!("{num_layers} layers of width {d_model}")).set("fill", SOFT),
    );
    let top = y + HEAD;
    for (index, (row, color)) in rows.iter().zip(COLORS).enumerate() {
        let y = top + BAR * index as f64;
        let base = y + BAR / 2.0 + 0.36 * LARGE;
        let width = row.avg_step_time_ms / longest * (RIGHT - LEFT);
        let calls = match row.calls_per_step {
            1 => "1 call".to_owned(),
            calls => format!("{calls} calls"),
        };
        let figures = format!("{:.1} ms", row.avg_step_time_ms);
        group = group
            .add(ending(LEFT - 14.0, base, &row.implementation))
            .add(rectangle(LEFT, y + 1.5, width, BAR - 3.0).set("fill", color).set("stroke", INK))
            .add(text(LEFT + 12.0, base, calls).set("fill", ink_on(color)))
            .add(text(LEFT + width + 14.0, base, figures).set("font-weight", "bold"));
        if index > 0 {
            let speedup = format!("{:.2} times as fast", row.speedup_vs_naive);
            group = group.add(text(LEFT + width + 150.0, base, speedup));
        }
    }
    let end = top + BAR * rows.len() as f64;
    group.add(line((LEFT, top - 4.0), (LEFT, end + 4.0)).set("stroke", INK).set("stroke-width", 2))
}
