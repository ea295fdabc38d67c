//! A timeline of several GPUs, or of several runs, to look at: in the terminal, in Perfetto, on a slide.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};
use svg::Document;
use svg::node::element::{Description, Group, Line, Rectangle, Text, Title};

use super::{Kind, Span};

/// One GPU's lines of a [`Chart`].
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it did. All rows of a chart tell their times since one moment.
    pub spans: Vec<Span>,
    /// Milliseconds by which all of its times may be off, compared to those of the other rows.
    pub uncertainty: f64,
}

/// What several GPUs did, or one GPU in several runs.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What was run.
    pub title: String,
    /// What stands below: above all whose the times are, see [`crate::tier::whose_times`].
    pub note: String,
    /// One for each GPU, or for each run.
    pub rows: Vec<Row>,
    /// What each row is called. A row that has no name here is that of a GPU, and called by its number: `GPU 0`, `GPU 1` and so on.
    pub names: Vec<String>,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Communication => "comm",
            Self::Copy => "copy",
        }
    }

    /// Colours that people tell apart who see few, and in print (Okabe and Ito), each with that of the text on it: the contrast is
    /// 5 at least (WCAG AA asks for 4.5).
    fn colours(self) -> (&'static str, &'static str) {
        match self {
            Self::Compute => ("#0072b2", "#ffffff"),
            Self::Communication => ("#e69f00", "#000000"),
            Self::Copy => ("#009e73", "#000000"),
        }
    }
}

/// Columns of a line's label in the terminal, if none is longer, and of its times.
const LABEL: usize = 15;
const COLUMNS: usize = 96;

/// Units of the SVG, a slide of 16:9.
const WIDTH: f64 = 1280.0;
/// Where the times begin, if no row's name is longer than that of a GPU.
const LEFT: f64 = 210.0;
/// Between a row's name and its lines, the widest of which is `compute`.
const LINE: f64 = 120.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 92.0;
const LANE: f64 = 40.0;
const GAP: f64 = 22.0;
const BELOW: f64 = 84.0;
const FONT: f64 = 22.0;
/// A letter's width of that font, roughly, as a part of its height; and of bold ones.
const LETTER: f64 = 0.55;
const BOLD: f64 = 0.6;
/// Milliseconds of the smallest uncertainty that is shown. What is below comes of the digits of an event's time.
const SMALLEST: f64 = 5e-5;

impl Chart {
    /// What a row is called.
    fn name(&self, row: usize) -> String {
        self.names.get(row).cloned().unwrap_or_else(|| format!("GPU {row}"))
    }

    /// Letters of the longest name of a row.
    fn longest_name(&self) -> usize {
        (0..self.rows.len()).map(|row| self.name(row).chars().count()).max().unwrap_or_default()
    }

    /// Lines of text, one for each row and kind of work.
    pub fn terminal(&self) -> String {
        let (first, last) = self.range();
        let label_width = LABEL.max(self.longest_name() + " compute ".len());
        let column = |time: f64| ((time - first) / (last - first) * COLUMNS as f64).round() as usize;
        let mut text = String::new();
        for (at, row) in self.rows.iter().enumerate() {
            for kind in self.kinds() {
                let mut line = vec![' '; COLUMNS];
                for span in row.spans.iter().filter(|span| span.kind == kind) {
                    let cells = column(span.start)..column(span.end);
                    for (cell, letter) in cells.clone().zip(bar(&span.name, cells.len())) {
                        line[cell] = letter;
                    }
                }
                let label = format!("{} {}", self.name(at), kind.name());
                let line: String = line.into_iter().collect();
                text += format!("{label:<label_width$}{line}").trim_end();
                text.push('\n');
            }
        }
        let end = format!("{:.2} ms", last - first);
        text + &format!("{:label_width$}0{end:>width$}\n", "", width = COLUMNS - 1)
    }

    /// JSON that <https://ui.perfetto.dev> and `chrome://tracing` open: a process for each row, a thread for each kind of work, times
    /// in microseconds ("Trace Event Format", complete events).
    pub fn perfetto(&self) -> String {
        let mut events = Vec::new();
        let (first, _) = self.range();
        for (at, row) in self.rows.iter().enumerate() {
            let process = format!("{}{}", self.name(at), plus_minus(row.uncertainty));
            events.push(json!({"ph": "M", "name": "process_name", "pid": at, "args": {"name": process}}));
            for kind in self.kinds() {
                events.push(json!({
                    "ph": "M", "name": "thread_name", "pid": at, "tid": kind as usize, "args": {"name": kind.name()},
                }));
            }
            events.extend(row.spans.iter().map(|span| -> Value {
                json!({
                    "ph": "X", "name": span.name, "cat": span.kind.name(), "pid": at, "tid": span.kind as usize,
                    "ts": 1e3 * (span.start - first), "dur": 1e3 * (span.end - span.start),
                })
            }));
        }
        json!({
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": {"title": self.title, "note": self.note},
        })
        .to_string()
    }

    /// A picture that needs no other file: for a slide, or for a browser. A span's name is its tool tip too. How far a row's times
    /// may be off is drawn at its end.
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
            .add(card.set("stroke", "#d9d9d9").set("stroke-width", 2))
            .add(text(20.0, 52.0, &self.title).set("font-size", 1.5 * FONT).set("font-weight", "bold"))
            .add(
                text(self.left(), bottom + 60.0, &format!("Milliseconds. {}", self.note))
                    .set("fill", "#555555"),
            )
            .add(self.axis(bottom));
        for (at, row) in self.rows.iter().enumerate() {
            document = document.add(self.row(at, row, TOP + row_height * at as f64));
        }
        document.to_string()
    }

    /// What the picture shows, for whoever doesn't see it: how long each row did what.
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

    /// Writes the trace of [`perfetto`](Self::perfetto) and the picture of [`svg`](Self::svg), each where a path is given.
    ///
    /// # Errors
    /// A file can't be written: with its path.
    pub fn write(&self, perfetto: Option<&Path>, svg: Option<&Path>) -> anyhow::Result<()> {
        let write = |path: &Path, text: String| {
            std::fs::write(path, text).with_context(|| format!("can't write {}", path.display()))
        };
        perfetto.map_or(Ok(()), |path| write(path, self.perfetto()))?;
        svg.map_or(Ok(()), |path| write(path, self.svg()))
    }

    /// The kinds of work that there is, in their order.
    fn kinds(&self) -> Vec<Kind> {
        let kinds: BTreeSet<Kind> =
            self.rows.iter().flat_map(|row| &row.spans).map(|span| span.kind).collect();
        kinds.into_iter().collect()
    }

    /// The first start, and the last end behind it.
    fn range(&self) -> (f64, f64) {
        let spans = || self.rows.iter().flat_map(|row| &row.spans);
        let first = spans().map(|span| span.start).fold(f64::INFINITY, f64::min);
        let last = spans().map(|span| span.end).fold(f64::NEG_INFINITY, f64::max);
        if first < last { (first, last) } else { (0.0, 1.0) }
    }

    /// Where the times begin in the picture.
    fn left(&self) -> f64 {
        LEFT.max((20.0 + self.longest_name() as f64 * BOLD * FONT + LINE).ceil())
    }

    /// Where a time is in the picture, to a tenth of a unit.
    fn x(&self, time: f64) -> f64 {
        let ((first, last), left) = (self.range(), self.left());
        tenths(left + (time - first) / (last - first) * (WIDTH - left - RIGHT))
    }

    fn axis(&self, bottom: f64) -> Group {
        let (first, last) = self.range();
        let step = step(last - first);
        let mut group = Group::new();
        for tick in 0..=((last - first) / step) as usize {
            let time = step * tick as f64;
            let x = self.x(first + time);
            // Binary fractions of the step leave a tail behind the last digit.
            let label = format!("{}", (time * 1e6).round() / 1e6);
            let line = Line::new().set("x1", x).set("x2", x).set("y1", TOP - 8.0).set("y2", bottom);
            group = group
                .add(line.set("stroke", "#dddddd"))
                .add(text(x, bottom + 26.0, &label).set("text-anchor", "middle"));
        }
        group
    }

    fn row(&self, at: usize, row: &Row, top: f64) -> Group {
        let kinds = self.kinds();
        let height = LANE * kinds.len() as f64;
        let mut group = Group::new()
            .add(text(20.0, top + height / 2.0, &self.name(at)).set("font-weight", "bold"))
            .add(text(20.0, top + height / 2.0 + FONT, &plus_minus(row.uncertainty)));
        for (lane, kind) in kinds.iter().enumerate() {
            let label = text(self.left() - 12.0, top + LANE * (lane as f64 + 0.5) + 6.0, kind.name());
            group = group.add(label.set("text-anchor", "end"));
        }
        for span in &row.spans {
            let lane = kinds.iter().position(|kind| *kind == span.kind).unwrap_or_default();
            let (x, y) = (self.x(span.start), top + LANE * lane as f64);
            let width = tenths(self.x(span.end) - x).max(1.0);
            let (fill, ink) = span.kind.colours();
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

/// A name between brackets, as wide as its span. What is too narrow for a name is a bar.
fn bar(name: &str, width: usize) -> Vec<char> {
    if width < 3 {
        return vec!['▌'; width];
    }
    let inside = name.chars().chain(std::iter::repeat('─')).take(width - 2);
    std::iter::once('[').chain(inside).chain(std::iter::once(']')).collect()
}

/// A span's name, or its last word, whichever goes into so many units.
fn fitting(name: &str, width: f64) -> Option<&str> {
    let fits = |word: &&str| word.chars().count() as f64 * LETTER * FONT < width;
    [name, name.rsplit(' ').next().unwrap_or(name)].into_iter().find(fits)
}

/// What is left of a fraction's tail would be noise in the file.
fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// ` ± 3.1 µs`, or nothing where a time is as it is.
fn plus_minus(milliseconds: f64) -> String {
    if milliseconds >= SMALLEST { format!(" ± {:.1} µs", 1e3 * milliseconds) } else { String::new() }
}

/// The distance of the axis' ticks: 1, 2 or 5 times a power of ten, so that there are 5 to 12 of them.
fn step(range: f64) -> f64 {
    let power = 10.0_f64.powf((range / 10.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|step| range / step <= 12.0)
        .unwrap_or(range)
}

fn text(x: f64, y: f64, content: &str) -> Text {
    Text::new(content).set("x", x).set("y", y)
}

fn rectangle(x: f64, y: f64, width: f64, height: f64) -> Rectangle {
    Rectangle::new().set("x", x).set("y", y).set("width", width).set("height", height)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let span = |kind, name: &str, start, end| Span { kind, name: name.to_owned(), start, end };
        let row = |shift, uncertainty| Row {
            spans: vec![
                span(Kind::Compute, "pre <0>", 5.0 + shift, 7.0 + shift),
                span(Kind::Communication, "sum 0", 7.0 + shift, 9.0 + shift),
                span(Kind::Compute, "pre 1", 7.0 + shift, 9.0),
            ],
            uncertainty,
        };
        Chart {
            title: "Two & two".to_owned(),
            note: "modelled".to_owned(),
            rows: vec![row(0.0, 0.0), row(1.0, 0.25)],
            names: vec![],
        }
    }

    #[test]
    fn lines_of_text_show_what_is_beside_what() {
        let text = chart().terminal();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[0].starts_with("GPU 0 compute  [pre <0>──"), "{text}");
        // 2 of 5 milliseconds.
        assert_eq!(lines[1].find('[').unwrap(), LABEL + 38);
        assert!(lines[4].ends_with("5.00 ms"), "{text}");
    }

    #[test]
    fn a_trace_has_every_span_on_its_line_in_microseconds() {
        let trace: Value = serde_json::from_str(&chart().perfetto()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let spans: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!(spans.len(), 6);
        assert_eq!((spans[0]["ts"].as_f64(), spans[0]["dur"].as_f64()), (Some(0.0), Some(2000.0)));
        assert_eq!((spans[4]["pid"].as_u64(), spans[4]["tid"].as_u64()), (Some(1), Some(1)));
        assert!(events.iter().any(|event| event["args"]["name"] == "GPU 1 ± 250.0 µs"));
    }

    #[test]
    fn a_picture_has_every_span_and_escapes_its_name() {
        let picture = chart().svg();
        assert_eq!(picture.matches("<title>").count(), 7, "the picture's own, and each span's");
        assert!(
            picture.contains(r#"role="img""#)
                && picture.contains("GPU 1, comm: 2.00 ms between 3.00 and 5.00.")
        );
        assert!(picture.contains("Two &amp; two") && picture.contains("pre &lt;0&gt;"), "{picture}");
        assert!(
            !picture.contains("http://") || picture.matches("http://").count() == 1,
            "only its own name space"
        );
        assert_eq!(picture.matches("#cc0000").count(), 1, "one row's times are uncertain");
        assert_eq!((plus_minus(4e-5), plus_minus(6e-5)), (String::new(), " ± 0.1 µs".to_owned()));
    }

    #[test]
    fn a_name_stands_wherever_its_row_does() {
        let chart = Chart { names: vec!["at the very end".to_owned()], ..chart() };
        let (text, trace, picture) = (chart.terminal(), chart.perfetto(), chart.svg());
        assert!(
            text.starts_with("at the very end compute [pre <0>──") && text.contains("\nGPU 1 compute"),
            "{text}"
        );
        assert!(trace.contains("\"at the very end\"") && trace.contains("GPU 1 ± 250.0 µs"), "{trace}");
        assert!(picture.contains("at the very end, comm: 2.00 ms between 2.00 and 4.00."), "{picture}");
        assert!(chart.left() > LEFT + 100.0 && chart.x(5.0) == chart.left(), "{}", chart.left());
    }

    #[test]
    fn a_narrow_bar_has_the_last_word_of_its_name() {
        assert_eq!(fitting("back 8", 80.0), Some("back 8"));
        assert_eq!(fitting("back 8", 30.0), Some("8"));
        assert_eq!(fitting("back 8", 5.0), None);
    }

    #[test]
    fn an_empty_chart_is_drawn_too() {
        let empty = Chart {
            title: String::new(),
            note: String::new(),
            rows: vec![Row { spans: vec![], uncertainty: 0.0 }],
            names: vec![],
        };
        assert!(empty.svg().contains("Milliseconds") && empty.terminal().contains("1.00 ms"));
        assert!(empty.perfetto().contains("GPU 0"));
    }

    #[test]
    fn ticks_are_few_and_round() {
        for range in [0.004, 0.9, 1.0, 7.3, 24.0, 60.0, 100.0, 4321.0] {
            let count = range / step(range);
            assert!((4.0..=12.0).contains(&count), "{range}: {count}");
        }
    }
}
