//! `cargo course teach`: reports on a class, shows known mistakes, and archives the course without its solutions.

mod archive;
mod mistakes;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

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
        /// Files that `cargo course verify --keep-going --json` wrote, grades.json from `cargo run -p grade`, or folders with such files
        #[arg(required = true)]
        places: Vec<PathBuf>,
    },
    /// Show the known mistakes for an exercise, and what the checks report about each
    #[command(after_help = "Example: cargo course teach mistakes init/devices")]
    Mistakes {
        /// The exercise, such as init/devices
        id: String,
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
        Command::Report { places } => return report::run(root, course, places),
        Command::Mistakes { id } => print(&mistakes::show(root, course, id)?)?,
        Command::Archive { extras, file } => print(&archive::write(root, course, file, extras)?)?,
    }
    Ok(ExitCode::SUCCESS)
}
