//! The overview that `cargo course` shows: where the student is, the machine, and the next step.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use course::answers::has_solutions;
use course::progress::State;
use course::results::count;
use course::syllabus::{Exercise, Module, Route, Scheduled, clock};
use cudarc::driver::CudaContext;
use lab::Tier;
use lab::explain::error_text;
use lab::tier::{describe, tier_for};

use crate::session::{BAD, DIM, GOOD, STRONG, Session};

/// The largest number of ranks to show tiers for: most servers have at most this many GPUs.
const MOST_RANKS: usize = 8;

/// Shows where the student is, what the checks run on, and how to continue.
pub(crate) fn show(session: &Session) -> anyhow::Result<String> {
    let (bar, next) = (bar(session, 80)?, next(session)?);
    let all = if session.path().is_some() { "Your path" } else { "All exercises" };
    Ok(format!("{bar}\n{next}\n{}\n{all}: cargo course list\n", machine()))
}

/// Describes the next exercise, if there is one.
pub(crate) fn next(session: &Session) -> anyhow::Result<String> {
    Ok(match session.next()? {
        Some(exercise) => next_step(exercise) + &left_before(session, exercise)?,
        None => finale(session)?,
    })
}

/// Returns a line about the exercises before this one that still have to be done, or an empty text if there are none.
pub(crate) fn left_before(session: &Session, exercise: &Exercise) -> anyhow::Result<String> {
    Ok(session.left_before(exercise)?.map_or_else(String::new, |(count, first)| {
        format!("{DIM}Earlier exercises to do: {count}; the first is {}{DIM:#}\n", first.id)
    }))
}

/// Returns the path of the next exercise's file. It is absolute, because the student may be in any folder of the course.
///
/// # Errors
/// Fails if there is no next exercise.
pub(crate) fn next_file(session: &Session) -> anyhow::Result<String> {
    let next = session.next()?;
    let next = next
        .with_context(|| format!("you have finished {}, so there is no next exercise", followed(session)))?;
    Ok(format!("{}\n", next.starter(session.root).display()))
}

/// Describes the next exercise.
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

/// Returns the words for what the student follows.
pub(crate) fn followed(session: &Session) -> String {
    session.path().map_or_else(|| "the course".to_owned(), |path| format!("the path {}", path.name))
}

/// Shows the student's progress on the path that the student follows: a bar, the count, and the remaining time.
pub(crate) fn bar(session: &Session, columns: usize) -> anyhow::Result<String> {
    let on = session.path().map_or_else(String::new, |path| format!(" on {}", path.name));
    bar_of(session, &session.exercises()?, &on, columns)
}

fn bar_of(session: &Session, exercises: &[&Exercise], on: &str, columns: usize) -> anyhow::Result<String> {
    let (mut right, mut minutes) = (0, 0);
    for exercise in exercises {
        match session.state(exercise)? {
            State::Right => right += 1,
            _ => minutes += exercise.minutes,
        }
    }
    let all = exercises.len();
    let left = match minutes {
        0 => String::new(),
        1..60 => format!(", about {minutes} min left"),
        _ => format!(", about {} h {:02} min left", minutes / 60, minutes % 60),
    };
    let words = format!("{right} of {all}{on}{left}");
    let width = all.min(columns.saturating_sub(words.chars().count() + 1));
    let done = right * width / all.max(1);
    Ok(format!("{GOOD}{}{GOOD:#}{DIM}{}{DIM:#} {words}\n", "━".repeat(done), "━".repeat(width - done)))
}

/// Lists the exercises that the student follows, each with its state: a path by its steps, and the course by module. If
/// `from` is given, the list starts at its step, or at its module. Finished modules have a check mark. Titles are cut so
/// that each exercise fits on a line of this many columns.
pub(crate) fn list(session: &Session, from: Option<&Exercise>, columns: usize) -> anyhow::Result<String> {
    if let Some(path) = session.path() {
        return Ok(steps(session, path, from, columns)? + &bar(session, columns)?);
    }
    let mut text = String::new();
    let width = session.course.exercises.iter().map(|exercise| exercise.id.len()).max().unwrap_or(0);
    let is_before = |module: &&Module| from.is_some_and(|from| module.folder != from.folder());
    for module in session.course.modules.iter().skip_while(is_before) {
        let (right, all) = session.right_of(module)?;
        let mark = if right == all { format!("{GOOD}✓{GOOD:#}") } else { " ".to_owned() };
        let _ = writeln!(
            text,
            "{mark} {STRONG}{}{STRONG:#}  {}  {DIM}{right} of {all}{DIM:#}",
            module.folder, module.title
        );
        let is_earlier = |exercise: &&&Exercise| {
            from.is_some_and(|from| from.folder() == module.folder && exercise.id != from.id)
        };
        for exercise in session.of(module).iter().skip_while(is_earlier) {
            let state = session.state(exercise)?;
            let _ = writeln!(
                text,
                "    {}  {:width$}  {DIM}{}{DIM:#}",
                mark_of(state),
                exercise.id,
                shortened(&exercise.title, columns.saturating_sub(STATE_WIDTH + width + 8))
            );
        }
    }
    text.push_str(&bar(session, columns)?);
    Ok(text)
}

/// Returns the message for students who have solved everything that they follow.
pub(crate) fn finale(session: &Session) -> anyhow::Result<String> {
    let exercises = session.exercises()?;
    let of = |module: &Module| exercises.iter().filter(|exercise| exercise.folder() == module.folder).count();
    let minutes: u32 = exercises.iter().map(|exercise| exercise.minutes).sum();
    let (line, what) = ("━".repeat(60), followed(session));
    let mut text = format!("\n{GOOD}{line}{GOOD:#}\n  {STRONG}You have finished {what}.{STRONG:#}\n\n");
    for module in session.course.modules.iter().filter(|module| of(module) > 0) {
        let _ = writeln!(
            text,
            "  {GOOD}✓{GOOD:#} {}  {}  {DIM}{}{DIM:#}",
            module.folder,
            module.title,
            count(of(module), "exercise")
        );
    }
    let _ = writeln!(
        text,
        "\n  {}, {}: every check passes.\n{GOOD}{line}{GOOD:#}",
        count(exercises.len(), "exercise"),
        count(minutes.div_ceil(60) as usize, "hour")
    );
    if has_solutions(session.root) {
        text.push_str("How the solution does it: cargo course diff ID\n");
    }
    if exercises.len() < session.course.exercises.len() {
        text.push_str("The other exercises: cargo course path all\n");
    }
    Ok(text)
}

/// Lists a path's steps with their times, and each exercise with its state.
pub(crate) fn path(session: &Session, name: &str, columns: usize) -> anyhow::Result<String> {
    let path = session.course.path(name)?;
    let mut text = steps(session, path, None, columns)?
        + &bar_of(session, &session.course.exercises_of(path)?, "", columns)?;
    if path.steps.is_some() && session.path().is_none_or(|followed| followed.name != path.name) {
        let _ = writeln!(text, "To follow it: cargo course path {}", path.name);
    }
    Ok(text)
}

/// Lists a path's steps, from the step of the exercise `from` on if there is one. The minutes of a talk are in a line of
/// their own, before the exercises that it introduces.
fn steps(session: &Session, path: &Route, from: Option<&Exercise>, columns: usize) -> anyhow::Result<String> {
    let course = session.course;
    let steps = course.schedule(path);
    let has = |scheduled: &Scheduled| from.is_some_and(|from| scheduled.step.exercises.contains(&from.id));
    let at = steps.iter().position(has).unwrap_or(0);
    let width =
        steps.iter().flat_map(|scheduled| &scheduled.step.exercises).map(String::len).max().unwrap_or(0);
    let mut text = format!("{STRONG}{}{STRONG:#}: {} h\n", path.title, clock(course.length(path)));
    for Scheduled { start, talk, step } in &steps[at..] {
        let mut now = *start;
        let mut line = |minutes: u32, state: &str, what: String| {
            let _ = writeln!(text, "{:>5} {minutes:3} min  {state}  {what}", clock(now));
            now += minutes;
        };
        let nothing = " ".repeat(STATE_WIDTH);
        if let Some(instead) = &step.instead {
            // Without solutions, only the speaker can run a demo.
            let words = instead.split_once(": cargo ").map_or(instead.as_str(), |(words, _)| words);
            let instead = if has_solutions(session.root) { instead } else { words };
            line(step.minutes, &nothing, format!("{DIM}{instead}{DIM:#}"));
        }
        if *talk > 0 {
            line(*talk, &nothing, format!("{DIM}talk{DIM:#}"));
        }
        for id in &step.exercises {
            let exercise = course.exercise(id)?;
            let title = shortened(&exercise.title, columns.saturating_sub(STATE_WIDTH + width + 19));
            line(
                exercise.minutes,
                &mark_of(session.state(exercise)?),
                format!("{id:width$}  {DIM}{title}{DIM:#}"),
            );
        }
    }
    Ok(text)
}

/// Shows which path the student follows, and lists the paths with their times.
pub(crate) fn paths(session: &Session) -> anyhow::Result<String> {
    let course = session.course;
    let followed = session.path().map_or_else(
        || "the whole course".to_owned(),
        |path| format!("the path {STRONG}{}{STRONG:#}", path.name),
    );
    let mut text = format!("You follow {followed}.\n\n");
    let width = |text: fn(&Route) -> &str| {
        course.paths.iter().map(|path| text(path).chars().count()).max().unwrap_or(0)
    };
    let (names, titles) = (width(|path| &path.name), width(|path| &path.title));
    for path in &course.paths {
        let exercises = count(course.exercises_of(path)?.len(), "exercise");
        let _ = writeln!(
            text,
            "  {STRONG}{:names$}{STRONG:#}  {:titles$}  {:>5} h  {exercises}{}",
            path.name,
            path.title,
            clock(course.length(path)),
            path.after.as_ref().map_or_else(String::new, |before| format!(", after {before}"))
        );
    }
    text.push_str("\nTo follow one: cargo course path NAME\nIts steps: cargo course list --path NAME\n");
    Ok(text)
}

/// Makes the student follow a path from now on, and shows how to continue.
///
/// # Errors
/// Fails if there is no such path, or if it can't be stored.
pub(crate) fn follow(session: &Session, name: &str) -> anyhow::Result<String> {
    // The whole course is always there, even if no path has this name.
    let path = match name {
        WHOLE => None,
        name => Some(session.course.path(name)?),
    };
    session.progress.set_path(path.map(|path| path.name.as_str())).context("your path can't be stored")?;
    let what = match path {
        Some(path) => format!(
            "{STRONG}{}{STRONG:#}, {} h with talks and breaks. To return to the whole course: cargo course path {WHOLE}",
            path.name,
            clock(session.course.length(path))
        ),
        None => "the whole course".to_owned(),
    };
    Ok(format!("You now follow {what}\n{}\n{}", bar(session, 80)?, next(session)?))
}

/// The name for the whole course.
const WHOLE: &str = "all";

/// Returns a text's first words, and an ellipsis, if it has more than `columns` characters.
fn shortened(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let kept: String = text.chars().take(columns.saturating_sub(1)).collect();
    let words = kept.rsplit_once(' ').map_or(kept.as_str(), |(words, _)| words);
    format!("{words}…")
}

/// The width of [`mark_of`].
const STATE_WIDTH: usize = 7;

/// Formats a state as a seven-letter column.
fn mark_of(state: State) -> String {
    match state {
        State::Open(_) => "to do  ".to_owned(),
        State::Written => format!("{STRONG}written{STRONG:#}"),
        State::Wrong => format!("{BAD}wrong  {BAD:#}"),
        State::Right => format!("{GOOD}right  {GOOD:#}"),
        State::Missing => format!("{BAD}missing{BAD:#}"),
    }
}

/// Shows the first `count` hints for an exercise, or one more than were shown before. `keys` selects how to describe
/// the next step: as keys of `watch` or as commands.
pub(crate) fn hint(
    session: &mut Session,
    id: Option<&str>,
    count: Option<usize>,
    keys: bool,
) -> anyhow::Result<String> {
    let exercise = session.exercise(id)?;
    let all = exercise.hints.len();
    let count = count.unwrap_or(session.progress.hints(exercise) + 1).min(all);
    session.progress.set_hints(exercise, count);
    session.keep();
    let mut text = String::new();
    for (index, hint) in exercise.hints.iter().take(count).enumerate() {
        let _ = writeln!(
            text,
            "{STRONG}{}, hint {} of {all}:{STRONG:#} {}",
            exercise.id,
            index + 1,
            with_code_in_blocks(hint)
        );
    }
    let more = match (count < all, keys) {
        (true, true) => "h shows a clearer one.".to_owned(),
        (true, false) => format!("For a clearer one: cargo course hint {}", exercise.id),
        (false, _) if !has_solutions(session.root) => "That was the last hint.".to_owned(),
        (false, _) => {
            format!("That was the last hint. The solution: cargo course diff --spoil {}", exercise.id)
        }
    };
    let _ = writeln!(text, "{DIM}{more}{DIM:#}");
    Ok(text)
}

/// Formats a hint for a terminal: blocks of code are indented instead of fenced.
fn with_code_in_blocks(hint: &str) -> String {
    let mut text = String::new();
    let mut is_code = false;
    for line in hint.trim_end().lines() {
        if line.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        let indent = if is_code && !line.is_empty() { "    " } else { "" };
        let _ = writeln!(text, "{indent}{line}");
    }
    text.trim_end().to_owned()
}

/// Describes the GPUs and what the checks run on. If nothing can run on this machine, a line reports this; it is not an
/// error.
fn machine() -> String {
    let gpus = gpus().unwrap_or_else(|error| format!("none ({})", error_text(&error)));
    let mut text = format!("GPUs: {gpus}");
    let mut last = None;
    for ranks in 1..=MOST_RANKS {
        let tier = tier_for(ranks).ok();
        if last != Some(tier) {
            let checks =
                if ranks == 1 { "Checks".to_owned() } else { format!("Checks with {ranks} or more ranks") };
            let runs = describe(ranks).unwrap_or_else(|error| format!("nothing: {}", error_text(&error)));
            text.push_str(&format!("\n{checks} run on {runs}"));
            last = Some(tier);
        }
    }
    text
}

/// Returns the number of GPUs on the attached tier, and their names.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_title_is_cut_at_a_word() {
        assert_eq!(shortened("Sum on every rank", 17), "Sum on every rank");
        assert_eq!(shortened("Sum on every rank", 16), "Sum on every…");
        assert_eq!(shortened("Synchronization", 8), "Synchro…");
    }

    #[test]
    fn code_of_a_hint_is_indented() {
        assert_eq!(with_code_in_blocks("Call `new()`."), "Call `new()`.");
        assert_eq!(
            with_code_in_blocks("Both:\n```rust\nlet a = 1;\n\nf(a)\n```\n"),
            "Both:\n    let a = 1;\n\n    f(a)"
        );
    }
}
