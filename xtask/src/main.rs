//! Tasks for authors and CI. Students don't need them.

mod bench_student;
mod check;
mod kernels;
mod lessons;
mod mistake;
mod rehearse;
mod soak;
mod starters;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::{Parser, Subcommand};
use course::checks::cargo;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measure how long a student waits from a save to the verdict, in ten exercises
    BenchStudent(bench_student::Options),
    /// Build the book
    #[command(disable_help_flag = true)]
    Book(Passed),
    /// Check that starters, solutions, mistakes, kernels, and course.toml are consistent
    Check(check::Options),
    /// Record what is left of the training jobs that `scale/postmortem` explains; with --check, compare
    #[command(disable_help_flag = true)]
    Incidents(Passed),
    /// Compile crates/lab/kernels/*.cu to PTX, with NVRTC 12.0
    Kernels(kernels::Options),
    /// Run ranks as processes under Open MPI, MPICH, Slurm, and torchrun's variables, on one machine and on two
    #[command(disable_help_flag = true)]
    Launchers(Passed),
    /// Check the form of the lessons, what they introduce, and that they don't give away answers
    Lessons,
    /// Save an edit of a solution as a mistake, or update saved mistakes
    #[command(subcommand)]
    Mistake(mistake::Task),
    /// Change the answers one detail at a time, and check that the checks detect it; needs cargo-mutants
    Mutants(check::mutants::Options),
    /// Compare the virtual GPU with NVIDIA's own libraries, compilers, and headers, from the package registries
    #[command(disable_help_flag = true)]
    Nvidia(Passed),
    /// Run the programs whose output the pages show, and record what they print
    #[command(disable_help_flag = true)]
    Output(Passed),
    /// Draw the pictures that the pages show, from data that programs write
    #[command(disable_help_flag = true)]
    Pictures(Passed),
    /// Run the course on machines whose installed driver and NCCL are the virtual ones, with 0 to 8 GPUs
    Rehearse(rehearse::Options),
    /// Measure the scores of the course's own designs, which `cargo course score` shows
    Scores(check::scores::Options),
    /// Check what students see in `cargo course watch`; with SNAPSHOTS=overwrite, store the current screens
    Sessions,
    /// Build the slides
    #[command(disable_help_flag = true)]
    Slides(Passed),
    /// Run `cargo test` 200 times on a busy machine, and look for flakes and for what stays behind; takes hours
    Soak(soak::Options),
    /// Generate the exercises in modules/ from solutions/; answers in modules/ will be lost
    Starters(starters::Options),
}

/// Arguments that are passed on to another program.
#[derive(clap::Args)]
struct Passed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            anstream::eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask is in the workspace")?;
    match &arguments.task {
        Task::BenchStudent(options) => bench_student::run(root, options),
        Task::Book(passed) => package(root, "site", Some("book"), passed),
        Task::Check(options) => check::run(root, options),
        Task::Incidents(passed) => package(root, "incidents", None, passed),
        Task::Kernels(options) => kernels::run(options),
        Task::Launchers(passed) => package(root, "launchers", None, passed),
        Task::Lessons => lessons::run(root),
        Task::Mistake(task) => mistake::run(root, task),
        Task::Mutants(options) => check::mutants::run(root, options),
        Task::Nvidia(passed) => package(root, "nvidia", None, passed),
        Task::Output(passed) => package(root, "site", Some("output"), passed),
        Task::Pictures(passed) => package(root, "site", Some("pictures"), passed),
        Task::Rehearse(options) => rehearse::run(root, options),
        Task::Scores(options) => check::scores::run(root, options),
        Task::Sessions => {
            let problems = check::sessions::check(root)?;
            ensure!(problems.is_empty(), "{}", problems.join("\n"));
            println!("{}", check::sessions::summary());
            Ok(())
        }
        Task::Slides(passed) => package(root, "site", Some("slides"), passed),
        Task::Soak(options) => soak::run(root, options),
        Task::Starters(options) => starters::run(root, options),
    }
}

/// Runs the program of another package. These are separate, so that the other tasks don't have to wait for what they
/// need to build.
fn package(root: &Path, package: &str, what: Option<&str>, passed: &Passed) -> anyhow::Result<()> {
    let status = cargo()
        .args(["run", "--quiet", "--package", package, "--"])
        .args(what)
        .args(&passed.arguments)
        .current_dir(root)
        .status()
        .context("can't run cargo")?;
    ensure!(status.success(), "{} failed", what.unwrap_or(package));
    Ok(())
}
