//! Runs the programs under each launcher in each place, and compares what the ranks print.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::bounded::Running;
use crate::interrupt;
use crate::launcher::{Launcher, Session};
use crate::nodes::Nodes;
use crate::orphans::Orphans;
use crate::place::Place;
use crate::state::State;
use crate::training::location;

/// The ranks of a group on one machine. On two machines, there are [`RANKS`].
const RANKS_OF_A_GROUP: usize = 4;
/// The ranks that train.
const RANKS: usize = 8;
/// How long a launcher may take for a program. It takes two seconds; this is for a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// How the rounds ended.
#[derive(Default)]
pub(crate) struct Outcomes {
    pub(crate) passed: usize,
    pub(crate) skipped: usize,
    /// The names of the rounds that failed.
    pub(crate) failed: Vec<String>,
}

/// Runs all rounds of the launchers whose name contains `only`, and prints a line for each. `process` is the program
/// that runs one rank.
///
/// # Errors
/// Fails if a round can't be prepared, or if this program is interrupted.
pub(crate) fn run(only: &str, process: &Path) -> anyhow::Result<Outcomes> {
    let is_wanted = |one: &Launcher| one.name().to_lowercase().contains(&only.to_lowercase());
    let launchers: Vec<Launcher> = Launcher::ALL.into_iter().filter(is_wanted).collect();
    ensure!(!launchers.is_empty(), "no launcher's name contains {only:?}");
    let state = State::create()?;
    let _orphans = Orphans::adopt()?;
    let threads = lines(&trained_by_threads(&state)?);
    ensure!(threads.len() == RANKS, "{RANKS} threads printed {} lines", threads.len());

    let rounds = Rounds { state: &state, process, threads };
    let mut outcomes = Outcomes::default();
    launchers.iter().try_for_each(|&one| rounds.run(one, Place::Here, &mut outcomes))?;
    if let Some(why) = Nodes::obstacle() {
        println!("skipped: two machines; {why}");
        outcomes.skipped += launchers.len();
    } else {
        let nodes = Nodes::create(&state)?;
        launchers.iter().try_for_each(|&one| rounds.run(one, Place::Nodes(&nodes), &mut outcomes))?;
    }
    Ok(outcomes)
}

/// What all rounds have in common.
struct Rounds<'a> {
    state: &'a State,
    process: &'a Path,
    /// What the ranks print that train as threads.
    threads: Vec<String>,
}

impl Rounds<'_> {
    /// Runs a launcher in a place, if it is installed.
    ///
    /// # Errors
    /// Fails only if this program is interrupted.
    fn run(&self, launcher: Launcher, place: Place<'_>, outcomes: &mut Outcomes) -> anyhow::Result<()> {
        let mut name = format!("{} on {}", launcher.name(), place.name());
        let found = match launcher.find() {
            Ok(found) => found,
            Err(why) => {
                println!("skipped: {name}; {why}");
                outcomes.skipped += 1;
                return Ok(());
            }
        };
        if let Some(version) = &found.version {
            name += &format!(", version {version}");
        }
        let start = Instant::now();
        let session = launcher.start(&found, place, self.state);
        let result = session.and_then(|session| self.compare(&session, place));
        interrupt::check()?;
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                println!("passed: {name} ({seconds:.1} s)");
                outcomes.passed += 1;
            }
            Err(error) => {
                println!("failed: {name} ({seconds:.1} s): {error:#}");
                outcomes.failed.push(name);
            }
        }
        Ok(())
    }

    /// Runs both programs, and compares their output.
    fn compare(&self, session: &Session<'_>, place: Place<'_>) -> anyhow::Result<()> {
        let group = if matches!(place, Place::Here) { RANKS_OF_A_GROUP } else { RANKS };
        let meet = place.meet()?;
        let process = self.process.display().to_string();
        let printed = started(session, self.state, group, &[&process, "--meet", &meet, "--timeout", "30"])?;
        same("the processes did not form one group", &grouped(place, group), &lines(&printed))?;

        let own = std::env::current_exe().context("can't find this executable")?.display().to_string();
        let printed = started(session, self.state, RANKS, &[&own, "rank", "--meet", &meet])?;
        let mut expected = [self.threads.clone(), located(place, RANKS)?].concat();
        expected.sort();
        same("the processes did not train as threads do", &expected, &lines(&printed))
    }
}

/// Lets the launcher start the program for each rank. Returns everything that is printed.
fn started(session: &Session<'_>, state: &State, ranks: usize, program: &[&str]) -> anyhow::Result<String> {
    let deadline = Instant::now() + TIME_LIMIT;
    let mut running = Vec::new();
    for (index, mut command) in (session.commands)(ranks)?.into_iter().enumerate() {
        command.args(program);
        running.push(Running::start(command, state.path(&format!("launcher.{index}.log")))?);
    }
    running.into_iter().map(|one| one.finish(deadline)).collect()
}

/// Returns the training lines of threads in one process, which the processes must print, too.
fn trained_by_threads(state: &State) -> anyhow::Result<String> {
    let own = std::env::current_exe().context("can't find this executable")?;
    let mut command = Place::Here.launcher(0, own, RANKS);
    command.args(["threads", &RANKS.to_string()]);
    Running::start(command, state.path("threads.log"))?.finish(Instant::now() + TIME_LIMIT)
}

/// Returns what the ranks of a group print if each has the GPU of its local rank, and all hear each other.
fn grouped(place: Place<'_>, ranks: usize) -> Vec<String> {
    let per_machine = ranks / place.machines();
    let heard: Vec<String> =
        (0..ranks).map(|rank| format!("rank {rank} of {ranks} on GPU {}", rank % per_machine)).collect();
    (0..ranks).map(|rank| format!("rank {rank} (virtual) hears {}", heard.join("; "))).collect()
}

/// Returns what the ranks print about where they are if the first half of them fills the first of two machines.
fn located(place: Place<'_>, ranks: usize) -> anyhow::Result<Vec<String>> {
    let per_machine = ranks / place.machines();
    let hosts = place.hosts()?;
    Ok((0..ranks).map(|rank| location(rank, rank % per_machine, &hosts[rank / per_machine])).collect())
}

/// Returns the lines that ranks print, in order. Launchers and daemons print others.
fn lines(output: &str) -> Vec<String> {
    let mut lines: Vec<String> =
        output.lines().filter(|line| line.starts_with("rank ")).map(str::to_owned).collect();
    lines.sort();
    lines
}

fn same(problem: &str, expected: &[String], printed: &[String]) -> anyhow::Result<()> {
    ensure!(
        expected == printed,
        "{problem}\n  expected\n  {}\n  got\n  {}",
        expected.join("\n  "),
        printed.join("\n  ")
    );
    Ok(())
}
