//! `cargo xtask bench-student`: measures how long a student waits from saving a file to the verdict.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use course::answers;
use course::checks::cargo;
use course::syllabus::{Course, Exercise};

/// Two exercises from each module, with short and long checks, with and without processes.
const EXERCISES: [&str; 10] = [
    "init/devices",
    "init/id_exchange",
    "collectives/all_reduce",
    "collectives/bandwidth",
    "grouping/group",
    "grouping/recover",
    "multi_gpu/data_parallel",
    "multi_gpu/hybrid",
    "overlap/interleave",
    "overlap/pipeline_parallel",
];

/// Options of `cargo xtask bench-student`.
#[derive(Args)]
pub(crate) struct Options {
    /// Other checkouts of the course, measured in turn with this one
    folders: Vec<PathBuf>,
    /// How many times each exercise is saved and checked
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// A clone of a checkout's last commit, completely built and with every exercise solved.
struct Clone {
    folder: PathBuf,
    course: Course,
}

/// Measures, and prints a table of the median times in seconds, over the rounds, for each exercise and checkout.
///
/// # Errors
/// Fails if a checkout can't be cloned or built, or if one of its solutions is wrong.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let checkouts: Vec<&Path> =
        std::iter::once(root).chain(options.folders.iter().map(PathBuf::as_path)).collect();
    let mut clones = Vec::new();
    for (number, checkout) in checkouts.iter().enumerate() {
        let folder = root.join("target/bench-student").join(number.to_string());
        clones.push(Clone::new(checkout, folder).with_context(|| checkout.display().to_string())?);
    }
    for (number, checkout) in checkouts.iter().enumerate() {
        println!("{number}: {}", checkout.display());
    }
    let mut medians = vec![Vec::new(); clones.len()];
    for id in EXERCISES {
        let mut times = vec![Vec::new(); clones.len()];
        for round in 0..=options.rounds {
            for (clone, times) in clones.iter().zip(&mut times) {
                let time = clone.save_and_check(id, round)?;
                // The first round only warms up the caches.
                if round > 0 {
                    times.push(time);
                }
            }
        }
        for (of_clone, times) in medians.iter_mut().zip(times) {
            of_clone.push(median(times));
        }
        print_row(id, medians.iter().filter_map(|of_clone| of_clone.last().copied()));
    }
    print_row("median", medians.iter().map(|of_clone| median(of_clone.clone())));
    print_row("longest", medians.iter().map(|of_clone| of_clone.iter().copied().max().unwrap_or_default()));
    Ok(())
}

/// Prints a row of the table: the seconds in each checkout, and their ratios to the times in the first checkout.
fn print_row(name: &str, times: impl Iterator<Item = Duration>) {
    let times: Vec<f64> = times.map(|time| time.as_secs_f64()).collect();
    let cells = times.iter().map(|time| format!("  {time:5.2} s ({:.2})", time / times[0]));
    println!("{name:28}{}", cells.collect::<String>());
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

impl Clone {
    fn new(checkout: &Path, folder: PathBuf) -> anyhow::Result<Self> {
        if !folder.join(".git").exists() {
            done(Command::new("git").args(["clone", "--quiet"]).arg(checkout).arg(&folder))?;
        }
        let git = |arguments: &[&str]| done(Command::new("git").arg("-C").arg(&folder).args(arguments));
        git(&["fetch", "--quiet", "origin", "HEAD"])?;
        git(&["checkout", "--quiet", "--force", "FETCH_HEAD"])?;
        let course = Course::read(&folder)?;
        for exercise in &course.exercises {
            let solved = answers::solution(&folder, exercise)?;
            fs::write(exercise.starter(&folder), solved).with_context(|| exercise.id.clone())?;
        }
        done(clone_cargo(&folder).args(["build", "--quiet", "--package", "course"]))?;
        Ok(Self { folder, course })
    }

    /// Saves a solved exercise with a new comment, and waits for the verdict.
    fn save_and_check(&self, id: &str, round: u32) -> anyhow::Result<Duration> {
        let exercise = self.course.exercise(id)?;
        self.save(exercise, round)?;
        // Cargo does not run here, because `watch` is already running when a student saves.
        let mut course = Command::new(self.folder.join("target/debug/course"));
        course.args(["run", id]).current_dir(&self.folder).env_remove("CARGO_TARGET_DIR");
        let started = Instant::now();
        done(&mut course)?;
        Ok(started.elapsed())
    }

    fn save(&self, exercise: &Exercise, round: u32) -> anyhow::Result<()> {
        let solved = answers::solution(&self.folder, exercise)?;
        let path = exercise.starter(&self.folder);
        let text = format!("{solved}\n// Saved for the {round}. time, in {}.\n", std::process::id());
        fs::write(&path, text).with_context(|| path.display().to_string())
    }
}

/// Returns the Cargo command for a clone. It builds in the clone's own folder.
fn clone_cargo(folder: &Path) -> Command {
    let mut command = cargo();
    command.current_dir(folder).env_remove("CARGO_TARGET_DIR");
    command
}

/// Runs a command that must succeed.
fn done(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("can't run {command:?}"))?;
    let said =
        || format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{command:?} failed:\n{}", said());
    Ok(())
}
