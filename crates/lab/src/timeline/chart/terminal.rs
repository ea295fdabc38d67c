//! A timeline as lines of text.

use super::Chart;

/// Columns of a line's label, if none is longer, and of its times.
const LABEL: usize = 15;
const COLUMNS: usize = 96;

impl Chart {
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
}

/// A name between brackets, as wide as its span. What is too narrow for a name is a bar.
fn bar(name: &str, width: usize) -> Vec<char> {
    if width < 3 {
        return vec!['▌'; width];
    }
    let inside = name.chars().chain(std::iter::repeat('─')).take(width - 2);
    std::iter::once('[').chain(inside).chain(std::iter::once(']')).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::chart;
    use super::*;

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
}
