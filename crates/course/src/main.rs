//! `cargo course`: where you are, and how to go on.

mod demo;
mod overview;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use course::syllabus::Course;

/// Learn multi-GPU programming with NCCL in Rust, on any machine.
///
/// Without a command: where you are, which GPUs there are, and what is next.
#[derive(Parser)]
#[command(
    name = "cargo course",
    bin_name = "cargo course",
    after_help = "Example: cargo course hint init/devices"
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Show the first hint for an exercise, or the first N
    #[command(after_help = "Example: cargo course hint init/devices 2")]
    Hint {
        /// The exercise, such as init/devices; without it, the next one
        id: Option<String>,
        /// How many hints: each is clearer than the one before
        #[arg(default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
        count: u16,
    },
    /// List every exercise with its state, or a path through them with its times
    #[command(after_help = "Example: cargo course list --path half-day")]
    List {
        /// The path, such as half-day
        #[arg(long)]
        path: Option<String>,
    },
    /// Run a module's program, solved: what you are about to build
    #[command(after_help = "Example: cargo course demo 04 --gpus 4")]
    Demo {
        /// The module: its number, its name or its folder
        module: String,
        /// Passed on to the program; --help shows what it takes
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("."));
    let course = Course::read(root)?;
    let text = match &arguments.command {
        None => overview::show(root, &course)?,
        Some(Command::List { path: None }) => overview::list(root, &course)?,
        Some(Command::List { path: Some(path) }) => overview::path(root, &course, path)?,
        Some(Command::Hint { id, count }) => {
            overview::hint(root, &course, id.as_deref(), usize::from(*count))?
        }
        Some(Command::Demo { module, arguments }) => return demo::run(root, &course, module, arguments),
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // A reader such as `head` has enough.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("can't print"),
        _ => Ok(ExitCode::SUCCESS),
    }
}
