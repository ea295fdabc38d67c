//! `cargo xtask rehearse`: runs the course on machines whose installed driver and NCCL are the virtual ones.
//!
//! For the course, such a machine has real GPUs: its survey finds `libcuda.so.1` and `libnccl.so.2`, and the tier is
//! real. The installed libraries report no problems, as real ones don't, and NCCL does everything that it may do. This
//! tests what depends on the tier and on the number of GPUs, but not what real GPUs compute.

mod commands;
mod machine;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use course::checks::cargo;
use course::syllabus::Course;

use machine::Machine;

/// The commands of `cargo course` that use GPUs.
const COMMANDS: [&str; 4] =
    ["doctor", "next", "demo 01 --gpus 2", "bench -- --gpus 2 --operation all-gather --to 4K"];

/// How many stages run at a time.
const STAGES_AT_A_TIME: usize = 2;

/// How many checks of a suite run at a time, as on a machine with many cores: much of the time, they wait for NCCL.
const CHECKS_AT_A_TIME: usize = 8;

/// Options of `cargo xtask rehearse`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Rehearse only the machines with these numbers of GPUs
    #[arg(long, value_name = "NUMBER")]
    gpus: Vec<usize>,
    /// How long NCCL takes to create a communicator, in seconds; without this, suites stay quick
    #[arg(long, value_name = "SECONDS")]
    init: Option<f64>,
}

/// The rehearsed machines: the number of GPUs, the value of `VIRTUAL_NCCL`, and the tiers that are asked for. The first is
/// a driver without a GPU.
const MACHINES: [(usize, &str, &[Tier]); 6] = [
    (0, "strict", &[Tier::Unset, Tier::Real]),
    (1, "strict-2.18.5", &[Tier::Unset, Tier::Real]),
    (2, "strict-2.27.5", &[Tier::Unset, Tier::Real]),
    (3, "strict", &[Tier::Unset, Tier::Real]),
    (8, "strict-2.21.5", &[Tier::Unset]),
    (8, "strict", &[Tier::Real]),
];

/// The value of `LAB_TIER` in a rehearsal.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tier {
    Unset,
    Real,
}

/// A machine and the tier that is asked for on it.
struct Stage<'a> {
    root: &'a Path,
    machine: &'a Machine,
    tier: Tier,
}

/// What the name of a module's suite begins with.
const SUITE: &str = "cargo test -p ";

/// The name of a command, and the command.
type Act = (String, Command);

/// Rehearses on each machine, and prints a line for everything that ran.
///
/// # Errors
/// Fails if anything behaves differently than it should on such a machine.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let course = Course::read(root)?;
    let mut build = cargo();
    build.args(["build", "--quiet", "--all-targets", "-p", "course", "-p", "s0*"]).current_dir(root);
    ensure!(build.status().context("can't run cargo")?.success(), "the course can't be built");
    let mut machines = Vec::new();
    for (gpus, nccl, tiers) in MACHINES {
        if options.gpus.is_empty() || options.gpus.contains(&gpus) {
            machines.push((Machine::build(root, gpus, nccl, options.init)?, tiers));
        }
    }
    ensure!(!machines.is_empty(), "there is no such machine; they have {} GPUs", numbers().join(", "));
    let stages =
        machines.iter().flat_map(|(machine, tiers)| tiers.iter().map(|&tier| Stage { root, machine, tier }));
    let (waiting, problems) = (Mutex::new(stages), Mutex::new(Vec::new()));
    let next = || waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
    let rehearse = || -> anyhow::Result<()> {
        while let Some(stage) = next() {
            stage.rehearse(&course, &problems)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..STAGES_AT_A_TIME).map(|_| scope.spawn(rehearse)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a stage panicked"))?)
    })?;
    let problems = problems.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

/// Returns the numbers of GPUs of all machines.
fn numbers() -> Vec<String> {
    let mut numbers: Vec<usize> = MACHINES.iter().map(|(gpus, ..)| *gpus).collect();
    numbers.dedup();
    numbers.iter().map(usize::to_string).collect()
}

impl Stage<'_> {
    fn rehearse(&self, course: &Course, problems: &Mutex<Vec<String>>) -> anyhow::Result<()> {
        let mut suites = Duration::ZERO;
        for (shown, mut command) in self.acts(course)? {
            self.install(&mut command);
            let started = Instant::now();
            let output = command.output().with_context(|| format!("can't run `{shown}`"))?;
            if shown.starts_with(SUITE) {
                suites += started.elapsed();
            }
            let place = format!("{}, {}", self.machine, self.tier);
            let verdict = self.verdict(&output);
            let says = match &verdict {
                Some(wrong) => wrong,
                None if output.status.success() => "succeeded",
                None => "refused, with the reason",
            };
            println!("{place}: `{shown}`: {says} ({:.1} s)", started.elapsed().as_secs_f64());
            if let Some(verdict) = verdict {
                println!("{}", text(&output));
                let mut problems = problems.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                problems.push(format!("{place}: `{shown}`: {verdict}"));
            }
        }
        println!("{}, {}: all suites took {:.1} s", self.machine, self.tier, suites.as_secs_f64());
        Ok(())
    }

    /// Returns everything that runs in this stage: commands of the course, each module's checks, and the commands that the
    /// pages show.
    fn acts(&self, course: &Course) -> anyhow::Result<Vec<Act>> {
        let mut acts: Vec<Act> = COMMANDS
            .iter()
            .map(|arguments| {
                let mut command = cargo();
                command.arg("course").args(arguments.split(' '));
                (format!("cargo course {arguments}"), command)
            })
            .collect();
        for module in &course.modules {
            let package = module.solution_package();
            let mut suite = cargo();
            suite.args(["test", "--quiet", "--no-fail-fast", "--package", &package]);
            suite.env("RUST_TEST_THREADS", CHECKS_AT_A_TIME.to_string());
            acts.push((format!("{SUITE}{package}"), suite));
        }
        for line in commands::of_pages(self.root)? {
            if self.is_as_on_one_gpu(&line) {
                continue;
            }
            let mut shell = Command::new("bash");
            shell.args(["-c", &line]);
            acts.push((line, shell));
        }
        Ok(acts)
    }

    /// Returns whether a command behaves as on the machine with one GPU, where it is rehearsed: it needs more ranks than
    /// there are GPUs, so it runs on virtual GPUs.
    fn is_as_on_one_gpu(&self, line: &str) -> bool {
        let needs_more = commands::ranks(line).is_some_and(|ranks| ranks > self.machine.gpus.max(1));
        self.tier == Tier::Unset && self.machine.gpus != 1 && needs_more
    }

    /// Lets a command run on this stage's machine.
    fn install(&self, command: &mut Command) {
        command.current_dir(self.root);
        self.machine.install(command);
        match self.tier {
            Tier::Unset => command.env_remove("LAB_TIER"),
            Tier::Real => command.env("LAB_TIER", "real"),
        };
    }

    /// Returns what is wrong with a command's end. It succeeds, unless the real tier is required and has too few GPUs;
    /// then it says so. Checks that need more GPUs are ignored, so no check may fail.
    fn verdict(&self, output: &Output) -> Option<String> {
        if output.status.success() {
            return None;
        }
        let text = text(output);
        let reason = match self.machine.gpus {
            0 => "LAB_TIER=real: the NVIDIA driver found no GPU".to_owned(),
            gpus => format!("but this machine has {gpus} (LAB_TIER=real)"),
        };
        let fails_otherwise = ["panicked", "test result: FAILED"].iter().any(|words| text.contains(words));
        match self.tier == Tier::Real && text.contains(&reason) && !fails_otherwise {
            true => None,
            false => Some(format!("failed with {}", output.status)),
        }
    }
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Unset => "LAB_TIER unset",
            Self::Real => "LAB_TIER=real",
        })
    }
}

/// Returns what a command printed, first on its standard output and then on its standard error.
fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}
