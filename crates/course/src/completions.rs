//! `cargo course completions`: scripts that make a shell complete commands, options, and exercises.
//!
//! clap writes a script for a program called `course`. Students type `cargo course`, where the shell asks for a
//! completion of `cargo`, so a second script passes it on.

use std::fmt::Write as _;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap_complete::aot;
use course::syllabus::Course;

/// A shell that `cargo course` has completions for.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Fish,
    Zsh,
}

/// Writes the script for a shell: `command`, with the names of this course's exercises, modules, and paths.
pub(crate) fn script(shell: Shell, command: clap::Command, course: &Course) -> String {
    let mut command = with_values(command.name("course"), course);
    let (generator, of_cargo) = match shell {
        Shell::Bash => (aot::Shell::Bash, include_str!("completions/cargo.bash")),
        Shell::Fish => (aot::Shell::Fish, include_str!("completions/cargo.fish")),
        Shell::Zsh => (aot::Shell::Zsh, include_str!("completions/cargo.zsh")),
    };
    let mut script = Vec::new();
    aot::generate(generator, &mut command, "course", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if matches!(shell, Shell::Fish) {
        for below in command.get_subcommands() {
            add_for_fish(below, &format!("__fish_course_using_subcommand {}", below.get_name()), &mut script);
        }
    }
    script + of_cargo
}

/// Adds the possible values of a command's positional arguments, which clap leaves out for fish. The condition is true
/// on the command line of this command.
fn add_for_fish(command: &clap::Command, condition: &str, script: &mut String) {
    for argument in command.get_positionals() {
        let values = argument.get_possible_values();
        if !values.is_empty() {
            let names: Vec<&str> = values.iter().map(PossibleValue::get_name).collect();
            let _ = writeln!(script, "complete -c course -n '{condition}' -f -a '{}'", names.join(" "));
        }
    }
    for below in command.get_subcommands() {
        add_for_fish(
            below,
            &format!("{condition}; and __fish_seen_subcommand_from {}", below.get_name()),
            script,
        );
    }
}

/// Adds the possible values of each argument that names a part of the course, to this command and those below it.
fn with_values(command: clap::Command, course: &Course) -> clap::Command {
    command
        .mut_args(|argument| with_names(argument, course))
        .mut_subcommands(|below| with_values(below, course))
}

fn with_names(argument: clap::Arg, course: &Course) -> clap::Arg {
    let names: Vec<&str> = match argument.get_id().as_str() {
        "id" => course.exercises.iter().map(|exercise| exercise.id.as_str()).collect(),
        "module" => course.modules.iter().map(|module| module.folder.as_str()).collect(),
        "path" => course.paths.iter().map(|path| path.name.as_str()).collect(),
        _ => return argument,
    };
    // clap keeps names for as long as the program runs, and this program is about to end.
    let names = names.into_iter().map(|name| &*name.to_owned().leak());
    argument.value_parser(PossibleValuesParser::new(names))
}
