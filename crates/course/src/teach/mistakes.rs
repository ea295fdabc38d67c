//! `cargo course teach mistakes`: shows known wrong answers, what the checks report about them, and what to ask.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::ensure;
use course::mistakes::{self, Mistake};
use course::results::count;
use course::syllabus::{Course, Exercise};

use crate::files::colored;
use crate::session::{DIM, STRONG};

/// Lists the known mistakes for an exercise, for the exercises of a path, or for all exercises.
///
/// # Errors
/// Fails if there is no such exercise or path, if it has no known mistakes, or if one can't be read.
pub(super) fn show(
    root: &Path,
    course: &Course,
    id: Option<&str>,
    path: Option<&str>,
) -> anyhow::Result<String> {
    let all = mistakes::read(root)?;
    let exercises: Vec<&Exercise> = match (id, path) {
        (Some(id), _) => vec![course.exercise(id)?],
        (None, Some(path)) => course.exercises_of(course.path(path)?)?,
        (None, None) => course.exercises.iter().collect(),
    };
    let mut text = String::new();
    for exercise in &exercises {
        let own: Vec<&Mistake> = all.iter().filter(|mistake| mistake.patch.exercise == exercise.id).collect();
        ensure!(!own.is_empty(), "{} has no known mistakes", exercise.id);
        let number = count(own.len(), "mistake");
        let _ =
            writeln!(text, "{STRONG}{}{STRONG:#}  {}  {DIM}{number}{DIM:#}\n", exercise.id, exercise.title);
        for mistake in own {
            describe(mistake, &mut text)?;
        }
    }
    Ok(text)
}

/// Describes a mistake: what is wrong, what to ask, the correction, and the message of the check that finds it.
fn describe(mistake: &Mistake, text: &mut String) -> anyhow::Result<()> {
    let _ = writeln!(text, "{STRONG}{}{STRONG:#}  {}", mistake.patch.name, mistake.what);
    *text += &colored(&mistake.patch.correction()?);
    let _ = writeln!(text, "  {DIM}ask:{DIM:#} {}", mistake.question());
    let _ = writeln!(text, "  {DIM}{} reports:{DIM:#}", mistake.fails);
    for says in &mistake.says {
        let _ = writeln!(text, "    {says}");
    }
    let _ = writeln!(text, "  {DIM}{}{DIM:#}\n", mistake.patch.path());
    Ok(())
}
