//! The results of checked exercises, as `cargo course verify --json` prints them for a student, and as `cargo course teach
//! grade` writes them for a class.

use std::collections::BTreeSet;

use lab::Score;
use serde::{Deserialize, Serialize};

/// The version of this course.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What a student's own copy of the course reports.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// The version of the course.
    pub course: String,
    /// The tier that two ranks run on.
    pub tier: String,
    /// The exercises, in course order.
    pub exercises: Vec<Line>,
}

/// A class, graded.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// The version of the course, and its commit in parentheses if it is known.
    pub course: String,
    /// The tier that the checks ran on.
    pub tier: String,
    /// What kept the answers apart from the machine.
    pub sandbox: String,
    /// The students, by name.
    pub students: Vec<Student>,
}

/// A student, graded.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Student {
    /// The student's name.
    pub name: String,
    /// The exercises, in course order.
    pub exercises: Vec<Line>,
    /// The files that the student has changed and that grading does not use.
    pub unused: Vec<String>,
}

/// An exercise and its checks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// The exercise's id, such as `init/devices`.
    pub id: String,
    /// Its state.
    pub state: State,
    /// Why its checks didn't run, if they didn't.
    pub reason: Option<String>,
    /// Its checks, in order.
    pub checks: Vec<Check>,
    /// How many hints the student has seen.
    pub hints: usize,
    /// Whether the file is the course's own solution. Only grades say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_solution: Option<bool>,
    /// The SHA-256 of the answer's file, if there is one.
    pub sha256: Option<String>,
    /// What the answer costs, if it is right and the exercise has a score. Only grades say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<Score>,
}

/// The state of an exercise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// All checks that ran passed, and at least one ran.
    Right,
    /// At least one check failed.
    Wrong,
    /// The answer doesn't compile.
    Broken,
    /// None of its checks can run on this machine.
    Ignored,
    /// Only in grades: the file is still the starter.
    Unbegun,
    /// Only in grades: there is no file.
    Missing,
    /// Only in grades: the answer does what no answer may do.
    Refused,
    /// Only in grades: the machine failed, which says nothing about the answer.
    Unable,
}

/// A check.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Its name, such as `devices::each_gpu_has_its_own_context`.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Why it did not pass, if that is known; empty if it passed.
    pub message: String,
    /// How long it took, in seconds. Only grades say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The answer passed it.
    Passed,
    /// The answer failed it.
    Failed,
    /// It can't run on this machine.
    Ignored,
    /// It was not run, because an earlier one exceeded its time limit.
    Skipped,
    /// Only in grades: the machine failed, which says nothing about the answer.
    Unable,
}

impl State {
    /// Returns the word for it in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::Wrong => "wrong",
            Self::Broken => "broken",
            Self::Ignored => "ignored",
            Self::Unbegun => "unbegun",
            Self::Missing => "missing",
            Self::Refused => "refused",
            Self::Unable => "not judged",
        }
    }
}

impl Student {
    /// Returns how many exercises have a state.
    pub fn count(&self, state: State) -> usize {
        self.exercises.iter().filter(|exercise| exercise.state == state).count()
    }
}

impl Line {
    /// Returns how many checks ended in this way.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.checks.iter().filter(|check| check.outcome == outcome).count()
    }

    /// Returns how long its checks took, in seconds.
    pub fn seconds(&self) -> f64 {
        self.checks.iter().filter_map(|check| check.seconds).sum()
    }

    /// Returns why its state contradicts the outcomes of its checks, if it does.
    pub fn contradiction(&self) -> Option<String> {
        let why = match self.state {
            State::Right if self.count(Outcome::Failed) > 0 => {
                format!("right, although {} failed", count(self.count(Outcome::Failed), "check"))
            }
            State::Right if self.count(Outcome::Skipped) > 0 => {
                format!("right, although {} did not run", count(self.count(Outcome::Skipped), "check"))
            }
            State::Right if self.count(Outcome::Passed) == 0 => "right, although no check passed".to_owned(),
            State::Wrong if self.count(Outcome::Failed) == 0 => "wrong, although no check failed".to_owned(),
            State::Ignored if self.count(Outcome::Passed) + self.count(Outcome::Failed) > 0 => {
                "ignored, although its checks ran".to_owned()
            }
            State::Broken | State::Unbegun | State::Missing | State::Refused if !self.checks.is_empty() => {
                "not checked, although it lists checks".to_owned()
            }
            _ => return None,
        };
        Some(format!("{} is {why}", self.id))
    }

    /// Returns how its checks differ from the course's own checks for it, if they do.
    pub fn unexpected_checks(&self, expected: &[String]) -> Option<String> {
        if !matches!(self.state, State::Right | State::Wrong | State::Ignored) {
            return None;
        }
        let names: BTreeSet<&String> = self.checks.iter().map(|check| &check.name).collect();
        if let Some(strange) = names.iter().find(|name| !expected.contains(name)) {
            return Some(format!("{} has no check `{strange}`", self.id));
        }
        let (listed, different) = (self.checks.len(), names.len());
        let is_complete = listed == expected.len() && different == expected.len();
        (!is_complete).then(|| {
            format!(
                "{} lists {}, {different} of them different, but the course has {}",
                self.id,
                count(listed, "check"),
                expected.len()
            )
        })
    }
}

/// Formats a number of things, such as `1 check` or `2 checks`.
pub fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Returns the SHA-256 of a file's content in hexadecimal, as `sha256sum` prints it.
pub fn sha256(content: &[u8]) -> String {
    hmac_sha256::Hash::hash(content).iter().map(|byte| format!("{byte:02x}")).collect()
}
