//! What `cargo course` shows: the student's place, the machine, the next step.

use std::path::Path;

use anyhow::Context;
use course::progress::{State, state};
use course::syllabus::{Course, Exercise};
use cudarc::driver::CudaContext;
use lab::Tier;
use lab::tier::tier_for;

/// Ranks up to which the machine's tiers are looked up: as many GPUs as one server mostly has.
const MOST_RANKS: usize = 8;

/// Shows where the student is, what the checks will run on, and how to go on.
pub(crate) fn show(root: &Path, course: &Course) -> anyhow::Result<()> {
    list(root, course)?;
    println!("\n{}", machine());
    println!();
    let Some(exercise) = next(root, course)? else {
        println!("No todo! is left. Whether every answer is right, the checks say:");
        for module in &course.modules {
            println!("  cargo test -p {}", module.starter_package());
        }
        return Ok(());
    };
    let file = exercise.starter(Path::new(""));
    println!("Next: {} ({}), {} minutes", exercise.id, exercise.title, exercise.minutes);
    println!("  {}", exercise.objective);
    println!("  read   {}", exercise.lesson(Path::new("")).display());
    println!("  edit   {}", file.display());
    println!("  check  {}", exercise.test_command());
    println!("  stuck? cargo course hint {}", exercise.id);
    Ok(())
}

/// Lists the exercises by module, each with its state.
pub(crate) fn list(root: &Path, course: &Course) -> anyhow::Result<()> {
    let width = course.exercises.iter().map(|exercise| exercise.id.len()).max().unwrap_or(0);
    let mut written = 0;
    for module in &course.modules {
        println!("{}  {}", module.folder, module.title);
        for exercise in course.exercises.iter().filter(|exercise| exercise.folder() == module.folder) {
            let mark = match state(root, exercise)? {
                State::Open(_) => "to do  ",
                State::Written => {
                    written += 1;
                    "written"
                }
            };
            println!("  {mark}  {:width$}  {}", exercise.id, exercise.title);
        }
    }
    println!("{written} of {} exercises have no todo! left.", course.exercises.len());
    Ok(())
}

/// Shows the first `count` hints for an exercise, or for the next one.
pub(crate) fn hint(root: &Path, course: &Course, id: Option<&str>, count: usize) -> anyhow::Result<()> {
    let exercise = match id {
        Some(id) => course.exercise(id)?,
        None => next(root, course)?.context("no todo! is left; name the exercise: cargo course hint ID")?,
    };
    let all = exercise.hints.len();
    for (index, hint) in exercise.hints.iter().take(count).enumerate() {
        println!("{} hint {} of {all}: {hint}", exercise.id, index + 1);
    }
    if count < all {
        println!("more: cargo course hint {} {}", exercise.id, count + 1);
    }
    Ok(())
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
    let gpus = gpus().unwrap_or_else(|error| format!("none ({error:#})"));
    let mut text = format!("GPUs: {gpus}");
    let tiers: Vec<(usize, Result<Tier, String>)> = (1..=MOST_RANKS)
        .map(|ranks| (ranks, tier_for(ranks).map_err(|error| format!("{error:#}"))))
        .collect();
    for same in tiers.chunk_by(|(_, a), (_, b)| a == b) {
        let (Some((from, tier)), Some((to, _))) = (same.first(), same.last()) else { continue };
        let ranks = match (from, to) {
            (1, &MOST_RANKS) => "Checks run on".to_owned(),
            (1, 1) => "Checks with 1 rank run on".to_owned(),
            (from, to) => format!("Checks with {from} to {to} ranks run on"),
        };
        let tier = match tier {
            Ok(Tier::Real) => "the installed driver and NCCL.".to_owned(),
            Ok(Tier::Shared) => {
                "the installed driver and NCCL, two ranks on each GPU (experimental).".to_owned()
            }
            Ok(Tier::Virtual) => "virtual GPUs: driver and NCCL in software.".to_owned(),
            Err(reason) => format!("nothing: {reason}"),
        };
        text.push_str(&format!("\n{ranks} {tier}"));
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
