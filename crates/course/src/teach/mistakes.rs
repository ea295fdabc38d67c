//! `cargo course teach mistakes`: shows known wrong answers, and what the checks report about them.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::ensure;
use course::mistakes;
use course::syllabus::Course;

use crate::files::colored;
use crate::session::{DIM, STRONG};

/// Describes an exercise's known mistakes: what is wrong, how it differs from the solution, which check finds it, and
/// the check's message.
pub(super) fn show(root: &Path, course: &Course, id: &str) -> anyhow::Result<String> {
    let exercise = course.exercise(id)?;
    let mut text = String::new();
    for mistake in mistakes::read(root)?.iter().filter(|mistake| mistake.patch.exercise == exercise.id) {
        let _ = writeln!(text, "{STRONG}{}{STRONG:#}  {}", mistake.patch.name, mistake.what);
        text += &colored(&mistake.patch.changes()?);
        let _ = writeln!(text, "  {DIM}{} says:{DIM:#}", mistake.fails);
        for says in &mistake.says {
            let _ = writeln!(text, "    {says}");
        }
        let _ = writeln!(text, "  {DIM}{}{DIM:#}\n", mistake.patch.path());
    }
    ensure!(!text.is_empty(), "{} has no known mistakes", exercise.id);
    Ok(text)
}
