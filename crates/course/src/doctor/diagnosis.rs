//! Something that the doctor has examined, and its description.

use std::fmt::Write as _;

use serde::Serialize;

use crate::session::{BAD, DIM, GOOD};
use crate::watch::text::wrapped;

/// The result of an examination.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    Good,
    /// The course runs, but not as well as it could.
    Note,
    /// Something does not work.
    Bad,
}

/// The doctor's diagnosis of one item.
#[derive(Serialize)]
pub(super) struct Diagnosis {
    pub(super) what: String,
    pub(super) status: Status,
    pub(super) says: String,
    /// How to fix the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) help: Option<String>,
}

impl Diagnosis {
    pub(super) fn new(what: impl Into<String>, status: Status, says: impl Into<String>) -> Self {
        Self { what: what.into(), status, says: says.into(), help: None }
    }

    pub(super) fn good(what: impl Into<String>, says: impl Into<String>) -> Self {
        Self::new(what, Status::Good, says)
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// Formats all diagnoses as text that is at most this many columns wide if possible.
pub(super) fn shown(diagnoses: &[Diagnosis], columns: usize) -> String {
    let width = diagnoses.iter().map(|diagnosis| diagnosis.what.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for Diagnosis { what, status, says, help } in diagnoses {
        let mark = match status {
            Status::Good => format!("{GOOD}✓{GOOD:#}"),
            Status::Note => "·".to_owned(),
            Status::Bad => format!("{BAD}✗{BAD:#}"),
        };
        let edge = " ".repeat(width + 4);
        let in_column = |words: &str| {
            wrapped(words, columns.saturating_sub(edge.len())).trim_end().replace('\n', &format!("\n{edge}"))
        };
        let _ = writeln!(text, "{mark} {what:width$}  {}", in_column(says));
        if let Some(help) = help {
            let _ = writeln!(text, "{edge}{DIM}{}{DIM:#}", in_column(help));
        }
    }
    text
}
