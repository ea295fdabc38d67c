//! The scores of designs: those of the course's own answers, and how scores are compared.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context;
pub use lab::Score;
pub use lab::check::Scores;
use serde::{Deserialize, Serialize};

use crate::syllabus::Exercise;

/// A right answer of the course and its score, as `cargo xtask scores` has recorded it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Design {
    /// The name of its file among the alternatives, or `solution`.
    pub name: String,
    /// Its score.
    pub score: Score,
}

/// Returns the file with the scores of an exercise's designs, relative to the root of the course.
pub fn file(exercise: &Exercise) -> PathBuf {
    Path::new("tests").join(&exercise.test).with_extension("scores.json")
}

/// Reads the scores of an exercise's designs. Returns `None` if the exercise has no score.
///
/// # Errors
/// Fails if the file can't be read, or is not what `cargo xtask scores` writes.
pub fn read(root: &Path, exercise: &Exercise) -> anyhow::Result<Option<Vec<Design>>> {
    let path = file(exercise);
    let text = match fs::read_to_string(root.join(&path)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.with_context(|| format!("can't read {}", path.display()))?,
    };
    let designs = serde_json::from_str(&text);
    designs.map(Some).with_context(|| format!("{} is not what `cargo xtask scores` writes", path.display()))
}

/// Formats the scores of designs for their file.
///
/// # Errors
/// Fails if a score has a number that JSON can't express.
pub fn text(designs: &[Design]) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(designs)? + "\n")
}

/// Compares scores, the best first: by time in proportion to the bound, then by memory, then by bytes sent.
pub fn order(one: &Score, other: &Score) -> Ordering {
    let times = one.ratio().total_cmp(&other.ratio());
    times.then(one.memory.cmp(&other.memory)).then(one.sent.cmp(&other.sent))
}

/// Formats a table of named scores. `what` is the heading of the names.
pub fn table(what: &str, rows: &[(String, Score)]) -> String {
    let names = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let width = names.max(what.chars().count());
    let mut text =
        format!("{what:width$}  {:>9}  {:>8}  {:>11}  {:>11}\n", "step", "of bound", "sent", "memory");
    for (name, score) in rows {
        let [step, ratio, sent, memory] = figures(score);
        let _ = writeln!(text, "{name:width$}  {step:>9}  {ratio:>8}  {sent:>11}  {memory:>11}");
    }
    text
}

/// Formats the figures of a score: the time of a step, in proportion to the bound, the bytes that a rank sends, and the
/// memory of a GPU.
pub fn figures(score: &Score) -> [String; 4] {
    let kilobytes = |bytes: u64| format!("{:.1} KB", bytes as f64 / 1e3);
    [
        format!("{:.3} ms", score.microseconds / 1e3),
        format!("{:.2} ×", score.ratio()),
        score.sent.map_or_else(|| "not counted".to_owned(), kilobytes),
        kilobytes(score.memory),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(microseconds: f64, memory: u64, sent: Option<u64>) -> Score {
        Score { ranks: 4, microseconds, bound: 500.0, sent, memory, times: "modeled".to_owned() }
    }

    #[test]
    fn faster_is_better_and_memory_decides_between_equal_times() {
        let mut scores = [score(900.0, 1, None), score(600.0, 9, Some(2)), score(600.0, 8, Some(3))];
        scores.sort_by(order);
        assert_eq!(
            scores.map(|score| (score.microseconds, score.memory)),
            [(600.0, 8), (600.0, 9), (900.0, 1)]
        );
    }

    #[test]
    fn the_table_shows_what_is_not_counted() {
        let rows = [
            ("yours".to_owned(), score(1234.0, 45_678, None)),
            ("solution".to_owned(), score(600.0, 900, Some(12_345))),
        ];
        assert_eq!(
            table("design", &rows),
            "design         step  of bound         sent       memory\n\
             yours      1.234 ms    2.47 ×  not counted      45.7 KB\n\
             solution   0.600 ms    1.20 ×      12.3 KB       0.9 KB\n"
        );
    }

    #[test]
    fn scores_survive_their_file() {
        let designs = vec![Design { name: "solution".to_owned(), score: score(1.5, 2, Some(3)) }];
        assert_eq!(serde_json::from_str::<Vec<Design>>(&text(&designs).unwrap()).unwrap(), designs);
    }
}
