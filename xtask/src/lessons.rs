//! `cargo xtask lessons`: checks the form of lessons, the calls that they introduce, and that they don't give away
//! answers.

mod page;
mod words;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use course::starter::{self, read_folder};
use course::syllabus::{Course, Exercise};

use page::Page;
use words::{calls, code_of, words};

/// The number of consecutive words that give away an answer.
const GIVEN_AWAY: usize = 4;

/// Runs the task.
///
/// # Errors
/// Fails if a file can't be read, or if a lesson has problems. The error lists all of them.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let course = Course::read(root)?;
    let problems = problems(root, &course)?;
    ensure!(problems.is_empty(), "problems: {}\n  {}", problems.len(), problems.join("\n  "));
    println!(
        "{} exercises: each page has its form and length, introduces its calls, and gives no answer away",
        course.exercises.len()
    );
    Ok(())
}

/// Returns the problems with the lessons, each with its file. A page that can't be read is one of them.
///
/// # Errors
/// Fails if the README or a module's checks can't be read.
pub(crate) fn problems(root: &Path, course: &Course) -> anyhow::Result<Vec<String>> {
    let mut problems: Vec<String> =
        prefixed("README.md", size_problems(&read(root, "README.md")?, course)).collect();
    for module in &course.modules {
        let path = format!("modules/{}/README.md", module.folder);
        let Ok(text) = read(root, &path).map_err(|error| problems.push(format!("{error:#}"))) else {
            continue;
        };
        problems.extend(prefixed(&path, page::module_problems(&text)));
        let own = course.exercises.iter().filter(|exercise| exercise.folder() == module.folder);
        problems.extend(prefixed(&path, row_problems(&text, own)));
        let checks = read_folder(&root.join("tests").join(&module.folder))?;
        let checks: String = checks.into_values().collect();
        problems.extend(prefixed(&path, test_output_problems(&text, &checks)));
    }
    let mut introduced = BTreeSet::new();
    for exercise in &course.exercises {
        let own = of_exercise(root, exercise, &mut introduced);
        problems.extend(own.unwrap_or_else(|error| vec![format!("{error:#}")]));
    }
    Ok(problems)
}

/// Returns the problems with an exercise's pages. Adds the calls that its lesson introduces to those of earlier lessons.
fn of_exercise(
    root: &Path,
    exercise: &Exercise,
    introduced: &mut BTreeSet<String>,
) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    let (lesson, after) = (exercise.lesson(Path::new("")), exercise.after(Path::new("")));
    let (lesson, after) = (lesson.display().to_string(), after.display().to_string());
    let text = read(root, &lesson)?;
    problems.extend(prefixed(&lesson, Page::lesson(exercise).problems(&text)));
    problems.extend(prefixed(&after, Page::after(exercise).problems(&read(root, &after)?)));

    introduced.extend(code_of(&text).iter().flat_map(|code| words(code)));
    let file = format!("solutions/{}", exercise.file);
    let solution = read(root, &file)?;
    let regions = starter::answers(&solution);
    let starter = starter::starter(&solution).context(file)?;
    let mut known: BTreeSet<String> = words(&starter).into_iter().collect();
    known.extend(introduced.iter().cloned());
    problems.extend(prefixed(&lesson, unknown_calls(&regions, &known)));
    let estimate = minutes(page::count(&text), regions.iter().map(|(_, answer)| answer.as_str()));
    if exercise.minutes != estimate {
        problems.push(format!(
            "course.toml: {}: minutes = {}, but the estimate is {estimate}",
            exercise.id, exercise.minutes
        ));
    }
    let before =
        [(lesson, text), (format!("modules/{}", exercise.file), comments(&starter)), listed(exercise)];
    for (path, text) in &before {
        problems.extend(given_away(path, text, &regions));
    }
    Ok(problems)
}

/// Finds exercises without a row in their module's table, or with other minutes in it.
fn row_problems<'a>(text: &str, exercises: impl Iterator<Item = &'a Exercise>) -> Vec<String> {
    let row = |exercise: &Exercise| {
        let name = Path::new(&exercise.file).file_stem().unwrap_or_default().to_string_lossy();
        format!("| [`{name}`](lessons/{name}.md) | {} |", exercise.minutes)
    };
    let missing = exercises.map(row).filter(|row| !text.lines().any(|line| line.starts_with(row)));
    missing.map(|row| format!("its table needs a row that starts with {row}")).collect()
}

/// Returns the problems with test output that a page shows. The output must name existing checks and must not contain
/// counts, because they change.
fn test_output_problems(text: &str, checks: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for line in text.lines() {
        let name = line.strip_prefix("test ").and_then(|rest| rest.split_whitespace().next());
        if let Some(name) =
            name.filter(|name| name.contains("::") && !checks.contains(&format!("\"{name}\"")))
        {
            problems.push(format!("there is no check {name}"));
        }
        let has_count = line.starts_with("running ") || line.contains(" passed;");
        if has_count && line.contains(|next: char| next.is_ascii_digit()) {
            problems
                .push(format!("`{line}` contains the number of checks; leave it out, because it changes"));
        }
    }
    problems
}

/// Returns a problem if a page does not state the course's size.
fn size_problems(text: &str, course: &Course) -> Vec<String> {
    let minutes: u32 = course.exercises.iter().map(|exercise| exercise.minutes).sum();
    let size = format!("All {} exercises take about {} hours", course.exercises.len(), (minutes + 30) / 60);
    let is_stated = text.split_whitespace().collect::<Vec<_>>().join(" ").contains(&size);
    if is_stated { Vec::new() } else { vec![format!("it must say: {size}")] }
}

fn read(root: &Path, path: &str) -> anyhow::Result<String> {
    fs::read_to_string(root.join(path)).with_context(|| format!("can't read {path}"))
}

fn prefixed(path: &str, problems: Vec<String>) -> impl Iterator<Item = String> {
    problems.into_iter().map(move |problem| format!("{path}: {problem}"))
}

/// Finds calls in the answers that have not been introduced by a lesson.
fn unknown_calls(regions: &[(String, String)], known: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, answer) in regions {
        let unknown = calls(answer).into_iter().filter(|call| !known.contains(call));
        let unknown: Vec<String> = unknown.map(|call| format!("`{call}`")).collect();
        if !unknown.is_empty() {
            problems.push(format!(
                "region `{name}` uses {}, which neither this lesson nor an earlier one introduces",
                unknown.join(", ")
            ));
        }
    }
    problems
}

/// Estimates how many minutes an exercise takes, in steps of five: two minutes to begin, one for every 200 words in its
/// lesson, one for every two lines in its answers, and one for each answer.
fn minutes<'a>(words: usize, answers: impl Iterator<Item = &'a str>) -> u32 {
    let mut minutes = 2.0 + words as f64 / 200.0;
    for answer in answers {
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
        minutes += 1.0 + answer.lines().filter(is_code).count() as f64 / 2.0;
    }
    5 * ((minutes / 5.0).round() as u32).max(1)
}

/// Returns the comments in a source, without comment markers.
fn comments(source: &str) -> String {
    let comment = |line: &str| {
        let text = line.trim_start().strip_prefix("//")?;
        Some(text.trim_start_matches(['/', '!']).to_owned() + "\n")
    };
    source.lines().filter_map(comment).collect()
}

/// Returns the text of `course.toml` that a student sees before beginning an exercise.
fn listed(exercise: &Exercise) -> (String, String) {
    (format!("course.toml: {}", exercise.id), format!("{}\n\n{}\n", exercise.title, exercise.objective))
}

/// Finds code in a text that repeats part of an answer.
fn given_away(path: &str, text: &str, regions: &[(String, String)]) -> Vec<String> {
    let mut problems = Vec::new();
    for code in code_of(text) {
        let shown = words(&code);
        for (name, answer) in regions {
            let answer = words(answer);
            let is_in_answer = |part: &&[String]| answer.windows(GIVEN_AWAY).any(|window| window == *part);
            if let Some(part) = shown.windows(GIVEN_AWAY).find(is_in_answer) {
                problems.push(format!("{path}: `{}` gives away a part of region `{name}`", part.join(" ")));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_test_output_names_checks_and_no_counts() {
        let checks = "Check::new(\"a::it_works\", it_works)";
        assert!(test_output_problems("test a::it_works   ... ok\ntest result: ok.\n", checks).is_empty());
        for line in ["test a::it_worked ... ok", "running 5 tests", "test result: ok. 5 passed; 0 failed"] {
            assert_eq!(test_output_problems(line, checks).len(), 1, "{line}");
        }
    }

    #[test]
    fn a_module_s_table_has_a_row_for_each_exercise() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let course = Course::read(root).unwrap();
        let rows = |text: &str| row_problems(text, course.exercises[..1].iter());
        assert!(rows("| [`devices`](lessons/devices.md) | 10 | open a context |").is_empty());
        let expected = ["its table needs a row that starts with | [`devices`](lessons/devices.md) | 10 |"];
        assert_eq!(rows("| [`devices`](lessons/devices.md) | 15 | open a context |"), expected);
        assert_eq!(rows(""), expected);
    }

    #[test]
    fn minutes_grow_with_words_and_lines() {
        assert_eq!(minutes(0, std::iter::empty()), 5);
        assert_eq!(minutes(600, ["let a = 1;\n\n// why\nf(a)"; 2].into_iter()), 10);
        assert_eq!(minutes(600, ["f(a)\n".repeat(30).as_str()].into_iter()), 20);
    }

    #[test]
    fn a_line_gives_away_the_answer_and_a_call_does_not() {
        let answer =
            "let sum = send.iter().sum::<f32>();\nconsumer.wait(&producer.record_event(None)?)?;".to_owned();
        let regions = [("hand_over".to_owned(), answer)];
        let problems = |text: &str| given_away("a.md", text, &regions);
        assert_eq!(problems("Use `stream.wait(&event)` and `record_event(None)`."), Vec::<String>::new());
        assert_eq!(
            problems("```rust\nconsumer.wait(&producer.record_event(None))\n```\n"),
            ["a.md: `consumer wait producer record_event` gives away a part of region `hand_over`"]
        );
        assert_eq!(problems("consumer wait producer record_event"), Vec::<String>::new());
    }
}
