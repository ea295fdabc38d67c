//! A module's test program: how it is built and run, and what it prints.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure};
use serde::Deserialize;

use super::stop::Stop;
use super::verdict::{Checked, Outcome};
use crate::syllabus::Module;

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
        // A check says where it failed; a backtrace through the harness adds nothing.
        command.args(arguments).current_dir(&self.folder).env("RUST_BACKTRACE", "0");
        command
    }
}
