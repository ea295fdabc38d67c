//! `cargo course teach`: reports on a class, shows known mistakes, and archives the course without its solutions.

mod archive;
mod mistakes;
mod report;

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use course::checks::cargo;
use course::syllabus::Course;

use crate::session::print;

/// A command for instructors.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Print a row for each student in a class
    #[command(
        after_help = "Example: cargo course teach report class/   (ann.json, bob.json: cargo course verify --keep-going --json)"
    )]
    Report {
        /// Count only the exercises of this path, such as half-day
        #[arg(long, value_name = "NAME")]
        path: Option<String>,
        /// Files that `cargo course verify --keep-going --json` wrote, grades.json from `cargo course teach grade`, or folders with such files
        #[arg(required = true)]
        places: Vec<PathBuf>,
    },
    /// Grade submissions, each exercise alone in a sandbox
    #[command(
        disable_help_flag = true,
        after_help = "Example: cargo course teach grade class/ --to grades   (--help shows all options)"
    )]
    Grade {
        /// The submissions and options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// List known mistakes, each with its correction, what to ask, and what the checks report
    #[command(after_help = "Example: cargo course teach mistakes --path half-day")]
    Mistakes {
        /// The exercise, such as init/devices; by default, all exercises
        #[arg(conflicts_with = "path")]
        id: Option<String>,
        /// Only the exercises of this path, such as half-day
        #[arg(long)]
        path: Option<String>,
    },
    /// Write the course without its solutions, to hand out
    #[command(after_help = "Example: cargo course teach archive --vendor ncclings.tar.gz")]
    Archive {
        #[command(flatten)]
        extras: archive::Extras,
        /// The file to write
        file: PathBuf,
    },
}

/// Runs a command.
pub(crate) fn run(root: &Path, course: &Course, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Report { path, places } => return report::run(root, course, path.as_deref(), places),
        Command::Grade { arguments } => match grade(root, arguments)? {},
        Command::Mistakes { id, path } => {
            print(&mistakes::show(root, course, id.as_deref(), path.as_deref())?)?;
        }
        Command::Archive { extras, file } => print(&archive::write(root, course, file, extras)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Builds the grader, a program of its own, so that students need not build it. It then takes the place of this process.
fn grade(root: &Path, arguments: &[OsString]) -> anyhow::Result<Infallible> {
    // The current folder stays, because it is where relative paths start.
    let mut run = cargo();
    run.args(["run", "--quiet", "--package", "grade", "--manifest-path"]).arg(root.join("Cargo.toml"));
    Err(run.arg("--").args(arguments).exec()).context("can't run cargo")
}
