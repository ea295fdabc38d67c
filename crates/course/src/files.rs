//! The commands that manage a student's files: reset, restore, catch-up, and diff.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use course::answers::{Backup, Change, compare, has_solutions, solution, starter};
use course::progress::{State, read_answer};
use course::results::count;
use course::syllabus::{Exercise, Module};

use crate::overview::next;
use crate::session::{BAD, DIM, GOOD, Session, print, print_exactly};

/// Asks before files are overwritten. Without a terminal it does not ask, because the files are backed up and `cargo
/// course restore` restores them.
fn ask(question: &str, yes: bool) -> anyhow::Result<bool> {
    if yes || !std::io::stdin().is_terminal() {
        return Ok(true);
    }
    print(&format!("{question}\n"))?;
    print_exactly("[y/N] ")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("can't read the answer")?;
    let is_yes = matches!(answer.trim().to_lowercase().as_str(), "y" | "yes");
    if !is_yes {
        print("nothing was changed\n")?;
    }
    Ok(is_yes)
}

/// Restores the starter of an exercise, by default of the next one. The student's file is backed up first.
pub(crate) fn reset(session: &Session, id: Option<&str>, yes: bool) -> anyhow::Result<ExitCode> {
    let exercise = session.exercise(id)?;
    let text = starter(session.root, exercise)?;
    let is_missing = session.state(exercise)? == State::Missing;
    if !is_missing && read_answer(session.root, exercise)? == text {
        print(&format!("{} still has its starter, so nothing was changed\n", exercise.id))?;
        return Ok(ExitCode::SUCCESS);
    }
    let question =
        format!("Restore the starter for {}? Your file will be saved in .course/backups.", exercise.id);
    if !is_missing && !ask(&question, yes)? {
        return Ok(ExitCode::FAILURE);
    }
    let backup = Backup::new(session.root)?;
    backup.overwrite(session.root, exercise, &text)?;
    if is_missing {
        print(&format!("restored the starter for {}; its file was missing\n", exercise.id))?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&format!(
        "restored the starter for {}; your file is in {}\nto undo this: cargo course restore\n",
        exercise.id,
        backup.folder().display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Restores the files of a backup, or of the latest one if none is named. The current files are saved in a new backup.
pub(crate) fn restore(session: &Session, number: Option<&str>) -> anyhow::Result<ExitCode> {
    let kept = Backup::find(session.root, number)?;
    let mut restored = Vec::new();
    let backup = Backup::new(session.root)?;
    for exercise in &session.course.exercises {
        if let Some(text) = kept.read(exercise)? {
            backup.overwrite(session.root, exercise, &text)?;
            restored.push(exercise.id.as_str());
        }
    }
    ensure!(!restored.is_empty(), "{} contains no exercise files", kept.folder().display());
    print(&format!(
        "restored {} from {}; your previous files are in {}\n",
        restored.join(", "),
        kept.folder().display(),
        backup.folder().display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Installs the solutions to all exercises of the student's path before a module, and moves the student to the module's
/// start. The student's files are backed up first.
pub(crate) fn catch_up(session: &mut Session, module: &Module, yes: bool) -> anyhow::Result<ExitCode> {
    ensure!(
        has_solutions(session.root),
        "this copy of the course has no solutions to install; copy the answers that your instructor shows, or open the \
         exercise that you want: cargo course watch ID"
    );
    let (earlier, first) = session.before(module)?;
    let mut open = Vec::new();
    for exercise in earlier {
        if session.state(exercise)? != State::Right {
            open.push((exercise, solution(session.root, exercise)?));
        }
    }
    if open.is_empty() {
        session.move_to(first);
        print(&format!("everything before {} is already right\n\n{}", module.folder, next(session)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let ids: Vec<&str> = open.iter().map(|(exercise, _)| exercise.id.as_str()).collect();
    let question = format!(
        "Replace your files for {} with the solutions? Your files will be saved in .course/backups.",
        ids.join(", ")
    );
    if !ask(&question, yes)? {
        return Ok(ExitCode::FAILURE);
    }
    let backup = Backup::new(session.root)?;
    for (exercise, text) in &open {
        backup.overwrite(session.root, exercise, text)?;
    }
    session.move_to(first);
    print(&format!(
        "installed {}; your files are in {}\nto undo this: cargo course restore\n\n{}",
        count(open.len(), "solution"),
        backup.folder().display(),
        next(session)?
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Shows how a student's answer differs from the solution.
pub(crate) fn diff(session: &Session, id: &str, spoil: bool) -> anyhow::Result<ExitCode> {
    let exercise = session.course.exercise(id)?;
    ensure!(
        has_solutions(session.root),
        "this copy of the course has no solutions to compare with; compare your answer with the one that your instructor shows"
    );
    ensure!(
        spoil || session.state(exercise)? == State::Right,
        "{} is not known to be right; check it first with `cargo course run {}`, or add --spoil to see the solution anyway",
        exercise.id,
        exercise.id
    );
    print(&compared(session, exercise)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the same comparison for `watch`, which hides the solution until the answer is right.
pub(crate) fn with_solution(session: &Session, exercise: &Exercise) -> anyhow::Result<String> {
    match session.state(exercise)? {
        State::Right => compared(session, exercise),
        _ => Ok(format!(
            "s shows the solution once your answer is right.\nTo see it now: cargo course diff --spoil {}\n",
            exercise.id
        )),
    }
}

fn compared(session: &Session, exercise: &Exercise) -> anyhow::Result<String> {
    let changes = compare(&read_answer(session.root, exercise)?, &solution(session.root, exercise)?);
    Ok(match changes.is_empty() {
        true => format!("{}: your file matches the solution\n", exercise.id),
        false => format!("- yours, {}\n+ the solution\n{}", exercise.file, colored(&changes)),
    })
}

/// Formats a comparison as colored text.
pub(crate) fn colored(changes: &[(Change, String)]) -> String {
    let line = |(change, text): &(Change, String)| match change {
        Change::Removed => format!("{BAD}-{text}{BAD:#}\n"),
        Change::Added => format!("{GOOD}+{text}{GOOD:#}\n"),
        Change::Same => format!(" {text}\n"),
        Change::Gap => format!("{DIM}{text}{DIM:#}\n"),
    };
    changes.iter().map(line).collect()
}
