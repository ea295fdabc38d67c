//! Deletes synchronizing calls from the solutions, one at a time. `tests/deletions.toml` records the effect of each
//! deletion: either a check fails with certain words, or the deletion is harmless for a stated reason.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use course::syllabus::Course;
use serde::Deserialize;

/// Substrings that identify lines that synchronize.
const CALLS: [&str; 7] =
    [".synchronize(", ".wait(", ".record_event(", ".record(", ".join(", "group_start()", "group_end()"];

/// A line deleted from a solution.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Deletion {
    /// Its exercise's id.
    pub(super) exercise: String,
    /// The line, without the surrounding spaces.
    line: String,
    /// The number of the line among identical lines, counted from 1.
    #[serde(default = "first")]
    nth: usize,
    /// The replacement, if the line needs one.
    instead: Option<String>,
    /// The check that fails.
    pub(super) fails: Option<String>,
    /// Words in the check's message.
    #[serde(default)]
    pub(super) says: Vec<String>,
    /// Why the deletion has no effect.
    pub(super) harmless: Option<String>,
    /// The solution without the line.
    #[serde(skip)]
    pub(super) source: String,
}

fn first() -> usize {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Deletions {
    deletion: Vec<Deletion>,
}

impl Deletion {
    /// Returns the name of the deletion for use in a problem.
    pub(super) fn name(&self) -> String {
        format!("{} without `{}` ({})", self.exercise, self.line, self.nth)
    }
}

/// Reads the recorded effects, and deletes the lines.
///
/// # Errors
/// Fails if the list can't be read, or if the lines in the list don't match the lines in the solutions. The error names
/// the line.
pub(super) fn read(root: &Path, course: &Course) -> anyhow::Result<Vec<Deletion>> {
    let path = root.join("tests/deletions.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
    let Deletions { deletion: mut deletions } =
        toml::from_str(&text).with_context(|| format!("{} can't be read", path.display()))?;
    let mut judged = 0;
    for exercise in &course.exercises {
        let source = fs::read_to_string(root.join("solutions").join(&exercise.file))
            .with_context(|| format!("can't read solutions/{}", exercise.file))?;
        let lines: Vec<&str> = source.lines().collect();
        for at in synchronizing(&lines) {
            let nth = lines[..=at].iter().filter(|line| line.trim() == lines[at].trim()).count();
            let is_it = |deletion: &&mut Deletion| {
                deletion.exercise == exercise.id && deletion.line == lines[at].trim() && deletion.nth == nth
            };
            let Some(deletion) = deletions.iter_mut().find(is_it) else {
                bail!(
                    "tests/deletions.toml doesn't record what happens without line {at} of solutions/{file}; add:\n[[deletion]]\nexercise = \"{id}\"\n\
                     line = {line:?}\n{nth}fails = \"the check that fails\"\nsays = [\"words of its message\"]\n# or, instead of both: \
                     harmless = \"why no check fails\"",
                    at = at + 1,
                    file = exercise.file,
                    id = exercise.id,
                    line = lines[at].trim(),
                    nth = if nth > 1 { format!("nth = {nth}\n") } else { String::new() }
                );
            };
            ensure!(
                deletion.fails.is_some() != deletion.harmless.is_some(),
                "tests/deletions.toml: {} needs either `fails` or `harmless`",
                deletion.name()
            );
            deletion.source = without(&lines, at, deletion.instead.as_deref());
            judged += 1;
        }
    }
    ensure!(judged > 0, "no solution contains a synchronizing call");
    match deletions.iter().find(|deletion| deletion.source.is_empty()) {
        Some(stale) => bail!("tests/deletions.toml: no solution contains the line for {}", stale.name()),
        None => Ok(deletions),
    }
}

/// Returns the indexes of the lines that synchronize.
fn synchronizing(lines: &[&str]) -> Vec<usize> {
    let is_one = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        CALLS.iter().any(|call| code.contains(call))
    };
    (0..lines.len()).filter(|&at| is_one(lines[at])).collect()
}

fn without(lines: &[&str], at: usize, instead: Option<&str>) -> String {
    let kept = lines.iter().enumerate().filter_map(|(place, line)| match place == at {
        true => instead,
        false => Some(*line),
    });
    kept.flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_synchronize_are_found_and_deleted() {
        let lines = ["a.wait(&b)?;", "// a.wait(&b)", "c();", "stream.synchronize()?;"];
        assert_eq!(synchronizing(&lines), [0, 3]);
        assert_eq!(without(&lines, 0, None), "// a.wait(&b)\nc();\nstream.synchronize()?;\n");
        assert_eq!(without(&lines, 3, Some("d();")), "a.wait(&b)?;\n// a.wait(&b)\nc();\nd();\n");
    }
}
