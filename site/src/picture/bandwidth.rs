//! The bus bandwidth of an all-reduce over its size, on four nodes.

use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;
use svg::node::element::{Circle, Group, Polygon, Polyline};

use super::card::{
    BLUE, Card, FAINT, GREEN, INK, MARGIN, SOFT, VERMILION, centred, ending, line, points, rectangle, round,
    text,
};

/// The nodes, by the virtual GPU's names.
pub(super) const NODES: [&str; 4] = ["dgx-h100", "dgx-a100", "pcie", "classroom"];
/// The colours of their lines, whose points differ too.
const COLOURS: [&str; 4] = [BLUE, VERMILION, GREEN, INK];

/// The file of a node's table.
pub(super) fn table(node: &str) -> String {
    format!("bandwidth-{node}.csv")
}

/// A line of the table that module 02's program writes: bytes, and GB/s.
#[derive(Deserialize)]
struct Row {
    bytes: f64,
    busbw_gbps: f64,
}

fn read(file: &Path) -> anyhow::Result<Vec<Row>> {
    let name = || format!("can't read {}", file.display());
    let rows: Vec<Row> = csv::Reader::from_path(file)
        .with_context(name)?
        .deserialize()
        .collect::<Result<_, _>>()
        .with_context(name)?;
    let are_positive = rows.iter().all(|row| row.bytes > 0.0 && row.busbw_gbps > 0.0);
    ensure!(rows.len() > 1 && are_positive, "{} has no line to draw", file.display());
    Ok(rows)
}

const LEFT: f64 = 130.0;
const RIGHT: f64 = 890.0;
const TOP: f64 = 126.0;
const BOTTOM: f64 = 440.0;
/// Labels at the ends of lines are this far apart at least.
const APART: f64 = 30.0;

/// Where values are: both scales are logarithmic.
struct Scale {
    bytes: (f64, f64),
    bandwidth: (f64, f64),
}

impl Scale {
    fn x(&self, bytes: f64) -> f64 {
        LEFT + (bytes / self.bytes.0).ln() / (self.bytes.1 / self.bytes.0).ln() * (RIGHT - LEFT)
    }

    fn y(&self, bandwidth: f64) -> f64 {
        let part = (bandwidth / self.bandwidth.0).ln() / (self.bandwidth.1 / self.bandwidth.0).ln();
        BOTTOM - part * (BOTTOM - TOP)
    }
}

/// The picture.
///
/// # Errors
/// A table can't be read.
pub(super) fn draw(data: &Path) -> anyhow::Result<String> {
    let lines: Vec<Vec<Row>> =
        NODES.iter().map(|node| read(&data.join(table(node)))).collect::<anyhow::Result<_>>()?;
    let extremes = |of: fn(&Row) -> f64| {
        let values = || lines.iter().flatten().map(of);
        (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max))
    };
    let (least, most) = extremes(|row| row.busbw_gbps);
    let decades = least.log10().floor() as i32..=most.log10().ceil() as i32;
    let scale = Scale {
        bytes: extremes(|row| row.bytes),
        bandwidth: (10.0_f64.powi(*decades.start()), 10.0_f64.powi(*decades.end())),
    };
    let ends: Vec<(&str, &Row)> =
        NODES.into_iter().zip(&lines).filter_map(|(node, line)| Some((node, line.last()?))).collect();
    let said: Vec<String> =
        ends.iter().map(|(node, end)| format!("{node} {} GB/s", figures(end.busbw_gbps))).collect();
    let description = format!(
        "Four rising curves on logarithmic scales, from {} to {}. At the largest size: {}.",
        size(scale.bytes.0),
        size(scale.bytes.1),
        said.join(", ")
    );
    let mut card = Card::new("Bus bandwidth of an all-reduce on eight GPUs", &description, BOTTOM + 130.0)
        .large()
        .add(ending(LEFT - 14.0, TOP - 24.0, "GB/s").set("fill", SOFT))
        .add(centred(f64::midpoint(LEFT, RIGHT), BOTTOM + 68.0, "bytes of a rank's buffer").set("fill", SOFT))
        .add(
            text(
                MARGIN,
                BOTTOM + 108.0,
                "Times are modelled. Both scales are logarithmic: a line up is ten times as much.",
            )
            .set("fill", SOFT),
        );
    for decade in decades {
        let value = 10.0_f64.powi(decade);
        let y = scale.y(value);
        card = card
            .add(line((LEFT, y), (RIGHT, y)).set("stroke", FAINT).set("stroke-width", 1.5))
            .add(ending(LEFT - 14.0, y + 6.0, format!("{value}")));
    }
    for row in lines.iter().flatten().take(lines[0].len()) {
        let x = scale.x(row.bytes);
        card = card.add(line((x, BOTTOM), (x, BOTTOM + 8.0)).set("stroke", INK)).add(centred(
            x,
            BOTTOM + 34.0,
            size(row.bytes),
        ));
    }
    card = card.add(line((LEFT, BOTTOM), (RIGHT, BOTTOM)).set("stroke", INK).set("stroke-width", 1.5));
    let heights = spread(ends.iter().map(|(_, end)| scale.y(end.busbw_gbps)).collect());
    for (index, ((rows, said), height)) in lines.iter().zip(&said).zip(heights).enumerate() {
        let places: Vec<(f64, f64)> =
            rows.iter().map(|row| (scale.x(row.bytes), scale.y(row.busbw_gbps))).collect();
        let curve = Polyline::new().set("points", points(&places)).set("fill", "none");
        card = card.add(curve.set("stroke", COLOURS[index]).set("stroke-width", 4));
        for &place in &places {
            card = card.add(mark(index, place));
        }
        card = card.add(text(RIGHT + 22.0, height + 6.0, said).set("font-weight", "bold"));
    }
    Ok(card.svg())
}

/// Heights from above to below, moved down where one is too near to that before it.
fn spread(mut heights: Vec<f64>) -> Vec<f64> {
    for index in 1..heights.len() {
        heights[index] = heights[index].max(heights[index - 1] + APART);
    }
    heights
}

/// A point of a line: a disc, a square, a triangle or a diamond.
fn mark(index: usize, (x, y): (f64, f64)) -> Group {
    let group = Group::new().set("fill", COLOURS[index]);
    match index {
        0 => group.add(Circle::new().set("cx", round(x)).set("cy", round(y)).set("r", 8)),
        1 => group.add(rectangle(x - 7.5, y - 7.5, 15.0, 15.0)),
        2 => group.add(
            Polygon::new().set("points", points(&[(x, y - 10.0), (x + 9.0, y + 7.0), (x - 9.0, y + 7.0)])),
        ),
        _ => {
            let corners = [(x, y - 10.0), (x + 10.0, y), (x, y + 10.0), (x - 10.0, y)];
            group.add(Polygon::new().set("points", points(&corners)))
        }
    }
}

/// Three digits of a value, or two of a small one.
fn figures(value: f64) -> String {
    if value < 1.0 { format!("{value:.3}") } else { format!("{value:.0}") }
}

/// `64 KiB` of 65,536.
fn size(bytes: f64) -> String {
    let kib = bytes / 1024.0;
    if kib < 1024.0 { format!("{kib:.0} KiB") } else { format!("{:.0} MiB", kib / 1024.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_do_not_touch() {
        assert_eq!(spread(vec![10.0, 12.0, 200.0]), [10.0, 40.0, 200.0]);
    }

    #[test]
    fn equal_factors_are_equal_distances() {
        let scale = Scale { bytes: (1024.0, 4096.0), bandwidth: (0.01, 100.0) };
        assert!((scale.x(2048.0) - f64::midpoint(LEFT, RIGHT)).abs() < 1e-9);
        assert!((scale.y(1.0) - f64::midpoint(TOP, BOTTOM)).abs() < 1e-9);
    }

    #[test]
    fn sizes_and_bandwidths_are_short() {
        assert_eq!([size(1024.0), size(4_194_304.0)], ["1 KiB", "4 MiB"]);
        assert_eq!([figures(0.0476), figures(170.9)], ["0.048", "171"]);
    }
}
