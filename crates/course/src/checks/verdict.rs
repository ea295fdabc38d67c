//! What the checks of an exercise come to.

use anyhow::bail;

use crate::syllabus::Exercise;

/// How the checks of an exercise went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All that ran passed, and at least one ran.
    Passed(Counts),
    /// At least one failed.
    Failed(Counts, Vec<Failure>),
    /// The module doesn't compile: the compiler's errors, as it prints them.
    Broken(String),
    /// None of its checks can run on this machine.
    Ignored(Counts),
}

/// How many checks passed, failed, and can't run here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Checks that passed.
    pub passed: usize,
    /// Checks that failed.
    pub failed: usize,
    /// Checks that need more ranks than this machine can run.
    pub ignored: usize,
}

/// A check that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its name, such as `devices::each_gpu_has_its_own_context`.
    pub check: String,
    /// What it says: the report of the virtual GPU where there is one, or the assertion.
    pub message: String,
}

impl Failure {
    /// Whether the virtual GPU says what is wrong. What it printed besides may be a consequence, and a wait that it gave up proves
    /// nothing.
    fn has_report(&self) -> bool {
        let own = self.message.split("\nprinted by the check:\n").next().unwrap_or_default();
        own.contains("virtual GPU: ") && !own.contains("(not proved: ")
    }
}

impl Verdict {
    /// Whether the answer is right as far as this machine can tell.
    pub fn is_right(&self) -> bool {
        matches!(self, Self::Passed(_))
    }

    /// Whether it says anything about the answer.
    pub fn is_decided(&self) -> bool {
        !matches!(self, Self::Ignored(_))
    }

    /// The one failure to look at first: a report of the virtual GPU says more than an assertion.
    pub fn first_failure(&self) -> Option<&Failure> {
        let Self::Failed(_, failures) = self else { return None };
        failures.iter().find(|failure| failure.has_report()).or(failures.first())
    }
}

/// A check that was run, or can't be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    pub(super) name: String,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    Failed(String),
    Ignored,
}

impl Outcome {
    pub(super) fn of(event: &str, stdout: Option<&str>) -> Self {
        match event {
            "ok" => Self::Passed,
            "ignored" => Self::Ignored,
            _ => {
                let text = stdout.unwrap_or("it says nothing");
                let text = text.strip_prefix("Error: \"").unwrap_or(text);
                Self::Failed(text.strip_suffix("\"\n").unwrap_or(text).trim_end().to_owned())
            }
        }
    }
}

/// What the checks of one exercise come to, among those of its module.
///
/// # Errors
/// None of them is the exercise's.
pub fn verdict(exercise: &Exercise, checks: &[Checked]) -> anyhow::Result<Verdict> {
    let filter = exercise.filter();
    let mut counts = Counts::default();
    let mut failures = Vec::new();
    for check in checks.iter().filter(|check| check.name.starts_with(&filter)) {
        match &check.outcome {
            Outcome::Passed => counts.passed += 1,
            Outcome::Ignored => counts.ignored += 1,
            Outcome::Failed(message) => {
                counts.failed += 1;
                failures.push(Failure { check: check.name.clone(), message: message.clone() });
            }
        }
    }
    Ok(match counts {
        Counts { passed: 0, failed: 0, ignored: 0 } => bail!("there is no check {filter}…"),
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
        assert!(matches!(verdict, Verdict::Failed(Counts { passed: 1, failed: 1, ignored: 1 }, _)));
        assert_eq!(verdict.first_failure().unwrap().message, "rank 1: 2, not \"3\"");
        assert!(super::verdict(&exercise, &[other]).is_err());
    }

    #[test]
    fn a_report_comes_before_an_assertion() {
        let says = |text: &str| Failure { check: "a check".to_owned(), message: text.to_owned() };
        let besides = says("a sum is wrong\n\nprinted by the check:\nvirtual GPU: a rank aborts");
        let given_up = says("virtual GPU: deadlock\n  = (not proved: given up after 10 s)");
        let report = says("rank 1: virtual GPU: data race");
        let first = |failures: &[Failure]| {
            Verdict::Failed(Counts::default(), failures.to_vec()).first_failure().cloned()
        };
        assert_eq!(first(&[says("wrong"), besides.clone(), report.clone()]), Some(report));
        assert_eq!(first(&[says("wrong"), besides, given_up]), Some(says("wrong")));
    }
}
