//! The `main` of a test target: selects checks, runs each in a process of its own, and prints how they went.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::ensure;
use libtest_mimic::{Arguments, Completion, Conclusion, Failed, FormatSetting, Trial};

use super::definition::Check;
use super::order::Order;
use super::tiers::{self, Tiers, announcement};
use super::{child, process, processes, variables};
use crate::tier::Tier;

/// Runs the checks that the command line selects: the `main` of a test target with `harness = false`.
///
/// A check passes when its function returns `Ok` in time. A panic, an `Err`, the end of its process, or more than
/// `LAB_TIMEOUT` seconds (60) make it fail. What the check printed is shown when it fails, or with `--nocapture`.
pub fn run(checks: Vec<Check>) -> ExitCode {
    if let Some(code) = processes::obey(&checks) {
        return code;
    }
    if let Some(order) = Order::given() {
        return child::run(&checks, &order);
    }
    match supervise(Arguments::from_args(), checks) {
        Ok(conclusion) => conclusion.exit_code(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// What the children and their outcomes share.
struct Supervisor {
    timeout: Duration,
    capture: bool,
    show_passed: bool,
    passed_output: Mutex<Vec<(String, String)>>,
}

fn supervise(mut arguments: Arguments, checks: Vec<Check>) -> anyhow::Result<Conclusion> {
    ensure!(!checks.is_empty(), "this test target has no checks");
    let mut names = BTreeSet::new();
    for check in &checks {
        ensure!(names.insert(check.name()), "two checks are named `{}`", check.name());
    }
    let tiers = if arguments.list { Tiers::new() } else { tiers::selected(&arguments, &checks)? };
    variables::adopt(&mut arguments)?;
    if tiers.values().any(|tier| matches!(tier, Ok(Tier::Real | Tier::Shared))) {
        arguments.test_threads = Some(1);
    }
    let for_people = !arguments.list && arguments.format != Some(FormatSetting::Json);
    if for_people && !tiers.is_empty() {
        println!("\n{}", announcement(&tiers)?);
    }

    let supervisor = Arc::new(Supervisor {
        timeout: variables::timeout(std::env::var_os("LAB_TIMEOUT"))?,
        capture: !arguments.nocapture,
        show_passed: arguments.show_output,
        passed_output: Mutex::default(),
    });
    let trials = checks.into_iter().map(|check| trial(&supervisor, check, &tiers)).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);

    if for_people {
        supervisor.print_passed();
        print_refusals(&tiers);
    }
    Ok(conclusion)
}

/// A check as the harness runs it; ignored where it can't run here.
fn trial(supervisor: &Arc<Supervisor>, check: Check, tiers: &Tiers) -> Trial {
    let supervisor = Arc::clone(supervisor);
    let refusal = tiers.get(&check.ranks()).and_then(|tier| tier.clone().err()).or_else(|| check.lacks());
    Trial::ignorable_test(check.name().to_owned(), move || match refusal {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => supervisor.run(&check).map(|()| Completion::Completed),
    })
}

/// Prints why checks of some numbers of ranks were ignored.
fn print_refusals(tiers: &Tiers) {
    for (ranks, tier) in tiers {
        if let Err(reason) = tier {
            println!("ignored, because they need {ranks} ranks: {reason}\n");
        }
    }
}

impl Supervisor {
    /// Prints what the checks that passed printed, where that was asked for.
    fn print_passed(&self) {
        for (name, output) in self.passed_output.lock().unwrap_or_else(|e| e.into_inner()).iter() {
            println!("---- {name}: output ----\n{output}");
        }
    }

    fn run(&self, check: &Check) -> Result<(), Failed> {
        let ended = process::run(check.name(), self.timeout, self.capture)
            .map_err(|error| Failed::from(format!("the check couldn't be started: {error:#}")))?;
        if let Some(failure) = ended.failure {
            let output = unreported(&failure, &ended.output);
            return Err(Failed::from(match output.trim_end() {
                "" => failure,
                output => format!("{failure}\n\nprinted by the check:\n{output}"),
            }));
        }
        if self.show_passed && !ended.output.is_empty() {
            let mut passed = self.passed_output.lock().unwrap_or_else(|e| e.into_inner());
            passed.push((check.name().to_owned(), ended.output));
        }
        Ok(())
    }
}

/// What a check printed, without the reports of the virtual GPU that its failure repeats already. A report is a line and
/// the indented lines below it.
fn unreported(failure: &str, output: &str) -> String {
    let reported: Vec<&str> = failure.lines().map(str::trim).collect();
    let mut lines = output.lines().peekable();
    let mut kept = Vec::new();
    while let Some(line) = lines.next() {
        let mut report = vec![line];
        if line.starts_with("virtual GPU: ") {
            while let Some(next) = lines.next_if(|next| next.starts_with("  ")) {
                report.push(next);
            }
            if report.iter().all(|line| reported.iter().any(|reported| reported.ends_with(line.trim()))) {
                continue;
            }
        }
        kept.extend(report);
    }
    kept.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_the_failure_tells_is_not_printed_again() {
        let failure = "rank 1: CUDA_ERROR_LAUNCH_FAILED: virtual GPU: data race on GPU 1\n    bytes 0..4\n    help: wait";
        let report = "virtual GPU: data race on GPU 1\n  bytes 0..4\n  help: wait";
        let other = report.replace("GPU 1", "GPU 2");
        let output = format!("before\n{report}\n{other}\nafter");
        assert_eq!(unreported(failure, &output), format!("before\n{other}\nafter"));
    }
}
