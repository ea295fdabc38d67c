//! Draws a timeline as SVG.

use chart::card::{BLUE, FAINT, GREEN, ORANGE, SOFT, rectangle, text};
use chart::lines::ticks;
use svg::Document;
use svg::node::element::{Description, Group, Line, Title};

use super::{Chart, Row, SMALLEST, plus_minus};
use crate::timeline::Kind;

/// The width of the SVG, which is the width of a 16:9 slide.
const WIDTH: f64 = 1280.0;
/// The left end of the time axis, if no row's name is longer than a GPU's name.
const LEFT: f64 = 225.0;
/// The space between a row's name and its bars, for labels up to the width of `compute`.
const LINE: f64 = 120.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 92.0;
const LANE: f64 = 40.0;
const GAP: f64 = 22.0;
const BELOW: f64 = 84.0;
const FONT: f64 = 22.0;
/// The approximate width of a letter, as a fraction of the font's height.
const LETTER: f64 = 0.55;
/// The same factor for a bold letter.
const BOLD: f64 = 0.6;

impl Kind {
    /// Returns a fill color and its text color. The fills by Okabe and Ito are distinguishable in print and by
    /// color-blind readers. The contrast is at least 5 (WCAG AA requires 4.5).
    fn colors(self) -> (&'static str, &'static str) {
        match self {
            Self::Compute => (BLUE, "#ffffff"),
            Self::Communication => (ORANGE, "#000000"),
            Self::Copy => (GREEN, "#000000"),
        }
    }
}

impl Chart {
    /// Returns a self-contained picture for a slide or a browser. Each span has its name as a tooltip. A bar at the end
    /// of a row shows the uncertainty of its times.
    pub fn svg(&self) -> String {
        let kinds = self.kinds();
        let row_height = LANE * kinds.len() as f64 + GAP;
        let bottom = TOP + row_height * self.rows.len() as f64;
        let card =
            rectangle(1.0, 1.0, WIDTH - 2.0, bottom + BELOW - 2.0).set("rx", 16).set("fill", "#ffffff");
        let mut document = Document::new()
            .set("viewBox", (0, 0, WIDTH, bottom + BELOW))
            .set("role", "img")
            .set("font-family", "Helvetica, Arial, sans-serif")
            .set("font-size", FONT)
            .add(Title::new(&self.title))
            .add(Description::new().add(svg::node::Text::new(self.description())))
            .add(card.set("stroke", FAINT).set("stroke-width", 2))
            .add(text(20.0, 52.0, &self.title[..]).set("font-size", 1.5 * FONT).set("font-weight", "bold"))
            .add(text(20.0, bottom + 60.0, format!("Milliseconds. {}", self.note)).set("fill", SOFT))
            .add(self.axis(bottom));
        for (at, row) in self.rows.iter().enumerate() {
            document = document.add(self.row(at, row, TOP + row_height * at as f64));
        }
        document.to_string()
    }

    /// Describes the picture for readers who can't see it: what each row did, and for how long.
    fn description(&self) -> String {
        let (first, last) = self.range();
        let mut text = format!("{:.2} milliseconds.", last - first);
        for (at, row) in self.rows.iter().enumerate() {
            for kind in self.kinds() {
                let spans = || row.spans.iter().filter(|span| span.kind == kind);
                let busy: f64 = spans().map(|span| span.end - span.start).sum();
                let (start, end) = spans().fold((f64::INFINITY, first), |(start, end), span| {
                    (span.start.min(start), span.end.max(end))
                });
                let from = start.min(end) - first;
                let to = end - first;
                let (name, kind) = (self.name(at), kind.name());
                text += &format!(" {name}, {kind}: {busy:.2} ms between {from:.2} and {to:.2}.");
            }
        }
        text
    }

    /// Returns the left end of the time axis in the picture.
    fn left(&self) -> f64 {
        LEFT.max((20.0 + self.longest_name() as f64 * BOLD * FONT + LINE).ceil())
    }

    /// Returns the horizontal position of a time, to a tenth of a unit.
    fn x(&self, time: f64) -> f64 {
        let ((first, last), left) = (self.range(), self.left());
        tenths(left + (time - first) / (last - first) * (WIDTH - left - RIGHT))
    }

    fn axis(&self, bottom: f64) -> Group {
        let (first, last) = self.range();
        let mut group = Group::new();
        for time in ticks(last - first) {
            let x = self.x(first + time);
            let line = Line::new().set("x1", x).set("x2", x).set("y1", TOP - 8.0).set("y2", bottom);
            group = group
                .add(line.set("stroke", "#dddddd"))
                .add(text(x, bottom + 26.0, format!("{time}")).set("text-anchor", "middle"));
        }
        group
    }

    fn row(&self, at: usize, row: &Row, top: f64) -> Group {
        let kinds = self.kinds();
        let height = LANE * kinds.len() as f64;
        let mut group = Group::new()
            .add(text(20.0, top + height / 2.0, self.name(at)).set("font-weight", "bold"))
            .add(text(20.0, top + height / 2.0 + FONT, plus_minus(row.uncertainty)));
        for (lane, kind) in kinds.iter().enumerate() {
            let label = text(self.left() - 12.0, top + LANE * (lane as f64 + 0.5) + 6.0, kind.name());
            group = group.add(label.set("text-anchor", "end"));
        }
        for span in &row.spans {
            let lane = kinds.iter().position(|kind| *kind == span.kind).unwrap_or_default();
            let (x, y) = (self.x(span.start), top + LANE * lane as f64);
            let width = tenths(self.x(span.end) - x).max(1.0);
            let (fill, ink) = span.kind.colors();
            let tip = format!("{}: {:.3} ms from {:.3}", span.name, span.end - span.start, span.start);
            group = group.add(
                rectangle(x, y + 2.0, width, LANE - 4.0)
                    .set("fill", fill)
                    .set("stroke", "#000000")
                    .set("stroke-opacity", 0.6)
                    .set("rx", 3)
                    .add(Title::new(tip)),
            );
            if let Some(name) = fitting(&span.name, width) {
                let middle = text(tenths(x + width / 2.0), y + LANE / 2.0 + 7.0, name);
                group = group.add(middle.set("fill", ink).set("text-anchor", "middle"));
            }
        }
        if row.uncertainty >= SMALLEST
            && let Some(end) = row.spans.iter().map(|span| span.end).reduce(f64::max)
        {
            let y = top + height + GAP / 3.0;
            let (x1, x2) = (self.x(end - row.uncertainty), self.x(end + row.uncertainty));
            let bar = Line::new().set("x1", x1).set("x2", x2.max(x1 + 1.0)).set("y1", y).set("y2", y);
            group = group.add(bar.set("stroke", "#cc0000").set("stroke-width", 4));
        }
        group
    }
}

/// Returns a span's name or its last word, whichever fits a width. Returns `None` if neither fits.
fn fitting(name: &str, width: f64) -> Option<&str> {
    let fits = |word: &&str| word.chars().count() as f64 * LETTER * FONT < width;
    [name, name.rsplit(' ').next().unwrap_or(name)].into_iter().find(fits)
}

/// Rounds to tenths, because more digits would only add noise to the file.
fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::super::tests::chart;
    use super::*;

    #[test]
    fn a_picture_has_every_span_and_escapes_its_name() {
        let picture = chart().svg();
        assert_eq!(picture.matches("<title>").count(), 7, "one for the picture and one for each span");
        assert!(
            picture.contains(r#"role="img""#)
                && picture.contains("GPU 1, comm: 2.00 ms between 3.00 and 5.00.")
        );
        assert!(picture.contains("Two &amp; two") && picture.contains("pre &lt;0&gt;"), "{picture}");
        assert!(
            !picture.contains("http://") || picture.matches("http://").count() == 1,
            "its own namespace is the only URL"
        );
        assert_eq!(picture.matches("#cc0000").count(), 1, "one row's times are uncertain");
        assert_eq!((plus_minus(4e-5), plus_minus(6e-5)), (String::new(), " ± 0.1 µs".to_owned()));
    }

    #[test]
    fn a_narrow_bar_shows_the_last_word_of_its_name() {
        assert_eq!(fitting("back 8", 80.0), Some("back 8"));
        assert_eq!(fitting("back 8", 30.0), Some("8"));
        assert_eq!(fitting("back 8", 5.0), None);
    }

    #[test]
    fn a_long_name_moves_the_times() {
        let chart = Chart { names: vec!["at the very end".to_owned()], ..chart() };
        assert!(chart.left() > LEFT + 100.0 && chart.x(5.0) == chart.left(), "{}", chart.left());
    }
}
