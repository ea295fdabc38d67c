//! The combined result of an exercise's checks.

use anyhow::bail;
use lab::check::{TimeLimits, is_unable};

use crate::syllabus::Exercise;

/// The combined result of an exercise's checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All checks that ran passed, and at least one ran.
    Passed(Counts),
    /// At least one check failed. Failures of written code come before those at a `todo!`.
    Failed(Counts, Vec<Failure>),
    /// The module doesn't compile. Contains the errors as the compiler prints them.
    Broken(Vec<String>),
    /// None of the checks can run on this machine.
    Ignored(Counts),
}

/// How many checks passed, failed, or didn't run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Checks that passed.
    pub passed: usize,
    /// Checks that failed.
    pub failed: usize,
    /// Checks that need more ranks than this machine can run.
    pub ignored: usize,
    /// Checks that were skipped because an earlier one exceeded its time limit.
    pub skipped: usize,
}

/// A check that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its name, such as `devices::each_gpu_has_its_own_context`.
    pub check: String,
    /// Its message: the report of the virtual GPU if there is one, or else the assertion.
    pub message: String,
}

impl Failure {
    /// Returns the task of the `todo!` at which the check ended, if it did, and the task's line if the message has one.
    pub fn to_do(&self) -> Option<String> {
        to_do(&self.message)
    }
}

/// Returns the task of the `todo!` at which a check with this message ended, if it did, and the task's line if the
/// message has one.
pub fn to_do(message: &str) -> Option<String> {
    let (_, after) = message.split_once("not yet implemented: ")?;
    let is_task = |&(index, line): &(usize, &str)| index == 0 || index == 1 && line.starts_with("  at ");
    let lines: Vec<&str> = after.lines().enumerate().take_while(is_task).map(|(_, line)| line).collect();
    Some(lines.join("\n"))
}

impl Verdict {
    /// Returns whether the answer is right, as far as this machine can tell.
    pub fn is_right(&self) -> bool {
        matches!(self, Self::Passed(_))
    }

    /// Returns whether the checks reached a verdict on the answer.
    pub fn is_decided(&self) -> bool {
        !matches!(self, Self::Ignored(_))
    }

    /// Returns the failure to look at first. It is that of the first check that did not end at a `todo!`, because
    /// checks are ordered from simple to complex.
    pub fn first_failure(&self) -> Option<&Failure> {
        let Self::Failed(_, failures) = self else { return None };
        failures.first()
    }
}

/// A check that was run, or that can't run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Its name, such as `devices::each_gpu_has_its_own_context`.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The answer passed it.
    Passed,
    /// The answer failed it, with this message.
    Failed(String),
    /// It needs more ranks than this machine can run.
    Ignored,
    /// It was skipped because an earlier one exceeded its time limit.
    Skipped,
}

impl Outcome {
    /// Returns whether the check failed because it exceeded a time limit.
    pub(super) fn ran_into_a_limit(&self) -> bool {
        matches!(self, Self::Failed(message) if TimeLimits::ended(message))
    }

    pub(super) fn of(event: &str, stdout: Option<&str>) -> Self {
        match event {
            "ok" => Self::Passed,
            "ignored" => Self::Ignored,
            _ => {
                let text = stdout.unwrap_or("the check failed without a message");
                let text = text.strip_prefix("Error: \"").unwrap_or(text);
                Self::Failed(text.strip_suffix("\"\n").unwrap_or(text).trim_end().to_owned())
            }
        }
    }
}

/// Combines the results of those checks in a module that belong to one exercise.
///
/// # Errors
/// Fails if none of them belongs to the exercise, or if one could not be run.
pub fn verdict(exercise: &Exercise, checks: &[Checked]) -> anyhow::Result<Verdict> {
    let filter = exercise.filter();
    let mut counts = Counts::default();
    let mut failures = Vec::new();
    for check in checks.iter().filter(|check| check.name.starts_with(&filter)) {
        match &check.outcome {
            Outcome::Passed => counts.passed += 1,
            Outcome::Ignored => counts.ignored += 1,
            Outcome::Skipped => counts.skipped += 1,
            Outcome::Failed(message) if is_unable(message) => bail!("{}: {message}", check.name),
            Outcome::Failed(message) => {
                counts.failed += 1;
                failures.push(Failure { check: check.name.clone(), message: message.clone() });
            }
        }
    }
    // The sort is stable, so it keeps the order of the checks otherwise.
    failures.sort_by_key(|failure| failure.to_do().is_some());
    Ok(match counts {
        Counts { passed: 0, failed: 0, ignored: 0, skipped: 0 } => {
            bail!("no check has a name that starts with {filter}")
        }
        Counts { failed: 1.., .. } => Verdict::Failed(counts, failures),
        Counts { passed: 0, .. } => Verdict::Ignored(counts),
        _ => Verdict::Passed(counts),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syllabus::tests::an_exercise;

    fn check(name: &str, event: &str, stdout: Option<&str>) -> Checked {
        Checked { name: name.to_owned(), outcome: Outcome::of(event, stdout) }
    }

    #[test]
    fn only_checks_that_ran_decide() {
        let exercise = an_exercise();
        let of = |checks: &[Checked]| verdict(&exercise, checks).unwrap();
        let passed = check("devices::one", "ok", None);
        let ignored = check("devices::two", "ignored", None);
        let failed = check("devices::three", "failed", Some("Error: \"rank 1: 2, not \"3\"\"\n"));
        let other = check("my_devices::one", "failed", None);
        assert!(of(&[passed.clone(), ignored.clone(), other.clone()]).is_right());
        assert!(matches!(of(&[ignored.clone(), other.clone()]), Verdict::Ignored(_)));
        let verdict = of(&[passed, ignored, failed, other.clone()]);
        assert!(matches!(
            verdict,
            Verdict::Failed(Counts { passed: 1, failed: 1, ignored: 1, skipped: 0 }, _)
        ));
        assert_eq!(verdict.first_failure().unwrap().message, "rank 1: 2, not \"3\"");
        assert!(super::verdict(&exercise, &[other]).is_err());
    }

    #[test]
    fn a_check_that_could_not_run_says_nothing_about_the_answer() {
        let text = "the check could not be run, which says nothing about your answer: no disk";
        let error = verdict(&an_exercise(), &[check("devices::one", "failed", Some(text))]).unwrap_err();
        assert_eq!(error.to_string(), format!("devices::one: {text}"));
    }

    #[test]
    fn the_failure_of_the_first_check_comes_first() {
        let failed = |name: &str, text: &str| check(name, "failed", Some(text));
        let checked = [
            failed("devices::simple", "a sum is wrong"),
            failed("devices::composed", "rank 1: virtual GPU: data race"),
        ];
        let first = |checked: &[Checked]| {
            verdict(&an_exercise(), checked).unwrap().first_failure().unwrap().check.clone()
        };
        assert_eq!(first(&checked), "devices::simple");
        let hole = failed("devices::simplest", "not yet implemented: Open GPUs");
        assert_eq!(first(&[&[hole][..], &checked].concat()), "devices::simple", "written code comes first");
    }

    #[test]
    fn a_check_that_ends_at_a_todo_has_a_task() {
        let task = |message: &str| Failure { check: String::new(), message: message.to_owned() }.to_do();
        let at = "not yet implemented: Open GPUs\n  at modules/a.rs:3:5";
        assert_eq!(task(at).as_deref(), Some("Open GPUs\n  at modules/a.rs:3:5"));
        let within = "`sum` on rank 0: panicked: not yet implemented: Sum\n  expected 1.0";
        assert_eq!(task(within).as_deref(), Some("Sum"));
        assert_eq!(task("`sum` is wrong"), None);
    }

    #[test]
    fn an_interrupted_run_is_not_a_pass() {
        let skipped = Checked { name: "devices::two".to_owned(), outcome: Outcome::Skipped };
        let verdict =
            verdict(&an_exercise(), &[check("devices::one", "failed", Some("too long")), skipped]).unwrap();
        assert!(matches!(verdict, Verdict::Failed(Counts { failed: 1, skipped: 1, .. }, _)));
    }
}
