//! Runs checks under the flags and the output of `cargo test`, each check in a process of its own.
//!
//! A process each means a fresh driver for each check: no sticky error, primary context or memory figure leaks into
//! the next one, and a check that hangs or crashes ends alone.

mod child;
mod process;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use libtest_mimic::{Arguments, Completion, Conclusion, Failed, FormatSetting, Trial};

use crate::processes;
use crate::tier::{self, Tier, tier_for};

pub(crate) use child::{ORDER, chain, describe, own_check};

/// What a check's process function is: see [`Check::process`].
type Process = Arc<dyn Fn() -> anyhow::Result<String> + Send + Sync>;

/// One check: a name, the number of ranks without which it decides nothing, and what to run.
#[derive(Clone)]
pub struct Check {
    name: String,
    min_ranks: usize,
    function: Arc<dyn Fn() -> anyhow::Result<()> + Send + Sync>,
    process: Option<Process>,
    program: Option<&'static str>,
}

impl Check {
    /// A check that one rank is enough for. Its name starts with the exercise, so that `cargo test` can filter by it:
    /// `devices::each_gpu_has_its_own_context`.
    pub fn new(
        name: impl Into<String>,
        function: impl Fn() -> anyhow::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), min_ranks: 1, function: Arc::new(function), process: None, program: None }
    }

    /// Asks for a tier on which at least so many ranks can run. Where there is none, the check is reported as ignored.
    #[must_use]
    pub fn min_ranks(mut self, ranks: usize) -> Self {
        self.min_ranks = ranks;
        self
    }

    /// What each process does that the check starts with [`crate::processes`]: what it returns, the check is told.
    #[must_use]
    pub fn process(mut self, function: impl Fn() -> anyhow::Result<String> + Send + Sync + 'static) -> Self {
        self.process = Some(Arc::new(function));
        self
    }

    /// Asks for a program that has to be on the `PATH`. Where it isn't, the check is reported as ignored.
    #[must_use]
    pub fn needs_program(mut self, program: &'static str) -> Self {
        self.program = Some(program);
        self
    }

    /// Why it can't run here, apart from the tier.
    fn lacks(&self) -> Option<String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program = self.program?;
        let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
        (!found).then(|| format!("{program} is not installed"))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn ranks(&self) -> usize {
        self.min_ranks
    }

    pub(crate) fn process_function(&self) -> Option<&Process> {
        self.process.as_ref()
    }
}

/// Runs the checks that the command line selects: the `main` of a test target with `harness = false`.
///
/// A check passes when its function returns `Ok` in time. A panic, an `Err`, the end of its process, or more than
/// `LAB_TIMEOUT` seconds (60) make it fail. What the check printed is shown when it fails, or with `--nocapture`.
pub fn run(checks: Vec<Check>) -> ExitCode {
    if let Some(code) = processes::obey(&checks) {
        return code;
    }
    if let Some(order) = child::Order::given() {
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
        ensure!(names.insert(&check.name), "two checks are named `{}`", check.name);
    }
    let tiers = if arguments.list { BTreeMap::new() } else { tiers(&arguments, &checks)? };
    adopt_variables(&mut arguments)?;
    if tiers.values().any(|tier| matches!(tier, Ok(Tier::Real | Tier::Shared))) {
        arguments.test_threads = Some(1);
    }
    let for_people = !arguments.list && arguments.format != Some(FormatSetting::Json);
    if for_people && !tiers.is_empty() {
        println!("\n{}", announcement(&tiers, tier::describe)?);
    }

    let supervisor = Arc::new(Supervisor {
        timeout: timeout(std::env::var_os("LAB_TIMEOUT"))?,
        capture: !arguments.nocapture,
        show_passed: arguments.show_output,
        passed_output: Mutex::default(),
    });
    let trials = checks
        .into_iter()
        .map(|check| {
            let supervisor = Arc::clone(&supervisor);
            let refusal =
                tiers.get(&check.min_ranks).and_then(|tier| tier.clone().err()).or_else(|| check.lacks());
            Trial::ignorable_test(check.name.clone(), move || match refusal {
                Some(reason) => Ok(Completion::ignored_with(reason)),
                None => supervisor.run(&check).map(|()| Completion::Completed),
            })
        })
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);

    if for_people {
        for (name, output) in supervisor.passed_output.lock().unwrap_or_else(|e| e.into_inner()).iter() {
            println!("---- {name}: output ----\n{output}");
        }
        for (ranks, tier) in &tiers {
            if let Err(reason) = tier {
                println!("ignored, because they need {ranks} ranks: {reason}\n");
            }
        }
    }
    Ok(conclusion)
}

/// What a check printed, without the reports of the virtual GPU that its failure tells already. A report is a line and
/// the indented lines below it.
fn untold(failure: &str, output: &str) -> String {
    let told: Vec<&str> = failure.lines().map(str::trim).collect();
    let mut lines = output.lines().peekable();
    let mut kept = Vec::new();
    while let Some(line) = lines.next() {
        let mut report = vec![line];
        if line.starts_with("virtual GPU: ") {
            while let Some(next) = lines.next_if(|next| next.starts_with("  ")) {
                report.push(next);
            }
            if report.iter().all(|line| told.iter().any(|told| told.ends_with(line.trim()))) {
                continue;
            }
        }
        kept.extend(report);
    }
    kept.join("\n")
}

impl Supervisor {
    fn run(&self, check: &Check) -> Result<(), Failed> {
        let ended = process::run(&check.name, self.timeout, self.capture)
            .map_err(|error| Failed::from(format!("the check couldn't be started: {error:#}")))?;
        if let Some(failure) = ended.failure {
            let output = untold(&failure, &ended.output);
            return Err(Failed::from(match output.trim_end() {
                "" => failure,
                output => format!("{failure}\n\nprinted by the check:\n{output}"),
            }));
        }
        if self.show_passed && !ended.output.is_empty() {
            let mut passed = self.passed_output.lock().unwrap_or_else(|e| e.into_inner());
            passed.push((check.name.clone(), ended.output));
        }
        Ok(())
    }
}

/// For each number of ranks that a selected check asks for: the tier, or why there is none.
///
/// Where not even one rank can run, an answer for each check would be a run that says `ok` and checks nothing: so this
/// is an error of the whole run.
fn tiers(arguments: &Arguments, checks: &[Check]) -> anyhow::Result<BTreeMap<usize, Result<Tier, String>>> {
    let asked: BTreeSet<usize> = checks
        .iter()
        .filter(|check| !arguments.is_filtered_out(&Trial::test(check.name.clone(), || Ok(()))))
        .map(|check| check.min_ranks)
        .collect();
    if !asked.is_empty() {
        tier_for(1).context("no check can run here")?;
    }
    Ok(asked
        .into_iter()
        .map(|ranks| (ranks, tier_for(ranks).map_err(|error| format!("{error:#}"))))
        .collect())
}

/// The line that says what the checks run on. `describe` tells it for a number of ranks.
fn announcement(
    tiers: &BTreeMap<usize, Result<Tier, String>>,
    describe: impl Fn(usize) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    let mut first_ranks: Vec<(Tier, usize)> = Vec::new();
    for (&ranks, tier) in tiers {
        if let Ok(tier) = *tier
            && first_ranks.iter().all(|(known, _)| *known != tier)
        {
            first_ranks.push((tier, ranks));
        }
    }
    let mut parts = Vec::new();
    for (_, ranks) in &first_ranks {
        let text = describe(*ranks)?;
        parts.push(match first_ranks.len() {
            1 => text,
            _ => format!("from {ranks} {} on {text}", if *ranks == 1 { "rank" } else { "ranks" }),
        });
    }
    Ok(match parts.as_slice() {
        [] => "tier: none can run the selected checks".to_owned(),
        parts => format!("tier: {}", parts.join("; ")),
    })
}

/// Takes over the environment variables of libtest that `libtest-mimic` doesn't read.
fn adopt_variables(arguments: &mut Arguments) -> anyhow::Result<()> {
    arguments.nocapture |= std::env::var_os("RUST_TEST_NOCAPTURE").is_some_and(|value| value != "0");
    if arguments.test_threads.is_none()
        && let Some(value) = std::env::var_os("RUST_TEST_THREADS")
    {
        match value.to_str().and_then(|text| text.parse().ok()) {
            Some(threads) if threads > 0 => arguments.test_threads = Some(threads),
            _ => bail!("RUST_TEST_THREADS={}: a whole number above 0 was expected", value.display()),
        }
    }
    Ok(())
}

/// Reads `LAB_TIMEOUT`: whole seconds, at least 1.
fn timeout(value: Option<std::ffi::OsString>) -> anyhow::Result<Duration> {
    const DEFAULT_SECONDS: u64 = 60;
    let Some(value) = value else { return Ok(Duration::from_secs(DEFAULT_SECONDS)) };
    match value.to_str().and_then(|text| text.parse().ok()) {
        Some(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        _ => bail!(
            "LAB_TIMEOUT={}: whole seconds above 0 were expected, such as {DEFAULT_SECONDS}",
            value.display()
        ),
    }
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
        assert_eq!(untold(failure, &output), format!("before\n{other}\nafter"));
    }

    #[test]
    fn timeout_is_whole_seconds_above_zero() {
        assert_eq!(timeout(None).unwrap(), Duration::from_secs(60));
        assert_eq!(timeout(Some("5".into())).unwrap(), Duration::from_secs(5));
        for bad in ["0", "-1", "1.5", "", "soon"] {
            let error = timeout(Some(bad.into())).unwrap_err().to_string();
            assert!(error.starts_with(&format!("LAB_TIMEOUT={bad}: ")), "{error}");
        }
    }

    #[test]
    fn the_announcement_names_each_tier_that_will_run() {
        let tiers = BTreeMap::from([
            (1, Ok(Tier::Real)),
            (2, Ok(Tier::Virtual)),
            (4, Ok(Tier::Virtual)),
            (9, Err("there are 8 GPUs".to_owned())),
        ]);
        let line = announcement(&tiers, |ranks| Ok(format!("<{ranks}>"))).unwrap();
        assert_eq!(line, "tier: from 1 rank on <1>; from 2 ranks on <2>");
        let one = BTreeMap::from([(2, Ok(Tier::Virtual)), (4, Ok(Tier::Virtual))]);
        assert_eq!(announcement(&one, |_| Ok("virtual".to_owned())).unwrap(), "tier: virtual");
    }
}
