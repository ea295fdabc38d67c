//! A module's test program: how to build and run it, and how to read its output.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure};
use lab::check::{Scores, TimeLimits, Timelines};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::compiler::{self, Before, Compiled};
use super::event::Event;
use super::stop::{Stop, Then};
use super::verdict::{Checked, Outcome};
use crate::syllabus::{Exercise, Module};

/// A module's test program, already built.
#[derive(Clone, Debug)]
pub struct Tests {
    program: PathBuf,
    folder: PathBuf,
}

/// The messages that Cargo prints about a build, one per line. Messages with other reasons are ignored.
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
    spans: Vec<IgnoredAny>,
}

/// libtest's variable that sets how many checks run in parallel.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// Returns a command that runs the Cargo that started this program, or else `cargo` from the `PATH`.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Builds the test program for a student's module, with the checks for one exercise or for all exercises. The
/// compiler's messages are in color if requested.
///
/// # Errors
/// Fails if Cargo can't be run, or fails for a reason other than an error in the code. Errors in the code are returned
/// as the inner error, which contains the compiler's messages.
pub fn build(
    root: &Path,
    module: &Module,
    only: Option<&Exercise>,
    color: bool,
    stop: &Stop,
) -> anyhow::Result<Result<Tests, Vec<String>>> {
    let package = module.starter_package();
    let tests = |program| Ok(Ok(Tests { program, folder: root.join("modules").join(&module.folder) }));
    let mut before = None;
    if let Some(exercise) = only {
        match compiler::compile(root, module, exercise, color, stop)? {
            Some(Compiled::Program(program)) => return tests(program),
            Some(Compiled::Failed(messages)) => {
                let mut errors = Errors::default();
                let messages = messages.iter().filter_map(|line| serde_json::from_str(line).ok());
                messages.for_each(|message| errors.add(message));
                if !errors.with_place.is_empty() {
                    return Ok(Err(errors.with_place));
                }
            }
            None => {}
        }
        before = Some(Before::new(root, module, exercise));
    }
    let format = if color { "json-diagnostic-rendered-ansi" } else { "json" };
    let mut command = cargo();
    command
        // With this much to say, Cargo prints the compiler's command.
        .args(["rustc", "--profile", "test", "-vv", "--package", &package, "--lib"])
        .args(["--message-format", format])
        .current_dir(root);
    if let Some(exercise) = only {
        // See `lab::checks!`.
        command.args(["--", "--cfg", "one_exercise", "--cfg", &exercise.checks()]);
    }
    let mut program = None;
    let mut errors = Errors::default();
    let (is_built, said) = stop.run(command, |line| {
        match serde_json::from_str(line) {
            Ok(Said::Built { target, executable: Some(executable) }) if target.kind == ["lib"] => {
                program = Some(executable);
            }
            Ok(Said::Diagnosed { message }) => errors.add(message),
            _ => {}
        }
        Then::GoOn
    })?;
    if !is_built && errors.with_place.is_empty() {
        errors.with_place = errors.others;
    }
    if !errors.with_place.is_empty() {
        return Ok(Err(errors.with_place));
    }
    match program {
        Some(program) if is_built => {
            if let Some(before) = before {
                before.record(&package, &program, &said);
            }
            tests(program)
        }
        _ => bail!("cargo can't build {package}:\n{}", without_progress(&said)),
    }
}

/// The errors that the compiler prints.
#[derive(Default)]
struct Errors {
    with_place: Vec<String>,
    others: Vec<String>,
}

impl Errors {
    fn add(&mut self, message: Diagnostic) {
        if message.level == "error" {
            // The last error is only a count of the others, and has no location.
            let of_its_kind = if message.spans.is_empty() { &mut self.others } else { &mut self.with_place };
            of_its_kind.push(message.rendered);
        }
    }
}

/// Returns what Cargo says, without the lines about its progress. Each of those begins with a verb in a column of 12.
fn without_progress(said: &str) -> String {
    let is_progress = |line: &&str| {
        let verb = line.get(..12).unwrap_or_default().trim_start();
        verb.starts_with(char::is_uppercase) && verb.chars().all(char::is_alphabetic)
    };
    let rest: Vec<&str> = said.lines().filter(|line| !is_progress(line)).collect();
    rest.join("\n").trim().to_owned()
}

/// Options for running the checks.
pub struct Options<'a> {
    /// The function to call with the name of a check that is running: the first one in the source without a result.
    pub running: &'a mut dyn FnMut(&str),
    /// Whether a person is waiting. If so, time limits are short, and the first check that exceeds its limit ends the
    /// run.
    pub is_interactive: bool,
    /// The width of the terminal that shows the checks' output, if there is one.
    pub columns: Option<usize>,
    /// A folder to create, where the checks store what their streams did.
    pub timelines: Option<&'a Path>,
    /// A folder to create, where the checks store their scores.
    pub scores: Option<&'a Path>,
}

impl Tests {
    /// Returns the names of the checks whose names contain `filter`, in the order of their source.
    ///
    /// # Errors
    /// Fails if the program can't be run.
    pub fn names(&self, filter: &str, stop: &Stop) -> anyhow::Result<Vec<String>> {
        let mut names = Vec::new();
        stop.run(self.command(&["--list", "--format", "terse", filter]), |line| {
            names.extend(line.strip_suffix(": test").map(str::to_owned));
            Then::GoOn
        })?;
        Ok(names)
    }

    /// Runs the checks whose names contain `filter`, and returns them in the order of their source.
    ///
    /// # Errors
    /// Fails if the program can't be run, or ends without reporting the results; the error contains its output instead.
    pub fn run(&self, filter: &str, stop: &Stop, options: Options<'_>) -> anyhow::Result<Vec<Checked>> {
        let Options { running, is_interactive, columns, timelines, scores } = options;
        let order = self.names(filter, stop)?;
        let mut command = self.command(&["--format", "json", filter]);
        if is_interactive {
            TimeLimits::set_interactive(&mut command);
        }
        if std::env::var_os(TEST_THREADS).is_none() {
            // Many checks spend most of their time waiting, so even two cores can run eight at a time.
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            command.env(TEST_THREADS, cores.max(8).to_string());
        }
        if let Some(columns) = columns {
            // Shells also have a variable with this name, but they seldom export it.
            command.env("COLUMNS", columns.to_string());
        }
        if let Some(folder) = timelines {
            // Without the folder there is no timeline, but there is still a verdict.
            let _ = Timelines::keep_in(folder, &mut command);
        }
        if let Some(folder) = scores {
            Scores::keep_in(folder, &mut command)?;
        }
        let mut outcomes = BTreeMap::new();
        // Checks start in this order. libtest-mimic prints that a check has started only once it has ended.
        let mut shown = None;
        let mut show = |outcomes: &BTreeMap<String, Outcome>| {
            let next = order.iter().find(|name| !outcomes.contains_key(*name));
            if let Some(name) = next.filter(|_| next != shown) {
                running(name);
            }
            shown = next;
        };
        show(&outcomes);
        let (mut has_ended, mut is_cut_short) = (false, false);
        let (_, said) = stop.run(command, |line| {
            let Some(event) = Event::read(line) else { return Then::GoOn };
            match (event.of.as_str(), event.event.as_deref(), event.name) {
                ("test", Some("started"), _) => {}
                ("test", Some(outcome), Some(name)) => {
                    let outcome = Outcome::of(outcome, event.stdout.as_deref());
                    is_cut_short |= is_interactive && outcome.ran_into_a_limit();
                    outcomes.insert(name, outcome);
                    show(&outcomes);
                }
                ("suite", Some("ok" | "failed"), _) => has_ended = true,
                _ => {}
            }
            if is_cut_short { Then::End } else { Then::GoOn }
        })?;
        ensure!(has_ended || is_cut_short, "the checks were not run: {}", said.trim_end());
        let checked = order.iter().map(|name| {
            let outcome = outcomes.remove(name).unwrap_or(Outcome::Skipped);
            Checked { name: name.clone(), outcome }
        });
        Ok(checked.collect())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        // A check reports where it failed, so a backtrace through the harness adds nothing.
        command.args(arguments).current_dir(&self.folder).env("RUST_BACKTRACE", "0");
        command
    }
}
