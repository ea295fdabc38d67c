//! Formats a verdict for a student: the first failure, how many checks passed, and how to continue.

use std::fmt::Write as _;
use std::path::Path;

use anstream::adapter::strip_str;
use course::answers::has_solutions;
use course::checks::{Counts, Failure, Verdict};
use course::results::count;
use course::scores;
use course::syllabus::Exercise;
use lab::timeline::Chart;

use crate::overview;
use crate::session::{BAD, DIM, GOOD, STRONG, Session};

/// Formats a verdict as one line.
pub(crate) fn headline(exercise: &Exercise, verdict: &Verdict) -> String {
    let id = &exercise.id;
    match verdict {
        Verdict::Passed(counts) => format!("{GOOD}{id} is right{GOOD:#}: {}", counted(counts)),
        // Checks that can't run here are not a reason for a failure.
        Verdict::Failed(counts, failures) => {
            let counts = Counts { ignored: 0, ..*counts };
            if is_to_do(failures) {
                return format!("{STRONG}{id} is still to do{STRONG:#}: {}", counted(&counts));
            }
            format!("{BAD}{id} is not right yet{BAD:#}: {}", counted(&counts))
        }
        Verdict::Broken(_) => format!("{BAD}{id} can't be checked{BAD:#}: its module doesn't compile"),
        Verdict::Ignored(counts) => {
            let ranks = exercise.min_ranks;
            format!(
                "{id} can't be checked here: {} (they need {ranks} ranks; LAB_TIER=virtual has them)",
                counted(counts)
            )
        }
    }
}

/// Returns whether there are failures, and each is a `todo!` that has not been replaced yet.
fn is_to_do(failures: &[Failure]) -> bool {
    !failures.is_empty() && failures.iter().all(|failure| failure.to_do().is_some())
}

fn counted(counts: &Counts) -> String {
    let Counts { passed, failed, ignored, skipped } = *counts;
    let parts = [
        (passed, "passed"),
        (failed, "failed"),
        (ignored, "can't run here"),
        (skipped, "not run after a time limit"),
    ];
    let mut words = Vec::new();
    for (number, what) in parts.into_iter().filter(|part| part.0 > 0) {
        let number = if words.is_empty() { count(number, "check") } else { number.to_string() };
        words.push(format!("{number} {what}"));
    }
    words.join(", ")
}

/// Returns what to look at first: the compiler's first error, or the first check that failed. Returns an empty text if
/// nothing is wrong.
pub(crate) fn details(root: &Path, exercise: &Exercise, verdict: &Verdict) -> String {
    let mut text = String::new();
    match verdict {
        Verdict::Broken(errors) => {
            let Some(first) = errors.first() else { return text };
            text.push_str(first.trim_end());
            if errors.len() > 1 {
                let package = exercise.folder();
                let _ = write!(
                    text,
                    "\n\n{DIM}{} more: cargo check -p m{package}{DIM:#}",
                    count(errors.len() - 1, "error")
                );
            }
        }
        Verdict::Failed(_, failures) => {
            let Some(failure) = failures.first() else { return text };
            let file = exercise.starter(Path::new(""));
            if let Some(task) = failure.to_do() {
                let task = strip_str(&task);
                let _ = writeln!(text, "{STRONG}TO DO{STRONG:#} {DIM}({}){DIM:#}\n{task}", file.display());
                return text;
            }
            // The output of a check must not contain terminal control sequences.
            let message = strip_str(&failure.message).to_string();
            // A report names the line itself.
            let names_file = message.contains(&*file.to_string_lossy());
            let answer = std::fs::read_to_string(exercise.starter(root)).unwrap_or_default();
            let line = function_line(&answer, &message).filter(|_| !names_file);
            let line = line.map_or_else(String::new, |line| format!(":{line}"));
            let _ = write!(
                text,
                "{BAD}FAILED{BAD:#} {STRONG}{}{STRONG:#} {DIM}({}{line}){DIM:#}\n{message}",
                failure.check,
                file.display()
            );
        }
        Verdict::Passed(_) | Verdict::Ignored(_) => return text,
    }
    text.push('\n');
    text
}

/// Returns the line, counted from 1, of the first function of the answer that the message quotes.
fn function_line(answer: &str, message: &str) -> Option<usize> {
    let quoted = message.split('`').skip(1).step_by(2);
    let names = quoted.filter_map(|code| code.split('(').next()?.rsplit("::").next());
    names.filter(|name| !name.is_empty()).find_map(|name| {
        let defines = |line: &str| {
            let after = line.split_once(&format!("fn {name}"));
            after.is_some_and(|(_, rest)| rest.starts_with(['(', '<']))
        };
        answer.lines().position(defines).map(|index| index + 1)
    })
}

/// The maximum number of further failures that are named.
const NAMED: usize = 3;

/// Names the other checks that failed, how to see their messages, and what is still to do. Returns an empty text if the
/// answer has no failure but a `todo!`.
pub(crate) fn other_failures(exercise: &Exercise, verdict: &Verdict) -> String {
    let Verdict::Failed(_, failures) = verdict else { return String::new() };
    let (holes, wrong): (Vec<&Failure>, Vec<&Failure>) =
        failures.iter().partition(|failure| failure.to_do().is_some());
    let mut lines = Vec::new();
    if let [_, others @ ..] = &wrong[..]
        && !others.is_empty()
    {
        let names = others.iter().map(|failure| failure.check.trim_start_matches(&exercise.filter()));
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        if let Some(more @ 1..) = names.len().checked_sub(NAMED) {
            names.truncate(NAMED);
            names.push(format!("{more} more"));
        }
        let (command, names) = (exercise.test_command(), names.join(", "));
        lines.push(format!("Fix this one first. Also failing: {names}\n  {command}"));
    }
    if let Some(task) = holes.first().and_then(|hole| hole.to_do()).filter(|_| !wrong.is_empty()) {
        // The output of a check must not contain terminal control sequences.
        let task = strip_str(task.lines().next().unwrap_or_default()).to_string();
        lines.push(format!("Still to do: {task} ({})", count(holes.len(), "check")));
    }
    match lines.is_empty() {
        true => String::new(),
        false => format!("\n{DIM}{}{DIM:#}\n", lines.join("\n")),
    }
}

/// The maximum number of lines of a timeline.
const LINES: usize = 8;

/// Draws what the streams of a check did, after an empty line. Empty if the terminal is too narrow.
pub(crate) fn drawn(chart: &Chart, columns: usize) -> String {
    // Names of work that come from a check must not contain terminal control sequences.
    match strip_str(&chart.summary(columns, LINES)).to_string() {
        lines if lines.is_empty() => lines,
        lines => format!("\n{lines}"),
    }
}

/// Returns the first lines of a text that is longer than `rows`. The last line then contains the number of remaining
/// lines, and, if `how` is given, how to see them.
pub(crate) fn cut(text: &str, rows: usize, how: &str) -> String {
    match text.lines().count() <= rows {
        true => text.to_owned(),
        false => cut_further(text, 0, rows, how),
    }
}

/// Returns the first lines of a text that has already lost `left_out` lines. A last line contains the number of missing
/// lines, and, if `how` is given, how to see them.
pub(crate) fn cut_further(text: &str, left_out: usize, rows: usize, how: &str) -> String {
    let lines = text.lines().count();
    let shown = lines.min(rows.saturating_sub(1));
    let first: String = text.lines().take(shown).flat_map(|line| [line, "\n"]).collect();
    format!("{first}{DIM}… {}{how}{DIM:#}\n", count(left_out + lines - shown, "more line"))
}

/// Describes how to continue after an exercise that is right: what the student can do now, and what to do next. `keys`
/// selects how to describe it: as keys of `watch` or as commands.
pub(crate) fn after_success(session: &Session, exercise: &Exercise, keys: bool) -> anyhow::Result<String> {
    let mut text = format!("\n{STRONG}You can now:{STRONG:#} {}\n", exercise.objective);
    if has_solutions(session.root) {
        let compare = match keys {
            true => format!("{GOOD}s{GOOD:#} compares your answer with the solution"),
            false => format!("compare  cargo course diff {}", exercise.id),
        };
        let _ = writeln!(text, "  {compare}");
    }
    let discuss = match keys {
        true => format!("{GOOD}a{GOOD:#} shows pitfalls, another answer, and a question"),
        false => format!("discuss  cargo course discuss {}", exercise.id),
    };
    let _ = writeln!(text, "  {discuss}");
    if scores::read(session.root, exercise)?.is_some() {
        let what = if keys { "compare its score with other designs:" } else { "score   " };
        let _ = writeln!(text, "  {what} cargo course score");
    }
    let module = session.course.module(exercise.folder())?;
    let (right, all) = session.right_of(module)?;
    if right == all {
        let number = module.folder.split('_').next().unwrap_or_default();
        let _ = write!(text, "\n{GOOD}Module {number} is done{GOOD:#}: {}\n", module.title);
        if module.program(session.root).is_file() {
            let package = module.starter_package();
            let _ = writeln!(text, "  run what you built: cargo run -p {package}");
        }
    }
    match session.next()? {
        Some(_) if keys => {
            let _ = writeln!(text, "  {GOOD}n{GOOD:#} goes on to the next exercise");
        }
        Some(next) => {
            let _ = write!(text, "\n{}", overview::next_step(next));
            text.push_str(&overview::left_before(session, next)?);
        }
        None if keys => {
            let _ = writeln!(
                text,
                "\n{STRONG}You have finished {}.{STRONG:#} {GOOD}n{GOOD:#} shows all of it",
                overview::followed(session)
            );
        }
        None => text.push_str(&overview::finale(session)?),
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use course::syllabus::Course;

    use super::*;

    fn failures(messages: &[&str]) -> Vec<Failure> {
        let failure = |message: &&str| Failure { check: "a::b".to_owned(), message: (*message).to_owned() };
        messages.iter().map(failure).collect()
    }

    #[test]
    fn an_exercise_is_to_do_until_each_todo_is_replaced() {
        let hole = "not yet implemented: Open GPUs";
        assert!(is_to_do(&failures(&[hole, hole])) && !is_to_do(&[]));
        assert!(!is_to_do(&failures(&["`sum` is wrong", hole])));
    }

    #[test]
    fn a_check_that_ends_at_a_todo_is_still_to_do_and_not_failing() {
        let course = concat!(
            "module = []\n[[exercise]]\nid = \"init/a\"\ntitle = \"\"\nobjective = \"\"\nminutes = 10\nneeds = []\n",
            "min_ranks = 1\nfile = \"01_init/src/a.rs\"\ntest = \"01_init/a.rs\"\nhints = []\n"
        );
        let exercise = Course::parse(course).unwrap().exercises.remove(0);
        let others = |messages: &[&str]| {
            let verdict = Verdict::Failed(Counts::default(), failures(messages));
            strip_str(&other_failures(&exercise, &verdict)).to_string()
        };
        let hole = "not yet implemented: Open GPUs\n  at a.rs:1:1";
        assert_eq!(others(&["1, not 2"]), "");
        assert_eq!(others(&[hole, hole]), "");
        assert_eq!(others(&["1, not 2", hole, hole]), "\nStill to do: Open GPUs (2 checks)\n");
        let both = others(&["1, not 2", "2, not 3", hole]);
        assert!(both.starts_with("\nFix this one first. Also failing: b\n  cargo test"), "{both}");
        assert!(both.ends_with("\nStill to do: Open GPUs (1 check)\n"), "{both}");
    }

    #[test]
    fn a_failure_names_the_line_of_the_quoted_function() {
        let answer = "pub fn shift(x: u8) {}\n\nimpl Sums {\n    pub fn sum<T>(&self) {}\n}\n";
        assert_eq!(function_line(answer, "`shift` on rank 0: it is wrong"), Some(1));
        assert_eq!(function_line(answer, "`Sums::sum` returned Ok"), Some(4));
        assert_eq!(function_line(answer, "after `sum(3)`, `shift` failed"), Some(4));
        assert_eq!(function_line(answer, "`shi` and `other` differ"), None);
    }
}
