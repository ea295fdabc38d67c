//! `cargo course`: where you are, and how to go on.

mod bench;
mod class;
mod demo;
mod doctor;
mod exec;
mod overlap;
mod overview;
mod session;
mod watch;
mod work;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use course::syllabus::Course;

use crate::session::{Session, print};

/// Learn multi-GPU programming with NCCL in Rust, on any machine.
///
/// Without a command: where you are, which GPUs there are, and what is next; in a terminal, it stays and checks what you
/// save.
#[derive(Parser)]
#[command(
    name = "cargo course",
    bin_name = "cargo course",
    after_help = "Example: cargo course run init/devices"
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Check the current exercise each time you save, until you quit
    #[command(after_help = "Example: cargo course watch init/devices")]
    Watch {
        /// The exercise to start with, such as init/devices; without it, the first that is not right
        id: Option<String>,
    },
    /// List every exercise with its state, or a path through them with its times
    #[command(after_help = "Example: cargo course list --path half-day")]
    List {
        /// The path, such as half-day
        #[arg(long)]
        path: Option<String>,
    },
    /// Check one exercise
    #[command(after_help = "Example: cargo course run init/devices")]
    Run {
        /// The exercise, such as init/devices; without it, the first that is not right
        id: Option<String>,
    },
    /// Show one more hint for an exercise, or the first N
    #[command(after_help = "Example: cargo course hint init/devices")]
    Hint {
        /// The exercise, such as init/devices; without it, the first that is not right
        id: Option<String>,
        /// How many hints: each is clearer than the one before
        #[arg(value_parser = clap::value_parser!(u16).range(1..))]
        count: Option<u16>,
    },
    /// Check all exercises of a module
    #[command(after_help = "Example: cargo course test 02")]
    Test {
        /// The module: its number, its name or its folder
        module: String,
    },
    /// Check all exercises, up to the first module in which one is not right
    #[command(after_help = "Example: cargo course verify --keep-going --json")]
    Verify {
        /// Check the modules behind it too
        #[arg(long)]
        keep_going: bool,
        /// Print the states as JSON, for a program
        #[arg(long)]
        json: bool,
    },
    /// Start an exercise anew; your file is kept
    #[command(after_help = "Example: cargo course reset init/devices")]
    Reset {
        /// The exercise, such as init/devices
        id: String,
        /// Don't ask
        #[arg(long)]
        yes: bool,
    },
    /// Show how your answer differs from the solution, once it is right
    #[command(after_help = "Example: cargo course diff init/devices")]
    Diff {
        /// The exercise, such as init/devices
        id: String,
        /// Show it before, too
        #[arg(long)]
        spoil: bool,
    },
    /// Show the first exercise that is not right
    #[command(after_help = "Example: cargo course next")]
    Next,
    /// Put the solutions of all earlier modules in place; your files are kept
    #[command(after_help = "Example: cargo course catch-up 04")]
    CatchUp {
        /// The module that you want to begin: its number, its name or its folder
        module: String,
        /// Don't ask
        #[arg(long)]
        yes: bool,
    },
    /// Look at this machine: what is there, what will run on it, what stands in the way
    #[command(after_help = "Example: cargo course doctor --workshop")]
    Doctor {
        /// Print the findings as JSON, for a program
        #[arg(long)]
        json: bool,
        /// Before a workshop: also build from nothing without a network, look at the disk, and write one file to send in
        #[arg(long)]
        workshop: bool,
    },
    /// Measure a collective: nccl-tests' table, as a file and a picture too
    #[command(
        after_help = "Example: cargo course bench --svg all-gather.svg -- --gpus 4 --operation all-gather --to 16M"
    )]
    Bench {
        #[command(flatten)]
        files: bench::Files,
        /// Passed on to module 02's program: operation, types, sizes, ranks; `-- --help` shows all
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Compare two tables that were written: of bench, or of module 05's ladder
    #[command(after_help = "Example: cargo course compare before.csv after.csv")]
    Compare {
        /// The first table
        one: PathBuf,
        /// The second table
        other: PathBuf,
    },
    /// Work out what hiding communication behind compute can bring
    #[command(after_help = "Example: cargo course overlap --compute 50 --comm 10 --efficiency 0.8")]
    Overlap {
        /// Compute of one step, in ms
        #[arg(long, value_name = "MS", allow_negative_numbers = true)]
        compute: f64,
        /// Communication of one step, in ms
        #[arg(long, value_name = "MS", allow_negative_numbers = true)]
        comm: f64,
        /// How much of what can overlap does, from 0 to 1
        #[arg(long, value_name = "ETA", default_value_t = 1.0, allow_negative_numbers = true)]
        efficiency: f64,
    },
    /// Run a program that calls CUDA's driver API, and NCCL, on the virtual GPU, unchanged
    ///
    /// cudarc calls that API. A program of the CUDA runtime (what nvcc builds, PyTorch) asks a driver for more, and ends with an error.
    #[command(after_help = "Example: cargo course exec -- ./target/release/my-program --steps 10")]
    Exec {
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<String>,
    },
    /// For instructors: a row for each student of a class
    #[command(
        after_help = "Example: cargo course report class/   (ann.json, bob.json: cargo course verify --keep-going --json)"
    )]
    Report {
        /// Files that `cargo course verify --keep-going --json` wrote, or folders of them
        #[arg(required = true)]
        places: Vec<PathBuf>,
    },
    /// For instructors: the known mistakes of an exercise, each as a diff, and what its check says
    #[command(after_help = "Example: cargo course mistakes init/devices")]
    Mistakes {
        /// The exercise, such as init/devices
        id: String,
    },
    /// For instructors: the course without its solutions, to hand out
    #[command(after_help = "Example: cargo course starter-archive ncclings.tar.gz")]
    StarterArchive {
        /// The file to write
        file: PathBuf,
    },
    /// Run a module's program, solved: what you are about to build
    #[command(after_help = "Example: cargo course demo 04 --gpus 4")]
    Demo {
        /// The module: its number, its name or its folder
        module: String,
        /// Passed on to the program; `-- --help` shows what it takes
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

/// The course that the current folder is in; elsewhere, the one that this program was built in.
fn root() -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir().context("there is no current folder")?;
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().chain(own.ancestors()).find(|folder| folder.join("course.toml").is_file());
    root.map(Path::to_owned).with_context(|| format!("no course.toml lies in {} or above it", here.display()))
}

fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let root = root()?;
    let root = root.as_path();
    let course = Course::read(root)?;
    let mut session = Session::new(root, &course)?;
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let text = match &arguments.command {
        None if is_terminal => return watch::run(session, None),
        Some(Command::Watch { id }) if is_terminal => return watch::run(session, id.as_deref()),
        None | Some(Command::Watch { .. }) => overview::show(&session)?,
        Some(Command::List { path: None }) => overview::list(&session)?,
        Some(Command::List { path: Some(path) }) => overview::path(&session, path)?,
        Some(Command::Run { id }) => return work::run(&mut session, id.as_deref()),
        Some(Command::Hint { id, count }) => {
            overview::hint(&mut session, id.as_deref(), count.map(usize::from))?
        }
        Some(Command::Test { module }) => return work::test(&mut session, module),
        Some(Command::Verify { keep_going, json }) => return work::verify(&mut session, *keep_going, *json),
        Some(Command::Reset { id, yes }) => return work::reset(&session, id, *yes),
        Some(Command::Diff { id, spoil }) => return work::diff(&session, id, *spoil),
        Some(Command::Next) => overview::next(&session)?,
        Some(Command::CatchUp { module, yes }) => {
            return work::catch_up(&session, course.module(module)?, *yes);
        }
        Some(Command::Doctor { json, workshop }) => return doctor::run(root, *json, *workshop),
        Some(Command::Bench { files, arguments }) => {
            return bench::run(root, &course, files.csv.as_deref(), files.svg.as_deref(), arguments);
        }
        Some(Command::Compare { one, other }) => bench::compare(one, other)?,
        Some(Command::Overlap { compute, comm, efficiency }) => overlap::show(&overlap::Step {
            compute: *compute,
            communication: *comm,
            efficiency: *efficiency,
        })?,
        Some(Command::Exec { program }) => match exec::run(root, program)? {},
        Some(Command::Report { places }) => return class::report(&course, places),
        Some(Command::Mistakes { id }) => class::show_mistakes(root, &course, id)?,
        Some(Command::StarterArchive { file }) => class::starter_archive(root, &course, file)?,
        Some(Command::Demo { module, arguments }) => return demo::run(root, &course, module, arguments),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
