//! A student's results, as `cargo course verify --json` prints them. The grades that `cargo run -p grade` writes contain
//! the same exercises.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anstream::adapter::strip_str;
use course::checks;
use course::syllabus::Exercise;
use lab::tier::tier_for;
use serde::{Deserialize, Serialize};

use crate::session::{Judged, Session};
use crate::verdict_text::count;

/// The version of this course.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A student's results.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Results {
    /// The version of the course.
    pub(crate) course: String,
    /// The tier that two ranks run on.
    tier: String,
    pub(crate) exercises: Vec<Line>,
}

/// An exercise and its checks.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line {
    pub(crate) id: String,
    pub(crate) state: State,
    /// Why its checks didn't run, if they didn't.
    reason: Option<String>,
    checks: Vec<Check>,
    /// How many hints the student has seen.
    pub(crate) hints: usize,
    /// The SHA-256 of the answer's file, if there is one.
    sha256: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Right,
    Wrong,
    /// Its module doesn't compile.
    Broken,
    /// None of its checks can run.
    Ignored,
    /// Only in grades: the file is still the starter.
    Unbegun,
    /// Only in grades: there is no file.
    Missing,
    /// Only in grades: the answer does what no answer may do.
    Refused,
    /// Only in grades: the machine failed.
    Unable,
}

/// A check.
#[derive(Serialize, Deserialize)]
struct Check {
    name: String,
    outcome: Outcome,
    /// Why it failed; empty if it did not fail.
    message: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Passed,
    Failed,
    Ignored,
    Skipped,
    /// Only in grades: the machine failed.
    Unable,
}

impl Results {
    /// Describes checked exercises.
    pub(crate) fn new(session: &Session, judged: &[Judged]) -> Self {
        let tier = tier_for(2).map_or_else(|_| "none".to_owned(), |tier| tier.to_string());
        let exercises = judged.iter().map(|judged| Line::new(session, judged)).collect();
        Self { course: VERSION.to_owned(), tier, exercises }
    }
}

impl Line {
    fn new(session: &Session, Judged { exercise, verdict, checked }: &Judged) -> Self {
        let (state, reason) = match verdict {
            checks::Verdict::Passed(_) => (State::Right, None),
            checks::Verdict::Failed(..) => (State::Wrong, None),
            checks::Verdict::Broken(errors) => (State::Broken, Some(strip_str(&errors.concat()).to_string())),
            checks::Verdict::Ignored(_) => (State::Ignored, None),
        };
        Self {
            id: exercise.id.clone(),
            state,
            reason,
            checks: checked.iter().map(Check::new).collect(),
            hints: session.progress.hints(exercise),
            sha256: sha256(session.root, exercise),
        }
    }

    /// Returns why its state contradicts the outcomes of its checks, if it does.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let of = |outcome| self.checks.iter().filter(|check| check.outcome == outcome).count();
        let why = match self.state {
            State::Right if of(Outcome::Failed) > 0 => {
                format!("right, although {} failed", count(of(Outcome::Failed), "check"))
            }
            State::Right if of(Outcome::Skipped) > 0 => {
                format!("right, although {} did not run", count(of(Outcome::Skipped), "check"))
            }
            State::Right if of(Outcome::Passed) == 0 => "right, although no check passed".to_owned(),
            State::Wrong if of(Outcome::Failed) == 0 => "wrong, although no check failed".to_owned(),
            State::Ignored if of(Outcome::Passed) + of(Outcome::Failed) > 0 => {
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
    pub(crate) fn unexpected_checks(&self, expected: &[String]) -> Option<String> {
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

impl Check {
    fn new(checked: &checks::Checked) -> Self {
        let (outcome, message) = match &checked.outcome {
            checks::Outcome::Passed => (Outcome::Passed, ""),
            checks::Outcome::Failed(message) => (Outcome::Failed, message.as_str()),
            checks::Outcome::Ignored => (Outcome::Ignored, ""),
            checks::Outcome::Skipped => (Outcome::Skipped, ""),
        };
        Self { name: checked.name.clone(), outcome, message: strip_str(message).to_string() }
    }
}

/// Returns the SHA-256 of an answer's file in hexadecimal. If the file is missing, the compiler reports it.
fn sha256(root: &Path, exercise: &Exercise) -> Option<String> {
    let hash = hmac_sha256::Hash::hash(&fs::read(exercise.starter(root)).ok()?);
    Some(hash.iter().map(|byte| format!("{byte:02x}")).collect())
}
