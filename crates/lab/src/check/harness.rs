//! The `main` of a test target: selects checks, runs each in its own process, and prints the results.

use std::collections::BTreeSet;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use libtest_mimic::{Arguments, Completion, Conclusion, Failed, FormatSetting, Trial};

use super::definition::Check;
use super::durations::Durations;
use super::order::RUN_CHECKS;
use super::process::{Judged, judge, try_again};
use super::program::{Serves, TestProgram};
use super::scores::Scores;
use super::tiers::{self, Tiers, announcement};
use super::{child, forks, processes, variables};
use crate::tier::{ASKED, Tier, processes_at_a_time};

/// Runs the checks that the command line selects: the `main` of a test target with `harness = false`.
///
/// A check passes if its function returns `Ok` in time. It fails on a panic, on an `Err`, if its process ends, or if it
/// takes more than `LAB_TIMEOUT` seconds (60 by default). The output of a check is shown if it fails, or with
/// `--nocapture`.
pub fn run(checks: Vec<Check>) -> ExitCode {
    if let Some(code) = processes::obey(&checks) {
        return code;
    }
    if std::env::args_os().nth(1).is_some_and(|first| first == RUN_CHECKS) {
        return match forks::serve() {
            Ok(Some(connection)) => child::run(&checks, connection),
            Ok(None) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::from(2)
            }
        };
    }
    match supervise(Arguments::from_args(), checks) {
        Ok(conclusion) => conclusion.exit_code(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The state that the children and their results share.
struct Supervisor {
    /// The program whose forks run the checks; started for the first one.
    program: OnceLock<anyhow::Result<TestProgram>>,
    /// The tier, if all checks run on the same one.
    tier: Option<Tier>,
    timeout: Duration,
    capture: bool,
    show_passed: bool,
    passed_output: Mutex<Vec<(String, String)>>,
    /// Which checks use the real GPUs now: one that measures time holds it for writing, any other one for reading.
    real_gpus: RwLock<()>,
}

fn supervise(mut arguments: Arguments, checks: Vec<Check>) -> anyhow::Result<Conclusion> {
    ensure!(!checks.is_empty(), "this test target has no checks");
    let mut names = BTreeSet::new();
    for check in &checks {
        ensure!(names.insert(check.name()), "two checks are named `{}`", check.name());
    }
    let tiers = if arguments.list { Tiers::new() } else { tiers::selected(&arguments, &checks)? };
    variables::adopt(&mut arguments)?;
    let is_real = tiers.values().any(|tier| matches!(tier, Ok(Tier::Real | Tier::Shared)));
    if is_real && arguments.test_threads.is_none() {
        // NCCL's kernels of two ranks on one GPU wait for each other, and those of several checks take turns: with eight
        // checks at a time on an H200, a check that takes seconds took more than half a minute.
        let is_shared = tiers.values().any(|tier| matches!(tier, Ok(Tier::Shared)));
        arguments.test_threads = Some(if is_shared { 1 } else { processes_at_a_time() });
    }
    let for_people = !arguments.list && arguments.format != Some(FormatSetting::Json);
    if for_people && !tiers.is_empty() {
        println!("\n{}", announcement(&tiers)?);
    }
    if for_people
        && tiers.is_empty()
        && let Some(filter) = &arguments.filter
    {
        println!("\nno check's name contains `{filter}`; with `-- --list`, this command lists all names");
    }

    let supervisor = Arc::new(Supervisor {
        program: OnceLock::new(),
        tier: tiers::only(&tiers),
        timeout: variables::timeout(std::env::var_os("LAB_TIMEOUT"), is_real)?,
        capture: !arguments.nocapture,
        show_passed: arguments.show_output,
        passed_output: Mutex::default(),
        real_gpus: RwLock::default(),
    });
    let trials = checks.into_iter().map(|check| trial(&supervisor, check, &tiers)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);

    if for_people {
        supervisor.print_passed();
        print_refusals(&tiers);
        if let Some(exercises) = exercises_of_solutions(std::env::var("CARGO_PKG_NAME").ok().as_deref())
            && !tiers.is_empty()
        {
            println!("these are the course's solutions; `cargo test -p {exercises}` checks your answers\n");
        }
    }
    Ok(conclusion)
}

/// Returns the package with a module's exercises, if the checked package has the module's solutions.
fn exercises_of_solutions(package: Option<&str>) -> Option<String> {
    let module = package?.strip_prefix('s')?;
    module.starts_with(|first: char| first.is_ascii_digit()).then(|| format!("m{module}"))
}

/// Creates the trial of a check. The trial is ignored if the check can't run here.
fn trial(supervisor: &Arc<Supervisor>, check: Check, tiers: &Tiers) -> Trial {
    let supervisor = Arc::clone(supervisor);
    let tier = tiers.get(&check.ranks());
    let refusal = tier.and_then(|tier| tier.clone().err());
    let refusal = refusal.or_else(|| check.lacks(tier.and_then(|tier| tier.clone().ok())));
    let is_real = tier.is_some_and(|tier| matches!(tier, Ok(Tier::Real | Tier::Shared)));
    Trial::ignorable_test(check.name().to_owned(), move || {
        if let Some(reason) = refusal {
            return Ok(Completion::ignored_with(reason));
        }
        let started = Instant::now();
        let (real_gpus, is_alone) = (&supervisor.real_gpus, check.needs_real_gpus_alone());
        let alone = (is_real && is_alone).then(|| real_gpus.write().unwrap_or_else(PoisonError::into_inner));
        let shared = (is_real && !is_alone).then(|| real_gpus.read().unwrap_or_else(PoisonError::into_inner));
        let result = supervisor.run(&check);
        drop((alone, shared));
        Durations::save(check.name(), started.elapsed());
        result
    })
}

/// Prints why checks were ignored, for each number of ranks.
fn print_refusals(tiers: &Tiers) {
    for (ranks, tier) in tiers {
        if let Err(reason) = tier {
            println!("ignored, because they need {ranks} ranks: {reason}\n");
        }
    }
}

impl Supervisor {
    /// Prints the output of the checks that passed, if the command line requests it.
    fn print_passed(&self) {
        for (name, output) in self.passed_output.lock().unwrap_or_else(|e| e.into_inner()).iter() {
            println!("---- {name}: output ----\n{output}");
        }
    }

    fn run(&self, check: &Check) -> Result<Completion, Failed> {
        match self.judge(check) {
            Judged::Passed(output, score) => {
                if let Some(score) = score {
                    // The verdict stands even if its score can't be written.
                    if let Err(error) = Scores::keep(check.name(), &score) {
                        eprintln!("can't save the score: {error:#}");
                    }
                }
                if self.show_passed && !output.is_empty() {
                    let mut passed = self.passed_output.lock().unwrap_or_else(|e| e.into_inner());
                    passed.push((check.name().to_owned(), output));
                }
                Ok(Completion::Completed)
            }
            Judged::Failed(message) => Err(Failed::from(message)),
            Judged::Ignored(reason) => Ok(Completion::ignored_with(reason)),
            Judged::Unable(reason) => Err(Failed::from(format!("{UNABLE}{reason}"))),
        }
    }

    /// Judges a check in a fork of the test program that all checks share. If that program can't run it, the reason may be
    /// another check, so a program of its own does.
    fn judge(&self, check: &Check) -> Judged {
        if let Ok(program) = self.program.get_or_init(|| self.start(Serves::Several)) {
            let judged = judge(program, check.name(), self.timeout);
            if !matches!(judged, Judged::Unable(_)) {
                return judged;
            }
        }
        // Another Cargo command may be replacing a library.
        let alone = || match self.start(Serves::One) {
            Ok(program) => judge(&program, check.name(), self.timeout),
            Err(error) => Judged::Unable(format!("{error:#}")),
        };
        try_again(alone, |judged| matches!(judged, Judged::Unable(_)))
    }

    fn start(&self, serves: Serves) -> anyhow::Result<TestProgram> {
        let program = std::env::current_exe().context("can't find this executable")?;
        let mut command = Command::new(program);
        if self.tier == Some(Tier::Virtual) {
            // The program then loads the virtual libraries once, and not in each fork.
            command.env(ASKED, Tier::Virtual.to_string());
        }
        TestProgram::start(command, serves, self.capture)
    }
}

/// The first words about a check that could not be run.
const UNABLE: &str = "the check could not be run, which says nothing about your answer: ";

/// Returns whether the message of a failed check says that it could not be run.
pub fn is_unable(message: &str) -> bool {
    message.starts_with(UNABLE)
}

#[cfg(test)]
mod tests {
    use super::exercises_of_solutions;

    #[test]
    fn only_the_solutions_have_exercises() {
        assert_eq!(exercises_of_solutions(Some("s02_collectives")).as_deref(), Some("m02_collectives"));
        assert_eq!(exercises_of_solutions(Some("m02_collectives")), None);
        assert_eq!(exercises_of_solutions(Some("site")), None);
        assert_eq!(exercises_of_solutions(None), None);
    }
}
