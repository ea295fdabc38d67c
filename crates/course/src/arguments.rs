//! The command line: its commands, options, and help.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use course::answers::has_solutions;
use course::syllabus;

use crate::completions::Shell;
use crate::session::STRONG;
use crate::{bench, exec, plan, teach};

/// Learn multi-GPU programming with NCCL in Rust, on any machine.
#[derive(Parser)]
#[command(name = "cargo course", bin_name = "cargo course")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// What the next exercise is, for the help of commands.
const NEXT: &str = "\
The next exercise is the first one that is not right, starting at the exercise
that you checked last. After the end of the course, or of the path that you
follow, the search continues from the beginning. To go back to an earlier
exercise, name it: cargo course watch init/devices

";

/// A command of `cargo course`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Check the current exercise each time you save, until you quit
    #[command(after_help = format!("{NEXT}Example: cargo course watch init/devices"))]
    Watch {
        /// The exercise to start with, such as init/devices; by default, the next one
        id: Option<String>,
    },
    /// List the exercises with their states, or a path with its times
    #[command(after_help = "Example: cargo course list --path half-day")]
    List {
        /// The path, such as half-day
        #[arg(long)]
        path: Option<String>,
    },
    /// Follow a path instead of the whole course, or list the paths
    #[command(after_help = "Example: cargo course path half-day   (the whole course: cargo course path all)")]
    Path {
        /// The path, such as half-day; all is the whole course
        #[arg(value_name = "NAME")]
        path: Option<String>,
    },
    /// Check one exercise
    #[command(after_help = "Example: cargo course run init/devices")]
    Run {
        /// The exercise, such as init/devices; by default, the next exercise that is not right yet
        id: Option<String>,
    },
    /// Compare the score of your design with those of the course's own designs
    ///
    /// Of all exercises, the capstone has a score: the time of a step, the bytes that a rank sends, and the memory of a GPU.
    /// On the virtual GPU, the time is modeled; on real GPUs, it is measured.
    #[command(hide = true, after_help = "Example: cargo course score")]
    Score {
        /// The exercise, such as scale/capstone; by default, the first one that has a score
        id: Option<String>,
    },
    /// Show one more hint for an exercise, or the first N
    #[command(after_help = "Example: cargo course hint init/devices")]
    Hint {
        /// The exercise, such as init/devices; by default, the next exercise that is not right yet
        id: Option<String>,
        /// How many hints: each is more explicit than the previous one
        #[arg(value_parser = clap::value_parser!(u16).range(1..))]
        count: Option<u16>,
    },
    /// Check all exercises in a module
    #[command(after_help = "Example: cargo course test 02")]
    Test {
        /// The module: its number, its name, or its folder; by default, that of the next exercise that is not right yet
        module: Option<String>,
    },
    /// Check all exercises, up to the first module that is not right
    #[command(after_help = "Example: cargo course verify --keep-going --json")]
    Verify {
        /// Check the modules after that one, too
        #[arg(long)]
        keep_going: bool,
        /// Print the states as JSON, for other programs
        #[arg(long)]
        json: bool,
    },
    /// Restore an exercise's starter; your file is backed up
    #[command(after_help = "Example: cargo course reset init/devices")]
    Reset {
        /// The exercise, such as init/devices; by default, the next exercise that is not right yet
        id: Option<String>,
        /// Don't ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Restore the files that reset or catch-up replaced
    #[command(after_help = "Example: cargo course restore")]
    Restore {
        /// The backup in .course/backups, such as 0002; by default, the latest
        number: Option<String>,
    },
    /// Show how your answer differs from the solution, once it is right
    #[command(after_help = "Example: cargo course diff init/devices")]
    Diff {
        /// The exercise, such as init/devices
        id: String,
        /// Show it even if your answer is not right yet
        #[arg(long)]
        spoil: bool,
    },
    /// Look back at an exercise: pitfalls, other answers, a question
    #[command(after_help = "Example: cargo course discuss init/devices")]
    Discuss {
        /// The exercise, such as init/devices
        id: String,
        /// Unfold the answers to its questions
        #[arg(long)]
        answers: bool,
    },
    /// Show the next exercise that is not right
    #[command(
        after_help = format!("{NEXT}Example: cargo course next --file   (in Visual Studio Code: code \"$(cargo course next --file)\")")
    )]
    Next {
        /// Print only the path of its file, for an editor
        #[arg(long)]
        file: bool,
    },
    /// Install the solutions of earlier modules; your files are backed up
    #[command(after_help = "Example: cargo course catch-up 04")]
    CatchUp {
        /// The module that you want to start: its number, its name, or its folder
        module: String,
        /// Don't ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Report what this machine has, what runs on it, and what is missing
    #[command(after_help = "Example: cargo course doctor --workshop")]
    Doctor {
        /// Print the diagnoses as JSON, for a program
        #[arg(long)]
        json: bool,
        /// Before a workshop: also build from scratch without a network, check the disk, and write a file to send in
        #[arg(long)]
        workshop: bool,
        /// Run everything on this machine, and write a file to send to the maintainers; on real GPUs, this may take half an hour
        #[arg(long, value_name = "FILE")]
        evidence: Option<PathBuf>,
    },
    /// Measure a collective, as nccl-tests does: a table, a file, a picture
    #[command(
        after_help = "Example: cargo course bench --svg all-gather.svg -- --gpus 4 --operation all-gather --to 16M"
    )]
    Bench {
        #[command(flatten)]
        files: bench::Files,
        /// Passed to module 02's program: operation, types, sizes, ranks; `-- --help` shows all
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Compare two tables, from bench or from module 05's ladder
    #[command(after_help = "Example: cargo course compare before.csv after.csv")]
    Compare {
        /// The first table
        one: PathBuf,
        /// The second table
        other: PathBuf,
    },
    /// Work out what overlapping communication with compute can gain
    #[command(after_help = "Example: cargo course overlap --compute 50 --comm 10 --efficiency 0.8")]
    Overlap {
        /// Compute time of one step, in ms
        #[arg(long, value_name = "MS", allow_negative_numbers = true)]
        compute: f64,
        /// Communication time of one step, in ms
        #[arg(long, value_name = "MS", allow_negative_numbers = true)]
        comm: f64,
        /// The fraction of the possible overlap that is achieved, from 0 to 1
        #[arg(long, value_name = "ETA", default_value_t = 1.0, allow_negative_numbers = true)]
        efficiency: f64,
    },
    /// Compare kinds of parallelism: memory and communication per GPU
    #[command(
        after_help = "Example: cargo course plan --parameters 7e9 --gpus 8 --layers 32 --hidden 4096 --tokens 8192"
    )]
    Plan(plan::Plan),
    /// Run your own program on the virtual GPU, unchanged
    ///
    /// The program may call CUDA's driver API, as cudarc does, and NCCL. A program that uses the CUDA runtime (built
    /// with nvcc, or PyTorch) needs driver features that the virtual GPU lacks, so it ends with an error.
    ///
    /// Events and traces show the modeled times of a DGX H100, unless VIRTUAL_GPU_TOPOLOGY names another node.
    #[command(after_help = "Example: cargo course exec -- ./target/release/my-program --steps 10")]
    Exec {
        /// What to do about a problem that a real GPU would not notice, such as a data race [default: VIRTUAL_GPU_CHECKS,
        /// or warn]
        #[arg(long, value_enum, value_name = "LEVEL")]
        checks: Option<exec::Checks>,
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<String>,
    },
    /// Print a script that makes your shell complete commands and exercises
    #[command(
        hide = true,
        after_help = "Example: cargo course completions fish | source   (bash and zsh: source <(cargo course completions bash))"
    )]
    Completions {
        /// Your shell
        shell: Shell,
    },
    /// Report on a class, show known mistakes, archive the starters
    #[command(after_help = "Example: cargo course teach mistakes init/devices")]
    Teach {
        #[command(subcommand)]
        command: teach::Command,
    },
    /// Run a module's program, solved: what you are about to build
    #[command(after_help = "Example: cargo course demo 04 --gpus 4")]
    Demo {
        /// The module: its number, its name, or its folder
        module: String,
        /// Passed to the program; `-- --help` shows its options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

/// The commands, as help lists them: the student's own first, and then those for this machine, programs, and teaching.
const COMMANDS: [&str; 21] = [
    "watch", "next", "list", "path", "run", "test", "verify", "hint", "diff", "discuss", "reset", "restore",
    "catch-up", "doctor", "demo", "bench", "compare", "overlap", "plan", "exec", "teach",
];

impl Arguments {
    /// Reads this process's command line. If the command line requests help or is invalid, the process ends.
    pub(crate) fn read() -> Self {
        Self::from_arg_matches(&command().get_matches()).unwrap_or_else(|error| error.exit())
    }
}

/// Returns the command-line parser, with a help text that fits on a screen of 24 lines.
pub(crate) fn command() -> clap::Command {
    let command = Arguments::command();
    let help = help(&command);
    command.override_help(help)
}

/// The commands that the help of a course without solutions leaves out.
const NEED_SOLUTIONS: [&str; 5] = ["diff", "reset", "restore", "catch-up", "teach"];

/// Formats the top-level help, because clap's own has more lines.
fn help(command: &clap::Command) -> String {
    let has_solutions = syllabus::root().is_ok_and(|root| has_solutions(&root));
    let mut text =
        format!("{STRONG}Usage:{STRONG:#} cargo course [COMMAND [--help]]; without a command: what's next");
    for name in COMMANDS.iter().filter(|name| has_solutions || !NEED_SOLUTIONS.contains(name)) {
        let about = command.find_subcommand(name).and_then(clap::Command::get_about);
        let _ = write!(text, "\n  {name:8}  {}", about.map(ToString::to_string).unwrap_or_default());
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_command_once_and_fits_on_a_screen() {
        let command = command();
        let mut listed = COMMANDS;
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut names: Vec<&str> = shown.map(clap::Command::get_name).collect();
        listed.sort_unstable();
        names.sort_unstable();
        assert_eq!(listed, names[..]);
        let help = anstream::adapter::strip_str(&help(&command)).to_string();
        // The screen also shows the line with the command and the next prompt.
        assert!(help.lines().count() <= 24 - 2, "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
    }
}
