//! Runs the checks of exercises and says how they went.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};

use anyhow::{Context, anyhow, bail, ensure};
use serde::Deserialize;

use crate::syllabus::{Exercise, Module};

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
    /// Whether the virtual GPU says what is wrong. What it printed beside may be a consequence, and a wait that it gave up proves
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

/// A module's test program, built.
#[derive(Clone, Debug)]
pub struct Tests {
    program: PathBuf,
    folder: PathBuf,
}

/// What Cargo says of a build, line by line. Other messages have other reasons.
#[derive(Deserialize)]
#[serde(tag = "reason")]
enum Said {
    #[serde(rename = "compiler-artifact")]
    Built { target: Target, executable: Option<PathBuf> },
    #[serde(rename = "compiler-message")]
    Diagnosed { message: Diagnostic },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    rendered: String,
}

/// One line of a test program that prints JSON.
#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    of: String,
    event: Option<String>,
    name: Option<String>,
    stdout: Option<String>,
}

/// The Cargo that started this program; without it, the one on the path.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Ends a build or a run of checks that another thread waits for.
#[derive(Default)]
pub struct Stop(Mutex<Stopping>);

#[derive(Default)]
struct Stopping {
    is_stopped: bool,
    child: Option<Child>,
}

impl Stop {
    /// Ends what runs, and whatever would be started with this from now on.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.is_stopped = true;
        if let Some(child) = &mut state.child {
            // It may have ended by itself.
            let _ = child.kill();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Stopping> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs a command, each line of whose output goes to `line`. Returns whether it was well, and what it said on its
    /// standard error.
    fn run(&self, mut command: Command, mut line: impl FnMut(&str)) -> anyhow::Result<(bool, String)> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (out, mut errors) = {
            let mut state = self.lock();
            ensure!(!state.is_stopped, "stopped");
            let child = state.child.insert(command.spawn().with_context(|| format!("can't run {name}"))?);
            (child.stdout.take().context("a pipe")?, child.stderr.take().context("a pipe")?)
        };
        let said = std::thread::spawn(move || {
            let mut said = Vec::new();
            errors.read_to_end(&mut said).map(|_| String::from_utf8_lossy(&said).into_owned())
        });
        for text in BufReader::new(out).split(b'\n') {
            line(&String::from_utf8_lossy(&text?));
        }
        let said = said.join().map_err(|_| anyhow!("what {name} says can't be read"))??;
        let mut state = self.lock();
        let status = state.child.take().context("a child")?.wait()?;
        ensure!(!state.is_stopped, "stopped");
        Ok((status.success(), said))
    }
}

/// Builds the test program of a student's module. What the compiler says comes in colour if asked for.
///
/// # Errors
/// Cargo can't be run, or fails for another reason than an error in the code. What is wrong with the code is the inner
/// error: the compiler's words.
pub fn build(
    root: &Path,
    module: &Module,
    colour: bool,
    stop: &Stop,
) -> anyhow::Result<Result<Tests, String>> {
    let format = if colour { "json-diagnostic-rendered-ansi" } else { "json" };
    let package = module.starter_package();
    let mut command = cargo();
    command
        .args(["test", "--no-run", "--quiet", "--package", &package, "--test", &module.folder])
        .args(["--message-format", format])
        .current_dir(root);
    let mut program = None;
    let mut errors = String::new();
    let (is_built, said) = stop.run(command, |line| match serde_json::from_str(line) {
        Ok(Said::Built { target, executable }) if target.kind == ["test"] => program = executable,
        Ok(Said::Diagnosed { message }) if message.level == "error" => errors.push_str(&message.rendered),
        _ => {}
    })?;
    if !errors.is_empty() {
        return Ok(Err(errors));
    }
    match program {
        Some(program) if is_built => {
            Ok(Ok(Tests { program, folder: root.join("modules").join(&module.folder) }))
        }
        _ => bail!("cargo can't build {package}:\n{}", said.trim_end()),
    }
}

impl Tests {
    /// Runs those checks whose names contain `filter`, and tells them in the order in which their authors put them.
    ///
    /// # Errors
    /// The program can't be run, or ends without saying how the checks went: what it says instead.
    pub fn run(&self, filter: &str, stop: &Stop) -> anyhow::Result<Vec<Checked>> {
        let mut order = Vec::new();
        let names = self.command(&["--list", "--format", "terse", filter]);
        stop.run(names, |line| order.extend(line.strip_suffix(": test").map(str::to_owned)))?;
        let mut checks = Vec::new();
        let mut has_ended = false;
        let (_, said) = stop.run(self.command(&["--format", "json", filter]), |line| {
            let Ok(event) = serde_json::from_str::<Event>(line) else { return };
            match (event.of.as_str(), event.event.as_deref(), event.name) {
                ("test", Some("started"), _) => {}
                ("test", Some(outcome), Some(name)) => {
                    checks.push(Checked { name, outcome: Outcome::of(outcome, event.stdout.as_deref()) });
                }
                ("suite", Some("ok" | "failed"), _) => has_ended = true,
                _ => {}
            }
        })?;
        ensure!(has_ended, "the checks were not run: {}", said.trim_end());
        checks.sort_by_key(|check| order.iter().position(|name| *name == check.name));
        Ok(checks)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        // A check says where it failed; the frames of the harness help nobody.
        command.args(arguments).current_dir(&self.folder).env("RUST_BACKTRACE", "0");
        command
    }
}

/// A check that was run, or can't be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    name: String,
    outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed(String),
    Ignored,
}

impl Outcome {
    fn of(event: &str, stdout: Option<&str>) -> Self {
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
        let beside = says("a sum is wrong\n\nprinted by the check:\nvirtual GPU: a rank aborts");
        let given_up = says("virtual GPU: deadlock\n  = (not proved: given up after 10 s)");
        let report = says("rank 1: virtual GPU: data race");
        let first = |failures: &[Failure]| {
            Verdict::Failed(Counts::default(), failures.to_vec()).first_failure().cloned()
        };
        assert_eq!(first(&[says("wrong"), beside.clone(), report.clone()]), Some(report));
        assert_eq!(first(&[says("wrong"), beside, given_up]), Some(says("wrong")));
    }
}
