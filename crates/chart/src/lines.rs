//! Line charts over sizes in bytes, with a logarithmic horizontal scale.

use svg::node::element::{Circle, Group, Polygon, Polyline};

use crate::card::{
    BLUE, Card, FAINT, GREEN, INK, MARGIN, ORANGE, PINK, SKY, SOFT, VERMILION, centered, ending, line,
    points, rectangle, round, text,
};

/// The colors of the lines. The shapes of their points differ too.
pub const COLORS: [&str; 7] = [BLUE, VERMILION, GREEN, INK, ORANGE, PINK, SKY];

/// A chart's data and labels.
pub struct Lines<'t> {
    /// The card's title.
    pub title: &'t str,
    /// A description of the picture for readers who can't see it.
    pub description: &'t str,
    /// The quantity on the horizontal scale.
    pub sizes: &'t str,
    /// The unit of the values.
    pub unit: &'t str,
    /// A note below the chart.
    pub note: &'t str,
    /// Whether the vertical scale is logarithmic too. All values must then be positive.
    pub logarithmic: bool,
    /// The lines, each with the label at its end.
    pub lines: Vec<(String, Vec<Point>)>,
}

/// A size in bytes, and a value.
pub type Point = (f64, f64);

const LEFT: f64 = 130.0;
const RIGHT: f64 = 890.0;
const TOP: f64 = 126.0;
const BOTTOM: f64 = 440.0;
/// The minimum distance between labels at the ends of lines.
const APART: f64 = 30.0;
/// The minimum distance between labels of sizes.
const SIZES_APART: f64 = 100.0;

impl Lines<'_> {
    /// Returns the picture as the text of an SVG file.
    pub fn svg(&self) -> String {
        let scale = Scale::new(self);
        let note = text(MARGIN, BOTTOM + 108.0, self.note).set("fill", SOFT);
        let sizes = centered(f64::midpoint(LEFT, RIGHT), BOTTOM + 68.0, self.sizes).set("fill", SOFT);
        let mut card = Card::new(self.title, self.description, BOTTOM + 130.0)
            .large()
            .add(ending(LEFT - 14.0, TOP - 24.0, self.unit).set("fill", SOFT))
            .add(sizes)
            .add(note);
        for value in scale.ticks() {
            let y = scale.y(value);
            card = card
                .add(line((LEFT, y), (RIGHT, y)).set("stroke", FAINT).set("stroke-width", 1.5))
                .add(ending(LEFT - 14.0, y + 6.0, format!("{value}")));
        }
        for size in self.labeled_sizes(&scale) {
            let x = scale.x(size);
            let tick = line((x, BOTTOM), (x, BOTTOM + 8.0)).set("stroke", INK);
            card = card.add(tick).add(centered(x, BOTTOM + 34.0, size_text(size)));
        }
        card = card.add(line((LEFT, BOTTOM), (RIGHT, BOTTOM)).set("stroke", INK).set("stroke-width", 1.5));
        let ends = self.lines.iter().map(|(_, line)| line.last().map_or(BOTTOM, |end| scale.y(end.1)));
        let heights = spread(ends.collect());
        for (index, ((label, line), height)) in self.lines.iter().zip(heights).enumerate() {
            let places: Vec<Point> = line.iter().map(|point| (scale.x(point.0), scale.y(point.1))).collect();
            let curve = Polyline::new().set("points", points(&places)).set("fill", "none");
            card = card.add(curve.set("stroke", color(index)).set("stroke-width", 4));
            for &place in &places {
                card = card.add(mark(index, place));
            }
            card = card.add(text(RIGHT + 22.0, height + 6.0, label).set("font-weight", "bold"));
        }
        card.svg()
    }

    /// Returns those sizes from the first line whose labels have room.
    fn labeled_sizes(&self, scale: &Scale) -> Vec<f64> {
        let sizes = self.lines.first().into_iter().flat_map(|(_, line)| line).map(|point| point.0);
        let mut labeled: Vec<f64> = Vec::new();
        for size in sizes {
            if labeled.last().is_none_or(|&last| scale.x(size) - scale.x(last) >= SIZES_APART) {
                labeled.push(size);
            }
        }
        labeled
    }
}

/// Maps sizes and values to positions.
struct Scale {
    sizes: (f64, f64),
    values: (f64, f64),
    logarithmic: bool,
}

impl Scale {
    fn new(chart: &Lines<'_>) -> Self {
        let points = || chart.lines.iter().flat_map(|(_, line)| line);
        let range = |of: fn(&Point) -> f64| {
            (points().map(of).fold(f64::INFINITY, f64::min), points().map(of).fold(0.0, f64::max))
        };
        let (sizes, (least, most)) = (range(|point| point.0), range(|point| point.1));
        let values = match chart.logarithmic {
            true => (10.0_f64.powf(least.log10().floor()), 10.0_f64.powf(most.log10().ceil())),
            false => (0.0, if most > 0.0 { most } else { 1.0 }),
        };
        let sizes = if sizes.1 > sizes.0 { sizes } else { (sizes.0, 2.0 * sizes.0) };
        Self { sizes, values, logarithmic: chart.logarithmic }
    }

    fn x(&self, size: f64) -> f64 {
        LEFT + (size / self.sizes.0).ln() / (self.sizes.1 / self.sizes.0).ln() * (RIGHT - LEFT)
    }

    fn y(&self, value: f64) -> f64 {
        let (least, most) = self.values;
        let part = match self.logarithmic {
            true => (value / least).ln() / (most / least).ln(),
            false => (value - least) / (most - least),
        };
        BOTTOM - part * (BOTTOM - TOP)
    }

    /// Returns the values that get a grid line: powers of ten, or round numbers starting at 0.
    fn ticks(&self) -> Vec<f64> {
        let (least, most) = self.values;
        if self.logarithmic {
            let decades = least.log10().round() as i32..=most.log10().round() as i32;
            return decades.map(|decade| 10.0_f64.powi(decade)).collect();
        }
        ticks(most)
    }
}

/// Returns round numbers from 0 to `range` as the ticks of an axis.
pub fn ticks(range: f64) -> Vec<f64> {
    let step = step(range);
    // Rounding removes the error in steps that have no exact binary representation.
    (0..=(range / step) as u32).map(|tick| (step * f64::from(tick) * 1e6).round() / 1e6).collect()
}

/// Returns the distance between an axis's ticks: 1, 2, or 5 times a power of ten, for 5 to 12 ticks.
fn step(range: f64) -> f64 {
    let power = 10.0_f64.powf((range / 10.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power);
    steps.into_iter().find(|step| range / step <= 12.0).unwrap_or(range)
}

/// Moves a label down if it is too close to the label above it.
fn spread(mut heights: Vec<f64>) -> Vec<f64> {
    let mut order: Vec<usize> = (0..heights.len()).collect();
    order.sort_by(|&one, &other| heights[one].total_cmp(&heights[other]));
    for pair in order.windows(2) {
        heights[pair[1]] = heights[pair[1]].max(heights[pair[0]] + APART);
    }
    heights
}

fn color(index: usize) -> &'static str {
    COLORS[index % COLORS.len()]
}

/// Draws a point on a line: a disc, a square, a triangle, or a diamond.
fn mark(index: usize, (x, y): Point) -> Group {
    let group = Group::new().set("fill", color(index));
    match index % 4 {
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

/// Formats a size in binary units: `64 KiB` for 65,536.
pub fn size_text(bytes: f64) -> String {
    let kib = bytes / 1024.0;
    match kib {
        kib if kib < 1.0 => format!("{bytes:.0} B"),
        kib if kib < 1024.0 => format!("{kib:.0} KiB"),
        kib => format!("{:.0} MiB", kib / 1024.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(logarithmic: bool, lines: &[&[Point]]) -> Lines<'static> {
        let lines = lines.iter().map(|line| ("a & b".to_owned(), line.to_vec())).collect();
        Lines { title: "t", description: "d", sizes: "bytes", unit: "GB/s", note: "n", logarithmic, lines }
    }

    #[test]
    fn labels_do_not_touch() {
        assert_eq!(spread(vec![10.0, 12.0, 200.0]), [10.0, 40.0, 200.0]);
        assert_eq!(spread(vec![12.0, 10.0]), [40.0, 10.0]);
    }

    #[test]
    fn equal_factors_have_equal_distances() {
        let scale = Scale { sizes: (1024.0, 4096.0), values: (0.01, 100.0), logarithmic: true };
        assert!((scale.x(2048.0) - f64::midpoint(LEFT, RIGHT)).abs() < 1e-9);
        assert!((scale.y(1.0) - f64::midpoint(TOP, BOTTOM)).abs() < 1e-9);
        let scale = Scale { values: (0.0, 8.0), logarithmic: false, ..scale };
        assert!((scale.y(4.0) - f64::midpoint(TOP, BOTTOM)).abs() < 1e-9);
    }

    #[test]
    fn a_single_point_and_no_bandwidth_are_drawn_too() {
        for chart in [chart(false, &[&[(8.0, 0.0)]]), chart(true, &[&[(8.0, 3.0)]]), chart(false, &[])] {
            let picture = chart.svg();
            assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        }
    }

    #[test]
    fn sizes_have_room_for_their_labels() {
        let points: Vec<Point> = (0..24).map(|power| (f64::from(1 << power), 1.0)).collect();
        let chart = chart(false, &[&points]);
        let picture = chart.svg();
        assert!(
            picture.matches("iB</text>").count() + picture.matches(" B</text>").count() <= 8,
            "{picture}"
        );
        assert!(picture.contains("a &amp; b"), "{picture}");
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!([8.0, 1024.0, 4_194_304.0].map(size_text), ["8 B", "1 KiB", "4 MiB"]);
    }

    #[test]
    fn ticks_are_few_and_round() {
        for range in [0.004, 0.9, 1.0, 7.3, 24.0, 60.0, 100.0, 4321.0] {
            let count = range / step(range);
            assert!((4.0..=12.0).contains(&count), "{range}: {count}");
        }
    }
}
