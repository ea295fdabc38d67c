//! `cargo course`: shows where you are and how to continue.

mod arguments;
mod bench;
mod completions;
mod demo;
mod discuss;
mod doctor;
mod exec;
mod files;
mod overlap;
mod overview;
mod plan;
mod score;
mod session;
mod teach;
mod under_way;
mod verdict_text;
mod watch;
mod work;

use std::io::IsTerminal;
use std::process::ExitCode;

use course::syllabus::{self, Course};

use crate::arguments::{Arguments, Command};
use crate::session::{Session, columns, columns_of, print, print_exactly};
use crate::watch::text::wrapped;

fn main() -> ExitCode {
    match run(&Arguments::read()) {
        Ok(code) => code,
        Err(error) => {
            let text = format!("error: {error:#}");
            let columns = columns_of(&std::io::stderr());
            eprintln!(
                "{}",
                columns.map_or_else(|| text.clone(), |columns| wrapped(&text, columns)).trim_end()
            );
            ExitCode::FAILURE
        }
    }
}

/// Prints text whose line breaks matter.
fn exactly(text: &str) -> anyhow::Result<ExitCode> {
    print_exactly(text)?;
    Ok(ExitCode::SUCCESS)
}

fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let root = syllabus::root()?;
    let root = root.as_path();
    let course = Course::read(root)?;
    let mut session = Session::new(root, &course)?;
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let text = match &arguments.command {
        None if is_terminal => return watch::run(session, None),
        Some(Command::Watch { id }) if is_terminal => return watch::run(session, id.as_deref()),
        None | Some(Command::Watch { .. }) => overview::show(&session)?,
        Some(Command::List { path: None }) => {
            overview::list(&session, None, columns().unwrap_or(usize::MAX))?
        }
        Some(Command::List { path: Some(path) }) => {
            overview::path(&session, path, columns().unwrap_or(usize::MAX))?
        }
        Some(Command::Path { path: None }) => overview::paths(&session)?,
        Some(Command::Path { path: Some(path) }) => overview::follow(&session, path)?,
        Some(Command::Run { id }) => return work::run(&mut session, id.as_deref()),
        Some(Command::Hint { id, count }) => {
            overview::hint(&mut session, id.as_deref(), count.map(usize::from), false)?
        }
        Some(Command::Score { id }) => return score::run(&mut session, id.as_deref()),
        Some(Command::Test { module }) => return work::test(&mut session, module.as_deref()),
        Some(Command::Verify { keep_going, json }) => return work::verify(&mut session, *keep_going, *json),
        Some(Command::Reset { id, yes }) => return files::reset(&session, id.as_deref(), *yes),
        Some(Command::Restore { number }) => return files::restore(&session, number.as_deref()),
        Some(Command::Diff { id, spoil }) => return files::diff(&session, id, *spoil),
        Some(Command::Discuss { id, answers }) => discuss::show(&session, course.exercise(id)?, *answers)?,
        Some(Command::Next { file: false }) => overview::next(&session)?,
        Some(Command::Next { file: true }) => return exactly(&overview::next_file(&session)?),
        Some(Command::CatchUp { module, yes }) => {
            return files::catch_up(&mut session, course.module(module)?, *yes);
        }
        Some(Command::Doctor { json, workshop, evidence }) => {
            return doctor::run(root, *json, *workshop, evidence.as_deref());
        }
        Some(Command::Bench { files, arguments }) => {
            return bench::run(&session, files.csv.as_deref(), files.svg.as_deref(), arguments);
        }
        Some(Command::Compare { one, other }) => return exactly(&bench::compare(one, other)?),
        Some(Command::Overlap { compute, comm, efficiency }) => {
            let step = overlap::Step { compute: *compute, communication: *comm, efficiency: *efficiency };
            return exactly(&overlap::show(&step)?);
        }
        Some(Command::Plan(plan)) => return exactly(&plan::show(plan)?),
        Some(Command::Exec { checks, program }) => match exec::run(root, *checks, program)? {},
        Some(Command::Completions { shell }) => {
            return exactly(&completions::script(*shell, arguments::command(), &course));
        }
        Some(Command::Teach { command }) => return teach::run(root, &course, command),
        Some(Command::Demo { module, arguments }) => return demo::run(&session, module, arguments),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
