//! Commands on exercises: run, test, verify, reset, diff, catch-up.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use course::answers::{Backup, Change, compare, solution, starter};
use course::checks::Verdict;
use course::progress::{State, read_answer};
use course::syllabus::{Exercise, Module};
use serde::{Deserialize, Serialize};

use crate::overview::next_step;
use crate::session::{BAD, DIM, GOOD, Session, details, headline, print};

fn exit(is_good: bool) -> ExitCode {
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Checks one exercise.
pub(crate) fn run(session: &mut Session, id: Option<&str>) -> anyhow::Result<ExitCode> {
    let exercise = session.exercise(id)?;
    let module = session.course.module(exercise.folder())?;
    read_answer(session.root, exercise)?;
    eprintln!("checking {} …", exercise.id);
    let verdicts = session.check(module, &[exercise])?;
    let Some((_, verdict)) = verdicts.first() else { bail!("{} was not checked", exercise.id) };
    let mut text = format!("{}{}\n", details(exercise, verdict), headline(exercise, verdict));
    if verdict.is_right()
        && let Some(next) = session.next()?
    {
        text.push_str(&format!("\n{}", next_step(next)));
    }
    print(&text)?;
    Ok(exit(verdict.is_right()))
}

/// Checks a module, exercise by exercise.
pub(crate) fn test(session: &mut Session, module: &str) -> anyhow::Result<ExitCode> {
    let module = session.course.module(module)?;
    let exercises = session.of(module);
    eprintln!("checking {} …", module.folder);
    let verdicts = session.check(module, &exercises)?;
    show(&verdicts)?;
    Ok(exit(verdicts.iter().all(|(_, verdict)| verdict.is_right())))
}

/// A line for each exercise, behind what is wrong with the first that is.
fn show(verdicts: &[(&Exercise, Verdict)]) -> anyhow::Result<()> {
    let told = verdicts.iter().map(|(exercise, verdict)| details(exercise, verdict));
    let mut text = told.into_iter().find(|told| !told.is_empty()).map_or(String::new(), |told| told + "\n");
    for (exercise, verdict) in verdicts {
        text.push_str(&headline(exercise, verdict));
        text.push('\n');
    }
    print(&text)
}

/// How an exercise in the output of `verify --json` stands.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LineState {
    Right,
    Wrong,
    /// Its module doesn't compile.
    Broken,
    /// None of its checks can run.
    Ignored,
}

/// An exercise in the output of `verify --json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line {
    pub(crate) id: String,
    pub(crate) state: LineState,
    passed: usize,
    failed: usize,
    ignored: usize,
    pub(crate) hints: usize,
}

impl Line {
    fn of(session: &Session, exercise: &Exercise, verdict: &Verdict) -> Self {
        let (state, counts) = match verdict {
            Verdict::Passed(counts) => (LineState::Right, *counts),
            Verdict::Failed(counts, _) => (LineState::Wrong, *counts),
            Verdict::Broken(_) => (LineState::Broken, Default::default()),
            Verdict::Ignored(counts) => (LineState::Ignored, *counts),
        };
        let hints = session.progress.hints(exercise);
        let id = exercise.id.clone();
        Self { id, state, passed: counts.passed, failed: counts.failed, ignored: counts.ignored, hints }
    }
}

/// Checks everything, module by module, up to the first one that is not right.
pub(crate) fn verify(session: &mut Session, keep_going: bool, json: bool) -> anyhow::Result<ExitCode> {
    let mut lines = Vec::new();
    let mut all_right = true;
    for module in &session.course.modules {
        let exercises = session.of(module);
        if exercises.is_empty() {
            continue;
        }
        if !json {
            eprintln!("checking {} …", module.folder);
        }
        let verdicts = session.check(module, &exercises)?;
        all_right &= verdicts.iter().all(|(_, verdict)| verdict.is_right());
        match json {
            true => {
                lines.extend(verdicts.iter().map(|(exercise, verdict)| Line::of(session, exercise, verdict)))
            }
            false => show(&verdicts)?,
        }
        if !all_right && !keep_going {
            break;
        }
    }
    if json {
        print(&format!("{}\n", serde_json::to_string_pretty(&lines)?))?;
    }
    Ok(exit(all_right))
}

/// Asks before something happens. Without a terminal nobody can answer, and it takes `--yes`.
fn ask(question: &str, yes: bool) -> anyhow::Result<bool> {
    if yes {
        return Ok(true);
    }
    ensure!(std::io::stdin().is_terminal(), "{question} There is no terminal to ask: say --yes");
    print(&format!("{question} [y/N] "))?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("can't read the answer")?;
    let is_yes = matches!(answer.trim().to_lowercase().as_str(), "y" | "yes");
    if !is_yes {
        print("nothing was changed\n")?;
    }
    Ok(is_yes)
}

/// Gives an exercise its starter back. What was there is kept.
pub(crate) fn reset(session: &Session, id: &str, yes: bool) -> anyhow::Result<ExitCode> {
    let exercise = session.course.exercise(id)?;
    let text = starter(session.root, exercise)?;
    let is_missing = session.state(exercise)? == State::Missing;
    if !is_missing && read_answer(session.root, exercise)? == text {
        print(&format!("{} is as you got it\n", exercise.id))?;
        return Ok(ExitCode::SUCCESS);
    }
    let question = format!("Start {} anew? Your file is kept in .course/backups.", exercise.id);
    if !is_missing && !ask(&question, yes)? {
        return Ok(ExitCode::FAILURE);
    }
    let backup = Backup::new(session.root)?;
    backup.overwrite(session.root, exercise, &text)?;
    if is_missing {
        print(&format!("{} is as you got it; its file was missing\n", exercise.id))?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&format!("{} is as you got it; what you had is in {}\n", exercise.id, backup.folder().display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Gives all exercises before a module their solutions. What was there is kept.
pub(crate) fn catch_up(session: &Session, module: &Module, yes: bool) -> anyhow::Result<ExitCode> {
    let earlier: Vec<&Module> =
        session.course.modules.iter().take_while(|other| other.folder != module.folder).collect();
    let mut open = Vec::new();
    for exercise in earlier.iter().flat_map(|module| session.of(module)) {
        if session.state(exercise)? != State::Right {
            open.push((exercise, solution(session.root, exercise)?));
        }
    }
    if open.is_empty() {
        print(&format!("everything before {} is right\n", module.folder))?;
        return Ok(ExitCode::SUCCESS);
    }
    let ids: Vec<&str> = open.iter().map(|(exercise, _)| exercise.id.as_str()).collect();
    let question = format!(
        "Put the solutions in the place of {}? Your files are kept in .course/backups.",
        ids.join(", ")
    );
    if !ask(&question, yes)? {
        return Ok(ExitCode::FAILURE);
    }
    let backup = Backup::new(session.root)?;
    for (exercise, text) in &open {
        backup.overwrite(session.root, exercise, text)?;
    }
    print(&format!(
        "{} solutions are in place; what you had is in {}\ncheck them: cargo course verify\n",
        open.len(),
        backup.folder().display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// How a student's answer differs from the solution.
pub(crate) fn diff(session: &Session, id: &str, spoil: bool) -> anyhow::Result<ExitCode> {
    let exercise = session.course.exercise(id)?;
    ensure!(
        spoil || session.state(exercise)? == State::Right,
        "{} is not known to be right: check it first, `cargo course run {}`, or say --spoil to see the solution all the same",
        exercise.id,
        exercise.id
    );
    let changes = compare(&read_answer(session.root, exercise)?, &solution(session.root, exercise)?);
    if changes.is_empty() {
        print(&format!("{}: your file is the solution\n", exercise.id))?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&format!("- yours, {}\n+ the solution\n{}", exercise.file, coloured(&changes)))?;
    Ok(ExitCode::SUCCESS)
}

/// A comparison as text.
pub(crate) fn coloured(changes: &[(Change, String)]) -> String {
    let line = |(change, text): &(Change, String)| match change {
        Change::Removed => format!("{BAD}-{text}{BAD:#}\n"),
        Change::Added => format!("{GOOD}+{text}{GOOD:#}\n"),
        Change::Same => format!(" {text}\n"),
        Change::Gap => format!("{DIM}{text}{DIM:#}\n"),
    };
    changes.iter().map(line).collect()
}
