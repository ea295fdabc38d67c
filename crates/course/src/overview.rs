//! What `cargo course` shows: the student's place, the machine, the next step.

use std::fmt::Write as _;
use std::path::Path;

use course::progress::State;
use course::syllabus::Exercise;
use cudarc::driver::CudaContext;
use lab::Tier;
use lab::explain::error_text;
use lab::tier::{describe, tier_for};

use crate::session::{BAD, DIM, GOOD, STRONG, Session};

/// Ranks up to which the machine's tiers are looked up: as many GPUs as one server mostly has.
const MOST_RANKS: usize = 8;

/// Shows where the student is, what the checks will run on, and how to go on.
pub(crate) fn show(session: &Session) -> anyhow::Result<String> {
    let mut text = list(session)?;
    let _ = write!(text, "\n{}\n\n", machine());
    text.push_str(&next(session)?);
    Ok(text)
}

/// The exercise to do next, if one is left.
pub(crate) fn next(session: &Session) -> anyhow::Result<String> {
    Ok(match session.next()? {
        Some(exercise) => next_step(exercise),
        None => "Every exercise is right. How the solution does it: cargo course diff ID\n".to_owned(),
    })
}

/// The exercise to do next.
pub(crate) fn next_step(exercise: &Exercise) -> String {
    let here = Path::new("");
    format!(
        "Next: {STRONG}{}{STRONG:#} ({}), {} minutes\n  {}\n  read   {}\n  edit   {}\n  check  cargo course run {}\n  stuck? cargo course hint {}\n",
        exercise.id,
        exercise.title,
        exercise.minutes,
        exercise.objective,
        exercise.lesson(here).display(),
        exercise.starter(here).display(),
        exercise.id,
        exercise.id
    )
}

/// Lists the exercises by module, each with its state, and the minutes that are left.
pub(crate) fn list(session: &Session) -> anyhow::Result<String> {
    let mut text = String::new();
    let width = session.course.exercises.iter().map(|exercise| exercise.id.len()).max().unwrap_or(0);
    let (mut right, mut minutes) = (0, 0);
    for module in &session.course.modules {
        let _ = writeln!(text, "{STRONG}{}{STRONG:#}  {}", module.folder, module.title);
        for exercise in session.of(module) {
            let state = session.state(exercise)?;
            if state == State::Right {
                right += 1;
            } else {
                minutes += exercise.minutes;
            }
            let _ =
                writeln!(text, "  {}  {:width$}  {DIM}{}{DIM:#}", mark(state), exercise.id, exercise.title);
        }
    }
    let all = session.course.exercises.len();
    let _ = writeln!(text, "{right} of {all} exercises are right; the others take about {minutes} minutes.");
    Ok(text)
}

/// Lists a path's parts, with their minutes, and the state of each exercise.
pub(crate) fn path(session: &Session, name: &str) -> anyhow::Result<String> {
    let course = session.course;
    let path = course.path(name)?;
    let steps = course.steps(path);
    let minutes: u32 = steps.iter().map(|step| step.minutes).sum();
    let mut text = format!("{STRONG}{}{STRONG:#}: {} h {:02} min\n", path.title, minutes / 60, minutes % 60);
    for step in &steps {
        let mut time = format!("{:3} min", step.minutes);
        if let Some(instead) = &step.instead {
            let _ = writeln!(text, "{time}           {DIM}{instead}{DIM:#}");
        }
        for id in &step.exercises {
            let exercise = course.exercise(id)?;
            let mark = mark(session.state(exercise)?);
            let _ = writeln!(text, "{time}  {mark}  {}  {DIM}{}{DIM:#}", exercise.id, exercise.title);
            time = " ".repeat(time.len());
        }
    }
    Ok(text)
}

/// A state in a column of seven letters.
fn mark(state: State) -> String {
    match state {
        State::Open(_) => "to do  ".to_owned(),
        State::Written => format!("{STRONG}written{STRONG:#}"),
        State::Wrong => format!("{BAD}wrong  {BAD:#}"),
        State::Right => format!("{GOOD}right  {GOOD:#}"),
        State::Missing => format!("{BAD}missing{BAD:#}"),
    }
}

/// Shows the first `count` hints for an exercise, or one more than were shown before.
pub(crate) fn hint(session: &mut Session, id: Option<&str>, count: Option<usize>) -> anyhow::Result<String> {
    let exercise = session.exercise(id)?;
    let all = exercise.hints.len();
    let count = count.unwrap_or(session.progress.hints(exercise) + 1).min(all);
    session.progress.set_hints(exercise, count);
    session.keep();
    let mut text = String::new();
    for (index, hint) in exercise.hints.iter().take(count).enumerate() {
        let _ = writeln!(text, "{STRONG}{}, hint {} of {all}:{STRONG:#} {hint}", exercise.id, index + 1);
    }
    let _ = match count < all {
        true => writeln!(text, "{DIM}A clearer one: cargo course hint {}{DIM:#}", exercise.id),
        false => writeln!(
            text,
            "{DIM}That was the last. The solution: cargo course diff --spoil {}{DIM:#}",
            exercise.id
        ),
    };
    Ok(text)
}

/// The GPUs, and what the checks run on. A machine on which nothing can run is worth a line, not an end.
fn machine() -> String {
    let gpus = gpus().unwrap_or_else(|error| format!("none ({})", error_text(&error)));
    let mut text = format!("GPUs: {gpus}");
    let mut last = None;
    for ranks in 1..=MOST_RANKS {
        let tier = tier_for(ranks).ok();
        if last != Some(tier) {
            let checks =
                if ranks == 1 { "Checks".to_owned() } else { format!("Checks of {ranks} ranks or more") };
            let runs = describe(ranks).unwrap_or_else(|error| format!("nothing: {}", error_text(&error)));
            text.push_str(&format!("\n{checks} run on {runs}"));
            last = Some(tier);
        }
    }
    text
}

/// How many GPUs the attached tier has, and their names.
fn gpus() -> anyhow::Result<String> {
    let tier = lab::attach(1)?;
    let count = usize::try_from(CudaContext::device_count()?)?;
    let mut names = Vec::new();
    for ordinal in 0..count {
        names.push(CudaContext::new(ordinal)?.name()?);
    }
    names.dedup();
    let kind = if tier == Tier::Virtual { " virtual" } else { "" };
    Ok(format!("{count}{kind} ({})", names.join(", ")))
}
