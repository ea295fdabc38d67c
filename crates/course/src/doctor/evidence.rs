//! `cargo course doctor --evidence FILE`: runs everything on this machine, and writes what happened to one file, to send
//! to the course's maintainers.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use course::checks::{Event, cargo};
use course::replace::replace;
use course::syllabus::{Course, Module};
use lab::check::Durations;
use lab::tier::{Tier, describe, survey};
use serde::Serialize;
use serde_json::Value;

use super::diagnosis::Diagnosis;

/// What the file contains.
#[derive(Serialize)]
struct Evidence<'a> {
    /// The course's version, and the commit if it is a checkout.
    course: [String; 2],
    /// Where one rank and the largest world run, and why.
    tiers: [String; 2],
    /// The CUDA version that the driver supports, and NCCL's version, or why they can't be used.
    driver: String,
    nccl: String,
    architecture: &'static str,
    cores: usize,
    diagnoses: &'a [Diagnosis],
    checks: Vec<Check>,
    programs: Vec<Program>,
}

/// One check of a solution.
#[derive(Serialize)]
struct Check {
    module: String,
    name: String,
    /// `ok`, `failed`, or `ignored`.
    verdict: String,
    /// From the start to the verdict. On real GPUs, this includes the time that the check waits for its turn.
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// One program: a benchmark, or a training run.
#[derive(Serialize)]
struct Program {
    command: String,
    succeeded: bool,
    seconds: f64,
    output: String,
}

/// Runs every solution's checks and the programs that measure, and writes the file. It contains no host name, user name,
/// or path.
///
/// # Errors
/// Fails if this copy of the course has no solutions, if they can't be built or run, or if the file can't be written.
pub(super) fn write(
    root: &Path,
    course: &Course,
    diagnoses: &[Diagnosis],
    file: &Path,
) -> anyhow::Result<()> {
    ensure!(
        root.join("solutions").is_dir(),
        "this copy of the course has no solutions, which --evidence runs; use a clone of the repository"
    );
    let tier = lab::attach(1)?;
    let ranks = lab::world_sizes().into_iter().max().unwrap_or(1);
    let survey = survey();
    let mut evidence = Evidence {
        course: [env!("CARGO_PKG_VERSION").to_owned(), commit(root)],
        tiers: [describe(1)?, describe(ranks)?],
        driver: survey.driver.as_ref().map_or_else(Clone::clone, |driver| format!("CUDA {}", driver.cuda)),
        nccl: survey.nccl.as_ref().map_or_else(Clone::clone, ToString::to_string),
        architecture: std::env::consts::ARCH,
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        diagnoses,
        checks: Vec::new(),
        programs: Vec::new(),
    };
    let private = Private::of_this_machine(root);
    // The file is written after each step, so that a run that ends early leaves what it has seen.
    let save = |evidence: &Evidence<'_>| {
        let evidence = private.remove_from(serde_json::to_value(evidence)?);
        replace(file, serde_json::to_string_pretty(&evidence)?)
    };
    for module in &course.modules {
        eprintln!("checking the solutions of {} …", module.folder);
        for program in built(root, module)? {
            evidence.checks.extend(run_checks(root, module, &program)?);
        }
        save(&evidence)?;
    }
    for arguments in measuring(tier, ranks) {
        eprintln!("running cargo {} …", arguments.join(" "));
        evidence.programs.push(run_program(root, &arguments)?);
        save(&evidence)?;
    }
    Ok(())
}

/// Returns the programs that measure, on this many ranks: the table of nccl-tests, and what overlap achieves.
fn measuring(tier: Tier, ranks: usize) -> [Vec<String>; 3] {
    let ranks = ranks.to_string();
    // Software would take minutes for more.
    let to = if tier == Tier::Virtual { "1M" } else { "64M" };
    [
        &["run", "-q", "-p", "s02_collectives", "--", "--gpus", &ranks, "--from", "1K", "--to", to][..],
        &["run", "-q", "-p", "s05_overlap", "--", "--model-size", "medium", "--world-size", &ranks],
        &["run", "-q", "-p", "s05_overlap", "--bin", "s05_overlap_interleave", "--", "--gpus", &ranks],
    ]
    .map(|arguments| arguments.iter().map(|&word| word.to_owned()).collect())
}

/// Builds a module's solution, and returns its test programs.
fn built(root: &Path, module: &Module) -> anyhow::Result<Vec<PathBuf>> {
    let package = module.solution_package();
    let output = cargo()
        .args(["test", "--quiet", "--no-run", "--message-format", "json", "--package", &package])
        .current_dir(root)
        .output()
        .context("can't run cargo")?;
    ensure!(
        output.status.success(),
        "cargo can't build {package}:\n{}",
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    let messages = output.stdout.split(|&byte| byte == b'\n');
    let values = messages.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let tests = values.filter(|message| message["profile"]["test"] == true);
    Ok(tests.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).collect())
}

/// Runs a test program, and returns each check's verdict and time.
fn run_checks(root: &Path, module: &Module, program: &Path) -> anyhow::Result<Vec<Check>> {
    let durations = std::env::temp_dir().join(format!("ncclings-durations-{}", std::process::id()));
    let mut command = Command::new(program);
    Durations::keep_in(&durations, &mut command)?;
    let mut child = command
        .args(["--format", "json"])
        .current_dir(root.join("solutions").join(&module.folder))
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("can't run {}", program.display()))?;
    let output = child.stdout.take().context("a pipe")?;
    let mut checks = Vec::new();
    let mut has_ended = false;
    for line in BufReader::new(output).lines() {
        let line = line?;
        let Some(Event { of, event, name, stdout }) = Event::read(&line) else { continue };
        let event = event.unwrap_or_default();
        match (of.as_str(), event.as_str(), name) {
            ("test", "started", _) => {}
            ("test", _, Some(name)) => checks.push(Check {
                module: module.folder.clone(),
                name,
                verdict: event,
                seconds: 0.0,
                message: stdout,
            }),
            ("suite", "ok" | "failed", _) => has_ended = true,
            _ => {}
        }
    }
    let status = child.wait()?;
    if !has_ended {
        bail!("{} ended without its results, with {status}", program.display());
    }
    let seconds = Durations::read(&durations)?;
    for check in &mut checks {
        check.seconds = seconds.get(&check.name).copied().unwrap_or(0.0);
    }
    // What is left there is a few lines.
    let _ = std::fs::remove_file(&durations);
    Ok(checks)
}

fn run_program(root: &Path, arguments: &[String]) -> anyhow::Result<Program> {
    let started = Instant::now();
    let output = cargo().args(arguments).current_dir(root).output().context("can't run cargo")?;
    let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok(Program {
        command: format!("cargo {}", arguments.join(" ")),
        succeeded: output.status.success(),
        seconds: (started.elapsed().as_secs_f64() * 1e3).round() / 1e3,
        output: printed.concat(),
    })
}

/// Returns the checkout's commit, or an empty text.
fn commit(root: &Path) -> String {
    let output = Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(root).output();
    let output = output.ok().filter(|output| output.status.success());
    output.map_or_else(String::new, |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The private texts of this machine, such as its host name, each with the word that replaces it in the file.
struct Private(Vec<(String, &'static str)>);

impl Private {
    fn of_this_machine(root: &Path) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let variable = |name| std::env::var(name).unwrap_or_default();
        let texts = [
            (root.display().to_string(), "COURSE"),
            (variable("CARGO_TARGET_DIR"), "TARGET"),
            (variable("LD_LIBRARY_PATH"), "LIBRARIES"),
            (variable("HOME"), "HOME"),
            (host.trim().to_owned(), "HOST"),
            (variable("USER"), "USER"),
        ];
        // Shorter texts occur in ordinary words.
        Self(texts.into_iter().filter(|(text, _)| text.len() > 2).collect())
    }

    /// Replaces the texts in all strings of a value.
    fn remove_from(&self, value: Value) -> Value {
        match value {
            Value::String(text) => {
                let replaced =
                    self.0.iter().fold(text, |text, (private, public)| text.replace(private, public));
                Value::String(replaced)
            }
            Value::Array(values) => values.into_iter().map(|value| self.remove_from(value)).collect(),
            Value::Object(entries) => {
                entries.into_iter().map(|(name, value)| (name, self.remove_from(value))).collect()
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_texts_are_replaced_everywhere() {
        let private = Private(vec![("/home/ada".to_owned(), "HOME"), ("ada".to_owned(), "USER")]);
        let value = serde_json::json!({ "a": ["/home/ada/x", 1], "b": { "c": "by ada" } });
        let expected = serde_json::json!({ "a": ["HOME/x", 1], "b": { "c": "by USER" } });
        assert_eq!(private.remove_from(value), expected);
    }
}
