//! What `cargo course` shows: the student's place, the machine, the next step.

use std::path::Path;

use anyhow::Context;
use course::progress::{State, state};
use course::syllabus::{Course, Exercise};
use cudarc::driver::CudaContext;
use lab::Tier;
use lab::explain::error_text;
use lab::tier::{describe, tier_for};

/// Ranks up to which the machine's tiers are looked up: as many GPUs as one server mostly has.
const MOST_RANKS: usize = 8;

/// Shows where the student is, what the checks will run on, and how to go on.
pub(crate) fn show(root: &Path, course: &Course) -> anyhow::Result<String> {
    let mut text = list(root, course)?;
    text.push_str(&format!("\n{}\n\n", machine()));
    let Some(exercise) = next(root, course)? else {
        text.push_str("No todo! is left. Whether every answer is right, the checks say:\n");
        for module in &course.modules {
            text.push_str(&format!("  cargo test -p {}\n", module.starter_package()));
        }
        return Ok(text);
    };
    text.push_str(&format!(
        "Next: {} ({}), {} minutes\n  {}\n  read   {}\n  edit   {}\n  check  {}\n  stuck? cargo course hint {}\n",
        exercise.id,
        exercise.title,
        exercise.minutes,
        exercise.objective,
        exercise.lesson(Path::new("")).display(),
        exercise.starter(Path::new("")).display(),
        exercise.test_command(),
        exercise.id
    ));
    Ok(text)
}

/// Lists the exercises by module, each with its state.
pub(crate) fn list(root: &Path, course: &Course) -> anyhow::Result<String> {
    let mut text = String::new();
    let width = course.exercises.iter().map(|exercise| exercise.id.len()).max().unwrap_or(0);
    let mut written = 0;
    for module in &course.modules {
        text.push_str(&format!("{}  {}\n", module.folder, module.title));
        for exercise in course.exercises.iter().filter(|exercise| exercise.folder() == module.folder) {
            let state = state(root, exercise)?;
            written += usize::from(state == State::Written);
            let mark = mark(&state);
            text.push_str(&format!("  {mark}  {:width$}  {}\n", exercise.id, exercise.title));
        }
    }
    text.push_str(&format!("{written} of {} exercises have no todo! left.\n", course.exercises.len()));
    Ok(text)
}

/// Lists a path's parts, with their minutes, and the state of each exercise.
pub(crate) fn path(root: &Path, course: &Course, name: &str) -> anyhow::Result<String> {
    let path = course.path(name)?;
    let steps = course.steps(path);
    let minutes: u32 = steps.iter().map(|step| step.minutes).sum();
    let mut text = format!("{}: {} h {:02} min\n", path.title, minutes / 60, minutes % 60);
    for step in &steps {
        let mut time = format!("{:3} min", step.minutes);
        if let Some(instead) = &step.instead {
            text.push_str(&format!("{time}           {instead}\n"));
        }
        for id in &step.exercises {
            let exercise = course.exercise(id)?;
            let mark = mark(&state(root, exercise)?);
            text.push_str(&format!("{time}  {mark}  {} ({})\n", exercise.id, exercise.title));
            time = " ".repeat(time.len());
        }
    }
    Ok(text)
}

/// A state in a column of seven letters.
fn mark(state: &State) -> &'static str {
    match state {
        State::Open(_) => "to do  ",
        State::Written => "written",
    }
}

/// Shows the first `count` hints for an exercise, or for the next one.
pub(crate) fn hint(root: &Path, course: &Course, id: Option<&str>, count: usize) -> anyhow::Result<String> {
    let exercise = match id {
        Some(id) => course.exercise(id)?,
        None => next(root, course)?.context("no todo! is left; name the exercise: cargo course hint ID")?,
    };
    let all = exercise.hints.len();
    let mut text = String::new();
    for (index, hint) in exercise.hints.iter().take(count).enumerate() {
        text.push_str(&format!("{}, hint {} of {all}: {hint}\n", exercise.id, index + 1));
    }
    if count < all {
        text.push_str(&format!("More: cargo course hint {} {}\n", exercise.id, count + 1));
    }
    Ok(text)
}

/// The first exercise that has a `todo!` left.
fn next<'a>(root: &Path, course: &'a Course) -> anyhow::Result<Option<&'a Exercise>> {
    for exercise in &course.exercises {
        if matches!(state(root, exercise)?, State::Open(_)) {
            return Ok(Some(exercise));
        }
    }
    Ok(None)
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
