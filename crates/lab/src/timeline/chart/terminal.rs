//! Draws a timeline as lines of text.

use super::Chart;
use crate::timeline::overlap::at_once;
use crate::timeline::{Kind, Overlap, Span};

/// The minimum width of a line's label.
const LABEL: usize = 15;
/// The width of a line's times.
const COLUMNS: usize = 96;
/// The minimum width of the times; with fewer columns, a chart would be useless.
const FEWEST: usize = 16;
/// Marks work that is too short for a cell.
const THIN: char = '▏';

impl Chart {
    /// Returns lines of text, one for each row and kind of work.
    pub fn terminal(&self) -> String {
        let label_width = LABEL.max(self.longest_name() + " compute ".len());
        let mut text = String::new();
        for (at, row) in self.rows.iter().enumerate() {
            for kind in self.kinds() {
                let spans = row.spans.iter().filter(|span| span.kind == kind);
                text += &self.line(&self.label(at, kind), label_width, spans, (COLUMNS, None));
            }
        }
        text + &self.scale(label_width, COLUMNS)
    }

    /// Returns one GPU's chart for a terminal, with at most `lines` lines of at most `columns` columns. The streams
    /// come first. The lines below them show how much work was hidden and exposed, and whether the times are measured
    /// or modeled. Returns an empty string if the terminal is too small.
    pub fn summary(&self, columns: usize, lines: usize) -> String {
        let all: Vec<(usize, Kind)> = (0..self.rows.len())
            .flat_map(|at| self.kinds().into_iter().map(move |kind| (at, kind)))
            .filter(|(at, kind)| self.rows[*at].spans.iter().any(|span| span.kind == *kind))
            .collect();
        let labels: Vec<String> = all.iter().map(|(at, kind)| self.label(*at, *kind)).collect();
        let label_width = 1 + labels.iter().map(|label| label.chars().count()).max().unwrap_or_default();
        let spans = self.all_spans();
        let overlap = match Overlap::of(&spans) {
            Some(overlap) => overlap.to_string(),
            None => format!("overlap: {:.2} ms", at_once(&spans)),
        };
        let mut below = broken(&overlap, columns);
        below.extend(broken(&self.note, columns));
        // The axis also takes a line.
        let room = lines.saturating_sub(below.len() + 1);
        if room == 0 || columns < label_width + FEWEST {
            return String::new();
        }
        // If streams are left out, one line shows their number.
        let shown = if all.len() > room { room - 1 } else { all.len() };
        let width = (columns - label_width).min(COLUMNS);
        let mut text = String::new();
        for ((at, kind), label) in all.iter().zip(&labels).take(shown) {
            let spans = self.rows[*at].spans.iter().filter(|span| span.kind == *kind);
            text += &self.line(label, label_width, spans, (width, Some(THIN)));
        }
        if shown < all.len() {
            text += &format!("… {} more\n", all.len() - shown);
        }
        text += &self.scale(label_width, width);
        for line in below {
            text += &format!("{line}\n");
        }
        text
    }

    /// Returns how many milliseconds one GPU's streams overlapped: hidden communication or copies, or other work if
    /// there is neither.
    pub fn overlapped(&self) -> f64 {
        let spans = self.all_spans();
        Overlap::of(&spans).map_or_else(|| at_once(&spans), |overlap| overlap.hidden)
    }

    fn all_spans(&self) -> Vec<Span> {
        self.rows.iter().flat_map(|row| row.spans.iter().cloned()).collect()
    }

    /// Returns the label of a line. A stream may be named after its kind of work.
    fn label(&self, row: usize, kind: Kind) -> String {
        let name = self.name(row);
        if name == kind.name() { name } else { format!("{name} {}", kind.name()) }
    }

    fn line<'a>(
        &self,
        label: &str,
        label_width: usize,
        spans: impl Iterator<Item = &'a Span>,
        (width, thin): (usize, Option<char>),
    ) -> String {
        let (first, last) = self.range();
        let column = |time: f64| ((time - first) / (last - first) * width as f64).round() as usize;
        let mut line = vec![' '; width];
        let mut too_short = Vec::new();
        for span in spans {
            let cells = column(span.start)..column(span.end);
            if cells.is_empty() {
                too_short.push(cells.start.min(width - 1));
            }
            for (cell, letter) in cells.clone().zip(bar(&span.name, cells.len())) {
                line[cell] = letter;
            }
        }
        for cell in too_short {
            if let (' ', Some(thin)) = (line[cell], thin) {
                line[cell] = thin;
            }
        }
        let line: String = line.into_iter().collect();
        format!("{}\n", format!("{label:<label_width$}{line}").trim_end())
    }

    fn scale(&self, label_width: usize, width: usize) -> String {
        let (first, last) = self.range();
        let end = format!("{:.2} ms", last - first);
        format!("{:label_width$}0{end:>width$}\n", "", width = width - 1)
    }
}

/// Breaks a sentence into lines at spaces.
fn broken(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Returns a name between brackets, as wide as its span, or a bar if the span is too narrow for a name.
fn bar(name: &str, width: usize) -> Vec<char> {
    if width < 3 {
        return vec!['▌'; width];
    }
    let name = shortened(name, width - 2);
    let inside = name.chars().chain(std::iter::repeat('─')).take(width - 2);
    std::iter::once('[').chain(inside).chain(std::iter::once(']')).collect()
}

/// The fewest letters of a word that are worth showing.
const LETTERS: usize = 3;

/// Returns as many words of a name as fit, or the beginning of the first word. The result is empty if neither fits.
fn shortened(name: &str, width: usize) -> String {
    let length = |text: &str| text.chars().count();
    let mut ends = name.match_indices(' ').map(|(end, _)| end).chain([name.len()]);
    if let Some(end) = ends.rfind(|end| length(&name[..*end]) <= width) {
        return name[..end].to_owned();
    }
    if width <= LETTERS { String::new() } else { name.chars().take(width - 1).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use super::super::tests::chart;
    use super::*;

    #[test]
    fn lines_of_text_show_what_overlaps() {
        let text = chart().terminal();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[0].starts_with("GPU 0 compute  [pre <0>──"), "{text}");
        // The communication starts after 2 of 5 milliseconds.
        assert_eq!(lines[1].find('[').unwrap(), LABEL + 38);
        assert!(lines[4].ends_with("5.00 ms"), "{text}");
    }

    #[test]
    fn a_name_is_cut_between_words_or_marked() {
        let cut = |name, width| bar(name, width).into_iter().collect::<String>();
        assert_eq!(cut("copy to the host", 18), "[copy to the host]");
        assert_eq!(cut("copy to the host", 17), "[copy to the────]");
        assert_eq!(cut("copy to the host", 6), "[copy]");
        assert_eq!(cut("ncclAllReduce", 10), "[ncclAll…]");
        assert_eq!(cut("memset", 5), "[───]");
        assert_eq!(cut("memset", 2), "▌▌");
    }

    #[test]
    fn a_summary_fits_and_shows_what_was_hidden() {
        let chart = Chart { rows: chart().rows[..1].to_vec(), ..chart() };
        for columns in 40..130 {
            let text = chart.summary(columns, 8);
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}:\n{text}");
            let lines = text.lines().count();
            assert!((4..=8).contains(&lines), "{columns}:\n{text}");
        }
        let text = chart.summary(80, 8);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("GPU 0 compute [pre <0>─"), "{text}");
        assert!(lines[1].starts_with("GPU 0 comm") && lines[2].ends_with("4.00 ms"), "{text}");
        assert!(lines[3].starts_with("hidden: 2.00 ms of communication") && lines[4] == "modeled", "{text}");
    }

    #[test]
    fn work_that_is_too_short_for_a_cell_is_visible() {
        let mut chart = Chart { rows: chart().rows[..1].to_vec(), ..chart() };
        let copy = Span { kind: Kind::Copy, name: "copy".to_owned(), start: 7.0, end: 7.001 };
        chart.rows[0].spans.push(copy);
        let text = chart.summary(80, 8);
        assert!(text.lines().any(|line| line.starts_with("GPU 0 copy") && line.ends_with(THIN)), "{text}");
        assert!(!chart.terminal().contains(THIN), "the demos' charts stay as they are");
    }

    #[test]
    fn only_the_first_of_too_many_streams_are_shown() {
        let rows: Vec<_> = chart().rows.iter().cycle().take(10).cloned().collect();
        let chart = Chart { rows, ..chart() };
        let text = chart.summary(80, 8);
        assert_eq!(text.lines().count(), 8, "{text}");
        assert!(text.contains("\n… 16 more\n"), "{text}");
        assert_eq!(chart.summary(20, 8), "", "too narrow");
        assert_eq!(chart.summary(80, 2), "", "too low");
    }
}
