//! Right answers that differ from the solution but must pass the checks.
//!
//! `tests/alternatives/collectives/reduce/own_buffer.patch` contains a line `alternative: what it does differently`,
//! followed by a unified diff against the solution.

use std::path::Path;

use anyhow::{Context, bail};

use crate::answer_patch::{AnswerPatch, Head, file_text};

/// The folder of the alternatives, relative to the root of the course.
pub const FOLDER: &str = "tests/alternatives";

/// A right answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Alternative {
    /// The diff from the solution.
    pub patch: AnswerPatch,
    /// What the answer does differently.
    pub what: String,
}

impl Alternative {
    /// Returns the text of the patch file.
    pub fn text(&self) -> String {
        file_text(&[("alternative", &self.what)], &self.patch.diff)
    }
}

/// Reads all alternatives.
///
/// # Errors
/// Fails if one is malformed; the error names its path.
pub fn read(root: &Path) -> anyhow::Result<Vec<Alternative>> {
    read_each(root)?.into_iter().collect()
}

/// Reads all alternatives. A malformed alternative is an error that names its path.
///
/// # Errors
/// Fails if the folder can't be read.
pub fn read_each(root: &Path) -> anyhow::Result<Vec<anyhow::Result<Alternative>>> {
    AnswerPatch::read_each(root, FOLDER, alternative)
}

fn alternative(patch: AnswerPatch, head: Head) -> anyhow::Result<Alternative> {
    let mut what = None;
    for (key, value) in head {
        match key.as_str() {
            "alternative" => what = Some(value),
            other => bail!("`{other}` is not a valid key; the only key is `alternative`"),
        }
    }
    let what = what.context("its head must contain a line `alternative: what it does differently`")?;
    Ok(Alternative { patch, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_what_differs() {
        let parse = |text: &str| {
            let (patch, head) = AnswerPatch::parse(FOLDER, Path::new("a/b/c.patch"), text)?;
            alternative(patch, head)
        };
        let diff = "--- a/solutions/x.rs\n+++ b/solutions/x.rs\n@@ -1 +1 @@\n-one\n+1\n";
        let text = format!("alternative: a digit\n{diff}");
        let parsed = parse(&text).unwrap();
        assert_eq!(
            (parsed.what.as_str(), parsed.patch.path().as_str()),
            ("a digit", "tests/alternatives/a/b/c.patch")
        );
        assert_eq!(parsed.text(), text);
        assert!(parse(diff).is_err());
        assert!(parse(&format!("mistake: a digit\n{diff}")).is_err());
    }
}
