//! Draws a timeline for several GPUs or several runs: in the terminal, in Perfetto, or on a slide.

mod perfetto;
mod picture;
mod terminal;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::{Kind, Span};

/// One GPU's lines of a [`Chart`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The GPU's work. All rows of a chart have the same time origin.
    pub spans: Vec<Span>,
    /// The possible error of all its times relative to the other rows' times, in milliseconds.
    pub uncertainty: f64,
}

/// The work of several GPUs, or of one GPU in several runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// The subject of the chart.
    pub title: String,
    /// The note below the chart, mainly the origin of the times (see [`crate::tier::whose_times`]).
    pub note: String,
    /// The rows, one for each GPU or each run.
    pub rows: Vec<Row>,
    /// The row names. A row without a name here is named after its GPU: `GPU 0`, `GPU 1`, and so on.
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
}

/// The smallest uncertainty that is shown, in milliseconds. Smaller uncertainties come from the limited precision of
/// event times.
const SMALLEST: f64 = 5e-5;

impl Chart {
    /// Returns a row's name.
    fn name(&self, row: usize) -> String {
        self.names.get(row).cloned().unwrap_or_else(|| format!("GPU {row}"))
    }

    /// Returns the number of characters in the longest row name.
    fn longest_name(&self) -> usize {
        (0..self.rows.len()).map(|row| self.name(row).chars().count()).max().unwrap_or_default()
    }

    /// Writes the trace from [`perfetto`](Self::perfetto) and the picture from [`svg`](Self::svg), each only if its
    /// path is given.
    ///
    /// # Errors
    /// Fails if a file can't be written. The error names its path.
    pub fn write(&self, perfetto: Option<&Path>, svg: Option<&Path>) -> anyhow::Result<()> {
        let write = |path: &Path, text: String| {
            std::fs::write(path, text).with_context(|| format!("can't write {}", path.display()))
        };
        perfetto.map_or(Ok(()), |path| write(path, self.perfetto()))?;
        svg.map_or(Ok(()), |path| write(path, self.svg()))
    }

    /// Returns the kinds of work in the chart, in order.
    fn kinds(&self) -> Vec<Kind> {
        let kinds: BTreeSet<Kind> =
            self.rows.iter().flat_map(|row| &row.spans).map(|span| span.kind).collect();
        kinds.into_iter().collect()
    }

    /// Returns the first start and the last end.
    fn range(&self) -> (f64, f64) {
        let spans = || self.rows.iter().flat_map(|row| &row.spans);
        let first = spans().map(|span| span.start).fold(f64::INFINITY, f64::min);
        let last = spans().map(|span| span.end).fold(f64::NEG_INFINITY, f64::max);
        if first < last { (first, last) } else { (0.0, 1.0) }
    }
}

/// Formats an uncertainty, as in ` ± 3.1 µs`. Returns an empty string if it is too small.
fn plus_minus(milliseconds: f64) -> String {
    if milliseconds >= SMALLEST { format!(" ± {:.1} µs", 1e3 * milliseconds) } else { String::new() }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(super) fn chart() -> Chart {
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
            note: "modeled".to_owned(),
            rows: vec![row(0.0, 0.0), row(1.0, 0.25)],
            names: vec![],
        }
    }

    #[test]
    fn a_row_has_its_name_in_every_output() {
        let chart = Chart { names: vec!["at the very end".to_owned()], ..chart() };
        let (text, trace, picture) = (chart.terminal(), chart.perfetto(), chart.svg());
        assert!(
            text.starts_with("at the very end compute [pre <0>──") && text.contains("\nGPU 1 compute"),
            "{text}"
        );
        assert!(trace.contains("\"at the very end\"") && trace.contains("GPU 1 ± 250.0 µs"), "{trace}");
        assert!(picture.contains("at the very end, comm: 2.00 ms between 2.00 and 4.00."), "{picture}");
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
}
