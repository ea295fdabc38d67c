//! The score of an answer, which one of its checks has measured.

use std::fs;
use std::path::{Path, PathBuf};

use lab::Score;
use lab::check::Scores;

use crate::progress;
use crate::syllabus::Exercise;

/// Returns the folder in which checks store their scores. It is emptied before each run.
pub fn scores(root: &Path) -> PathBuf {
    progress::folder(root).join("scores_of_checks")
}

/// Returns the score of the answer that was checked last, if it is one of this exercise and has a score.
pub fn score(root: &Path, exercise: &Exercise) -> Option<Score> {
    score_in(&scores(root), exercise)
}

/// Returns the score that a check of an exercise has stored in a folder.
pub fn score_in(folder: &Path, exercise: &Exercise) -> Option<Score> {
    let names = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
    let mut checks = names.filter_map(|name| name.to_str()?.strip_suffix(".json").map(str::to_owned));
    let check = checks.find(|check| check.starts_with(&exercise.filter()))?;
    Scores::of(folder, &check)
}
