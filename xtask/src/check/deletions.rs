//! Deletes synchronizing calls from the solutions, one at a time. `tests/deletions.toml` records the effect of each
//! deletion: either a check fails with certain words, or the deletion is harmless for a stated reason.

use std::fs;
use std::path::Path;

use anyhow::Context;
use course::syllabus::{Course, Exercise};
use serde::Deserialize;

use super::names::{CheckSources, TEMPLATE};

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

/// Reads the recorded effects, and deletes the lines. Returns the usable entries, and the problems: a line in a solution
/// without an entry, an entry without a line, and an entry that names no effect.
///
/// # Errors
/// Fails if the list or a solution can't be read.
pub(super) fn read(
    root: &Path,
    course: &Course,
    sources: &CheckSources,
) -> anyhow::Result<(Vec<Deletion>, Vec<String>)> {
    let path = root.join("tests/deletions.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
    let Deletions { deletion: mut deletions } =
        toml::from_str(&text).with_context(|| format!("{} can't be read", path.display()))?;
    let mut problems = Vec::new();
    for exercise in &course.exercises {
        // Another check reports a missing file.
        let source = fs::read_to_string(root.join("solutions").join(&exercise.file)).unwrap_or_default();
        let lines: Vec<&str> = source.lines().collect();
        for at in synchronizing(&lines) {
            let nth = lines[..=at].iter().filter(|line| line.trim() == lines[at].trim()).count();
            let is_it = |deletion: &&mut Deletion| {
                deletion.exercise == exercise.id && deletion.line == lines[at].trim() && deletion.nth == nth
            };
            let Some(deletion) = deletions.iter_mut().find(is_it) else {
                let [check, words] = TEMPLATE;
                problems.push(format!(
                    "tests/deletions.toml doesn't record what happens without line {at} of solutions/{file}; add:\n[[deletion]]\nexercise = \"{id}\"\n\
                     line = {line:?}\n{nth}fails = \"{check}\"\nsays = [\"{words}\"]\n# or, instead of both: \
                     harmless = \"why no check fails\"",
                    at = at + 1,
                    file = exercise.file,
                    id = exercise.id,
                    line = lines[at].trim(),
                    nth = if nth > 1 { format!("nth = {nth}\n") } else { String::new() }
                ));
                continue;
            };
            let own = effect_problems(deletion, exercise, sources);
            problems.extend(
                own.into_iter().map(|own| format!("tests/deletions.toml: {}: {own}", deletion.name())),
            );
            deletion.source = without(&lines, at, deletion.instead.as_deref());
        }
    }
    let (deletions, stale): (Vec<_>, Vec<_>) =
        deletions.into_iter().partition(|deletion| !deletion.source.is_empty());
    let stale = stale.iter().map(Deletion::name);
    problems
        .extend(stale.map(|name| format!("tests/deletions.toml: no solution contains the line for {name}")));
    Ok((deletions, problems))
}

/// Returns what is wrong with the recorded effect of a deletion.
fn effect_problems(deletion: &Deletion, exercise: &Exercise, sources: &CheckSources) -> Vec<String> {
    match (&deletion.fails, &deletion.harmless) {
        (Some(fails), None) => sources.recorded(exercise, fails, &deletion.says),
        (None, Some(_)) => Vec::new(),
        _ => vec!["it needs either `fails` or `harmless`".to_owned()],
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
