//! The `main` of a test target: selects checks, runs each in its own process, and prints the results.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use anyhow::ensure;
use libtest_mimic::{Arguments, Completion, Conclusion, Failed, FormatSetting, Trial};

use super::definition::Check;
use super::function::with_function;
use super::order::Order;
use super::tiers::{self, Tiers, announcement};
use super::{child, process, processes, variables};
use crate::explain::{REPORT, repeats, without_substitutes};
use crate::tier::{Tier, processes_at_a_time};

/// Runs the checks that the command line selects: the `main` of a test target with `harness = false`.
///
/// A check passes if its function returns `Ok` in time. It fails on a panic, on an `Err`, if its process ends, or if it
/// takes more than `LAB_TIMEOUT` seconds (60 by default). The output of a check is shown if it fails, or with
/// `--nocapture`.
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

/// The state that the children and their results share.
struct Supervisor {
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
        arguments.test_threads = Some(processes_at_a_time());
    }
    let for_people = !arguments.list && arguments.format != Some(FormatSetting::Json);
    if for_people && !tiers.is_empty() {
        println!("\n{}", announcement(&tiers)?);
    }

    let supervisor = Arc::new(Supervisor {
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
    }
    Ok(conclusion)
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
        let (real_gpus, is_alone) = (&supervisor.real_gpus, check.needs_real_gpus_alone());
        let alone = (is_real && is_alone).then(|| real_gpus.write().unwrap_or_else(PoisonError::into_inner));
        let shared = (is_real && !is_alone).then(|| real_gpus.read().unwrap_or_else(PoisonError::into_inner));
        let result = supervisor.run(&check);
        drop((alone, shared));
        result.map(|()| Completion::Completed)
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

    fn run(&self, check: &Check) -> Result<(), Failed> {
        let ended = process::run(check.name(), self.timeout, self.capture)
            .map_err(|error| Failed::from(format!("the check couldn't be started: {error:#}")))?;
        if let Some(failure) = ended.failure {
            let printed = printed_after(&failure, &ended.output);
            let failure = without_substitutes(&with_function(check.functions(), &failure));
            return Err(Failed::from(failure + &printed));
        }
        if self.show_passed && !ended.output.is_empty() {
            let mut passed = self.passed_output.lock().unwrap_or_else(|e| e.into_inner());
            passed.push((check.name().to_owned(), ended.output));
        }
        Ok(())
    }
}

/// Returns what to show after a check's failure: the program's own output, and those virtual GPU reports that may show
/// the cause. Returns an empty string if there is nothing to add.
///
/// A report that the failure repeats is left out, and so are the reports after it, because they are consequences. A
/// report about a release is also left out, because a failing check drops its buffers while they are in use.
fn printed_after(failure: &str, output: &str) -> String {
    // Ranks that fail alike are reported once, although their numbers and lengths differ.
    let without_digits = |line: &str| line.trim().replace(|next: char| next.is_ascii_digit(), "");
    let reported: Vec<String> = failure.lines().map(without_digits).collect();
    let is_repeated = |report: &[&str]| {
        let mut lines = report.iter().map(|line| without_digits(line));
        let races = report.first().is_some_and(|line| line.contains("data race "));
        let place = report.iter().find_map(|line| line.split_once("--> "));
        // If other ranks have the same race, the failure may contain only its location.
        let has_place = |(_, place): (&str, &str)| failure.contains(place) && failure.contains("data race ");
        races && place.is_some_and(has_place)
            || lines.all(|line| reported.iter().any(|reported| repeats(reported, &line)))
    };
    let mut lines = output.lines().peekable();
    let (mut own, mut reports) = (Vec::new(), Vec::new());
    let mut is_consequence = false;
    while let Some(line) = lines.next() {
        // A report is a line and the indented lines below it.
        if !line.starts_with(REPORT) {
            own.push(line);
            continue;
        }
        let mut report = vec![line];
        while let Some(next) = lines.next_if(|next| next.starts_with("  ")) {
            report.push(next);
        }
        is_consequence |= is_repeated(&report);
        if !is_consequence && !is_release(&report) {
            reports.extend(report);
        }
    }
    let own = own.join("\n");
    let own = own.trim_end();
    let mut text = String::new();
    if !own.is_empty() || !reports.is_empty() {
        text.push_str("\n\nprinted by the check:");
    }
    if !reports.is_empty() {
        text += &format!(
            "\n(the virtual GPU also reported this, perhaps as a consequence)\n{}",
            reports.join("\n")
        );
    }
    if !own.is_empty() {
        text += &format!("\n{own}");
    }
    text
}

/// Returns whether a report is about something that the check itself released too early, or never released.
fn is_release(report: &[&str]) -> bool {
    let mut is_of_check = false;
    report.iter().any(|line| {
        if let Some((_, place)) = line.split_once("--> ").or_else(|| line.split_once("::: ")) {
            is_of_check = place.starts_with("tests/");
        }
        let is_released =
            ["^ freed ", "ncclCommAbort (dropping", "- freed "].iter().any(|words| line.contains(words));
        is_of_check && is_released || line.ends_with("when the program ends")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RACE: &str = "virtual GPU: data race on GPU 1\n  bytes 0..4\n  help: wait";

    #[test]
    fn reports_from_the_one_in_the_failure_on_are_not_printed_again() {
        let failure = "rank 1: data race on GPU 1 (CUDA_ERROR_LAUNCH_FAILED from the virtual GPU)\n    bytes 0..4\n    help: wait";
        let other = RACE.replace("wait", "enqueue");
        let output = format!("before\n{RACE}\n{other}\nafter");
        assert_eq!(printed_after(failure, &output), "\n\nprinted by the check:\nbefore\nafter");
        assert_eq!(printed_after(failure, &format!("{RACE}\n{other}\n")), "");
    }

    #[test]
    fn a_report_before_the_one_in_the_failure_may_be_its_cause() {
        let failure = "rank 0: virtual GPU: data race on GPU 1\n  bytes 0..4\n  help: wait";
        let other = RACE.replace("wait", "enqueue");
        let printed = printed_after(failure, &format!("{other}\n{RACE}\n"));
        assert!(printed.contains("perhaps as a consequence)\nvirtual GPU: data race"), "{printed}");
        assert!(printed.contains("help: enqueue") && !printed.contains("help: wait"), "{printed}");
    }

    #[test]
    fn a_release_by_a_failed_check_is_not_the_cause() {
        let freed = "virtual GPU: data race on GPU 0\n     ::: tests/a.rs:1:1\n  1 |     }\n    |     ^ freed on the compute stream\n";
        assert_eq!(printed_after("`run` waits on the host", freed), "");
        let by_the_exercise = freed.replace("tests/", "modules/");
        assert!(
            printed_after("the buffer is wrong", &by_the_exercise).contains("freed on the compute stream")
        );
    }
}
