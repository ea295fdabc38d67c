//! Checks that each exercise has everything that belongs to one.

use std::fs;
use std::path::Path;

use course::alternatives::Alternative;
use course::mistakes::Mistake;
use course::module_sources::ONLY_FOR;
use course::syllabus::{Course, Exercise};

use super::names::{self, CheckSources};

/// The fewest mistakes, and the fewest right answers in another form, of an exercise.
const FEWEST: usize = 3;

/// Returns what exercises lack, each with what to do.
pub(super) fn problems(
    root: &Path,
    course: &Course,
    mistakes: &[Mistake],
    alternatives: &[Alternative],
    sources: &CheckSources,
) -> Vec<String> {
    let mut problems = order_problems(root, course);
    for exercise in &course.exercises {
        let own = [
            module_lines(root, exercise),
            names::problems(exercise, &sources.of(exercise)),
            fewest("mistakes", exercise, mistakes.iter().map(|mistake| mistake.patch.exercise.as_str())),
            fewest("alternatives", exercise, alternatives.iter().map(|other| other.patch.exercise.as_str())),
        ];
        problems.extend(own.concat().into_iter().map(|problem| format!("{}: {problem}", exercise.id)));
    }
    problems
}

/// Finds missing lines in the files that list a module's exercises and checks.
fn module_lines(root: &Path, exercise: &Exercise) -> Vec<String> {
    let stem = |path: &str| Path::new(path).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let folder = exercise.folder();
    let (file, test) = (stem(&exercise.file), stem(&exercise.test));
    let (library, checks) = (format!("solutions/{folder}/src/lib.rs"), format!("tests/{folder}/mod.rs"));
    let mut problems = Vec::new();
    let mut require = |path: &str, text: &str, line: String| {
        if !text.lines().any(|other| other.trim() == line) {
            problems.push(format!("{path} needs the line `{line}`"));
        }
    };
    require(&library, &read(&library), format!("pub mod {file};"));
    let text = read(&checks);
    require(&checks, &text, format!("mod {test};"));
    require(&checks, &text, ONLY_FOR.join(&test));
    if !listed(&text).contains(&test.as_str()) {
        problems
            .push(format!("{checks} needs `{test}` in `lab::checks![…]`, at its place among the exercises"));
    }
    problems
}

/// Returns the names in `lab::checks![…]`.
fn listed(text: &str) -> Vec<&str> {
    let list = text.split_once("lab::checks![").and_then(|(_, rest)| rest.split_once(']'));
    let names = list.map_or("", |(names, _)| names).split(',').map(str::trim);
    names.filter(|name| !name.is_empty()).collect()
}

/// Finds modules whose checks are not in the order of the exercises in course.toml.
fn order_problems(root: &Path, course: &Course) -> Vec<String> {
    let mut problems = Vec::new();
    for module in &course.modules {
        let path = format!("tests/{}/mod.rs", module.folder);
        let text = fs::read_to_string(root.join(&path)).unwrap_or_default();
        let is_own = |exercise: &&Exercise| exercise.folder() == module.folder;
        let filters: Vec<String> = course.exercises.iter().filter(is_own).map(Exercise::filter).collect();
        let order: Vec<&str> = filters.iter().map(|filter| filter.trim_end_matches(':')).collect();
        let names = listed(&text);
        let known: Vec<&str> = order.iter().copied().filter(|name| names.contains(name)).collect();
        if names != known {
            problems.push(format!(
                "{path}: the order of `lab::checks![…]` must be that of course.toml: {}",
                order.join(", ")
            ));
        }
    }
    problems
}

/// Returns a problem if an exercise has too few patches of a kind.
fn fewest<'a>(kind: &str, exercise: &Exercise, exercises: impl Iterator<Item = &'a str>) -> Vec<String> {
    match exercises.filter(|id| *id == exercise.id).count() {
        FEWEST.. => Vec::new(),
        count => vec![format!(
            "tests/{kind}/{} must contain at least {FEWEST} {kind}, and contains {count}",
            exercise.id
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_course_is_complete_and_a_new_exercise_is_not() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut course = Course::read(root).unwrap();
        let (mistakes, alternatives) =
            (course::mistakes::read(root).unwrap(), course::alternatives::read(root).unwrap());
        let sources = CheckSources::read(root, &course).unwrap();
        let problems = |course: &Course| problems(root, course, &mistakes, &alternatives, &sources);
        assert_eq!(problems(&course), [""; 0]);
        course.exercises.swap(0, 1);
        let order = &problems(&course)[0];
        assert!(order.contains("must be that of course.toml: buffers, devices, kernel"), "{order}");
        course.exercises.swap(0, 1);
        let exercise = &mut course.exercises[0];
        exercise.id = "init/new".to_owned();
        exercise.file = "01_init/src/new.rs".to_owned();
        exercise.test = "01_init/new.rs".to_owned();
        let lacks = [
            "tests/01_init/mod.rs: the order of `lab::checks![…]` must be that of course.toml: new, buffers, kernel, init_all, rendezvous, environment, id_exchange, lifetime, errors",
            "init/new: solutions/01_init/src/lib.rs needs the line `pub mod new;`",
            "init/new: tests/01_init/mod.rs needs the line `mod new;`",
            "init/new: tests/01_init/mod.rs needs the line `#[cfg(any(not(one_exercise), new))]`",
            "init/new: tests/01_init/mod.rs needs `new` in `lab::checks![…]`, at its place among the exercises",
            "init/new: tests/mistakes/init/new must contain at least 3 mistakes, and contains 0",
            "init/new: tests/alternatives/init/new must contain at least 3 alternatives, and contains 0",
        ];
        assert_eq!(problems(&course), lacks);
    }
}
