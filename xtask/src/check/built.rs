//! Runs the checks on the starters and variants in the built scratch workspace.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, bail};
use course::alternatives::Alternative;
use course::mistakes::Mistake;
use course::syllabus::{Course, Exercise};
use indicatif::ProgressBar;

use super::deletions::Deletion;
use super::test_output::{self, Outcomes};
use super::variants::{answer_name, deletion_name};
use super::verdicts;

/// The number of lines of Cargo's output to show if a program is missing.
const LAST_LINES: usize = 12;

/// How many failing checks run at a time on each core. Some of them spend most of their time waiting for what never happens.
const MANY: usize = 3;

/// The parts of the scratch workspace that compile.
pub(super) struct Built {
    pub(super) folder: PathBuf,
    /// The tests for packages and variants, by name.
    pub(super) tests: BTreeMap<String, Test>,
    /// The errors in the variants that don't compile.
    pub(super) broken: BTreeMap<String, String>,
    /// All other output from the compiler and Cargo.
    pub(super) diagnostics: String,
}

/// The checks for a starter or a variant.
pub(super) struct Test {
    pub(super) program: PathBuf,
    /// The folder that the program runs in; its `src` contains the exercise's own lines.
    pub(super) folder: PathBuf,
}

impl Built {
    /// Checks that every check of these exercises fails in the starter, at a `todo!` in the exercise's own file.
    pub(super) fn check_starters(&self, exercises: &[&Exercise]) -> anyhow::Result<Vec<String>> {
        self.in_parallel(MANY, exercises, |exercise| {
            let package = format!("m{}", exercise.folder());
            let Some(test) = self.tests.get(&package) else {
                return Ok(vec![format!(
                    "{package} has warnings or errors; fix its solution:\n{}",
                    self.diagnostics
                )]);
            };
            let outcomes = test.run(&[&exercise.filter()])?;
            Ok(verdicts::of_starter(exercise, &outcomes))
        })
    }

    /// Checks that every mistake makes its check fail with the words it lists.
    pub(super) fn check_mistakes(&self, mistakes: &[&Mistake]) -> anyhow::Result<Vec<String>> {
        self.in_parallel(MANY, mistakes, |mistake| {
            let name = answer_name(&mistake.patch);
            let Some(test) = self.tests.get(&name) else {
                let path = mistake.patch.path();
                return Ok(vec![format!("{path} doesn't compile:\n{}", self.errors_of(&name))]);
            };
            let outcomes = test.run(&["--exact", &mistake.fails])?;
            Ok(verdicts::of_mistake(mistake, &outcomes).into_iter().collect())
        })
    }

    /// Returns the problems with the alternatives. Each alternative must pass all of its exercise's checks.
    pub(super) fn check_alternatives(
        &self,
        course: &Course,
        alternatives: &[&Alternative],
    ) -> anyhow::Result<Vec<String>> {
        self.in_parallel(1, alternatives, |alternative| {
            let path = alternative.patch.path();
            let exercise = course.exercise(&alternative.patch.exercise)?;
            let name = answer_name(&alternative.patch);
            let Some(test) = self.tests.get(&name) else {
                return Ok(vec![format!("{path} doesn't compile:\n{}", self.errors_of(&name))]);
            };
            let outcomes = test.run(&[&exercise.filter()])?;
            Ok(verdicts::of_alternative(&path, &outcomes))
        })
    }

    /// Checks that every deletion makes its recorded check fail with the recorded words, or no check if it is harmless.
    pub(super) fn check_deletions(
        &self,
        course: &Course,
        deletions: &[Deletion],
    ) -> anyhow::Result<Vec<String>> {
        let all: Vec<(usize, &Deletion)> = deletions.iter().enumerate().collect();
        self.in_parallel(MANY, &all, |&(at, deletion)| {
            let exercise = course.exercise(&deletion.exercise)?;
            let name = deletion_name(at);
            let Some(test) = self.tests.get(&name) else {
                return Ok(vec![format!(
                    "{} doesn't compile; set `instead` to a replacement:\n{}",
                    deletion.name(),
                    self.errors_of(&name)
                )]);
            };
            let filter = exercise.filter();
            let outcomes = match &deletion.fails {
                Some(fails) => test.run(&["--exact", fails])?,
                None => test.run(&[&filter])?,
            };
            Ok(verdicts::of_deletion(deletion, &outcomes).into_iter().collect())
        })
    }

    /// Returns why a variant was not built.
    fn errors_of(&self, name: &str) -> String {
        self.broken.get(name).cloned().unwrap_or_else(|| self.end_of_output())
    }

    /// Returns the last lines of all output. They would also reveal a full disk.
    fn end_of_output(&self) -> String {
        let lines: Vec<&str> = self.diagnostics.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }

    /// Runs `look` for each item, on this many threads per core. The problems are in the order of the items.
    fn in_parallel<T: Sync>(
        &self,
        per_core: usize,
        items: &[T],
        look: impl Fn(&T) -> anyhow::Result<Vec<String>> + Sync,
    ) -> anyhow::Result<Vec<String>> {
        Ok(map_in_parallel(per_core, items, look)?.into_iter().flatten().collect())
    }
}

impl Test {
    /// Runs checks the way Cargo does.
    fn run(&self, arguments: &[&str]) -> anyhow::Result<Outcomes> {
        let output = Command::new(&self.program)
            .args(arguments)
            .args(["--color", "never", "--format", "pretty"])
            .current_dir(&self.folder)
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("can't run {}", self.program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let outcomes = test_output::parse(&text);
        if output.status.code() != Some(0) && outcomes.failed.is_empty() {
            bail!(
                "{} {arguments:?} in {} ended with {}:\n{text}{}",
                self.program.display(),
                self.folder.display(),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(outcomes)
    }

    /// Returns whether all checks that match a filter pass. A mutant may wait forever, so its time limits are short.
    pub(super) fn all_pass(&self, filter: &str) -> anyhow::Result<bool> {
        let status = Command::new(&self.program)
            .arg(filter)
            .current_dir(&self.folder)
            .envs([("LAB_TIMEOUT", "20"), ("VIRTUAL_GPU_TIMEOUT", "3")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .with_context(|| format!("can't run {}", self.program.display()))?;
        Ok(status.success())
    }
}

/// Runs `look` for each item, on this many threads per core, and shows the progress on a terminal. The results are in the
/// same order as the items.
pub(crate) fn map_in_parallel<T: Sync, R: Send>(
    per_core: usize,
    items: &[T],
    look: impl Fn(&T) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    let (queue, done) = (Mutex::new(items.iter().enumerate()), Mutex::new(BTreeMap::new()));
    let workers = per_core * thread::available_parallelism().map_or(1, usize::from);
    let progress = ProgressBar::new(items.len() as u64);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
                    let Some((index, item)) = next else { break };
                    let found = look(item);
                    done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(index, found);
                    progress.inc(1);
                }
            });
        }
    });
    progress.finish_and_clear();
    let done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    done.into_values().collect()
}
