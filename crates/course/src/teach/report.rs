//! `cargo course teach report`: reports what a class has done.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail, ensure};
use course::checks::{Stop, build, to_do};
use course::results::{Class, Line, Outcome, Results, State, VERSION};
use course::syllabus::{Course, Exercise, Module};

use crate::session::{BAD, DIM, GOOD, STRONG, print};

const SELF_REPORTED: &str = "The students reported this themselves: each file is what its student's machine wrote, and can be edited.";

/// A student's exercises.
struct Student {
    /// The file that lists them.
    file: PathBuf,
    lines: Vec<Line>,
    is_self_reported: bool,
}

/// All students, by name.
type Students = BTreeMap<String, Student>;

/// The names of each exercise's checks, by the exercise's id.
type Checks = BTreeMap<String, Vec<String>>;

/// Prints a row for each student. A file is what `cargo course verify --keep-going --json` printed, and named after its
/// student, or the grades of a class. Other files are skipped, each with a warning; the exit code shows whether there
/// were any. If a path is named, only its exercises count.
pub(super) fn run(
    root: &Path,
    course: &Course,
    path: Option<&str>,
    places: &[PathBuf],
) -> anyhow::Result<ExitCode> {
    let counted = match path {
        Some(path) => course.exercises_of(course.path(path)?)?,
        None => course.exercises.iter().collect(),
    };
    let (mut students, code) = read(root, course, places)?;
    for student in students.values_mut() {
        student.lines.retain(|line| counted.iter().any(|exercise| exercise.id == line.id));
    }
    if students.is_empty() {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        bail!("found no output from `cargo course verify --json` in {}", places.join(", "));
    }
    print(&table(course, &counted, &students))?;
    if students.values().any(|student| student.is_self_reported) {
        print(&format!("\n{DIM}{SELF_REPORTED}{DIM:#}\n"))?;
    }
    Ok(code)
}

/// Reads every file. The exit code shows whether all files were valid.
fn read(root: &Path, course: &Course, places: &[PathBuf]) -> anyhow::Result<(Students, ExitCode)> {
    let files = places.iter().map(|place| files(place)).collect::<anyhow::Result<Vec<_>>>()?.concat();
    let checks = if files.is_empty() { Checks::new() } else { checks(root, course)? };
    let mut students = Students::new();
    let mut code = ExitCode::SUCCESS;
    for file in files {
        let read = match read_file(course, &checks, &file) {
            Ok(read) => read,
            Err(error) => {
                anstream::eprintln!("{BAD}warning:{BAD:#} {error:#}; skipping it");
                code = ExitCode::FAILURE;
                continue;
            }
        };
        for (name, student) in read {
            match students.get(&name) {
                Some(Student { file: other, .. }) if *other == file => {}
                Some(Student { file: other, .. }) => {
                    bail!(
                        "{} and {}: two students have the same name; rename one file",
                        other.display(),
                        file.display()
                    )
                }
                None => _ = students.insert(name, student),
            }
        }
    }
    Ok((students, code))
}

/// Builds the course's checks, and returns their names. If they have been built before, this takes a second.
fn checks(root: &Path, course: &Course) -> anyhow::Result<Checks> {
    eprintln!("listing the course's own checks …");
    let (mut checks, stop) = (Checks::new(), Stop::default());
    for module in &course.modules {
        let tests = build(root, module, None, false, &stop)?;
        let tests =
            tests.map_err(|errors| anyhow!("{} doesn't compile:\n{}", module.folder, errors.concat()))?;
        for exercise in course.exercises.iter().filter(|exercise| exercise.folder() == module.folder) {
            let mut names = tests.names(&exercise.filter(), &stop)?;
            names.retain(|name| name.starts_with(&exercise.filter()));
            checks.insert(exercise.id.clone(), names);
        }
    }
    Ok(checks)
}

/// Formats the table: a row for each student, a column for each module that has exercises to count.
fn table(course: &Course, counted: &[&Exercise], students: &Students) -> String {
    let of = |module: &Module| counted.iter().filter(|exercise| exercise.folder() == module.folder).count();
    let modules: Vec<&Module> = course.modules.iter().filter(|module| of(module) > 0).collect();
    let width = students.keys().map(|name| name.chars().count()).max().unwrap_or(0).max("student".len());
    let mut text = format!("{STRONG}{:width$}  right  wrong  to do  hints  ", "student");
    for module in &modules {
        let _ = write!(text, "  {}", module.folder);
    }
    let _ = writeln!(text, "{STRONG:#}");
    for (name, Student { lines, .. }) in students {
        let count = |state: State| lines.iter().filter(|line| line.state == state).count();
        let hints = lines.iter().map(|line| line.hints).fold(0, usize::saturating_add);
        let open = lines.iter().filter(|line| is_to_do(line)).count();
        let is_wrong = |line: &&Line| {
            matches!(line.state, State::Wrong | State::Broken | State::Refused) && !is_to_do(line)
        };
        let wrong = lines.iter().filter(is_wrong).count();
        let _ = write!(
            text,
            "{name:width$}  {GOOD}{:5}{GOOD:#}  {BAD}{wrong:5}{BAD:#}  {open:5}  {hints:5}  ",
            count(State::Right)
        );
        for module in &modules {
            let share = share(of(module), module, counted, lines);
            let _ = write!(text, "  {share:>width$}", width = module.folder.len());
        }
        text.push('\n');
    }
    text
}

/// Returns whether nothing of an exercise has been done: each check that failed stopped at a `todo!`.
fn is_to_do(line: &Line) -> bool {
    let mut failed = line.checks.iter().filter(|check| check.outcome == Outcome::Failed);
    match line.state {
        State::Unbegun | State::Missing => true,
        State::Wrong => failed.all(|check| to_do(&check.message).is_some()),
        _ => false,
    }
}

/// Formats how many of a module's exercises are right, such as `2/7`.
fn share(all: usize, module: &Module, counted: &[&Exercise], lines: &[Line]) -> String {
    let is_of = |line: &Line| counted.iter().any(|it| it.id == line.id && it.folder() == module.folder);
    let is_right = |line: &&Line| line.state == State::Right && is_of(line);
    format!("{}/{all}", lines.iter().filter(is_right).count())
}

/// Reads a file with the results of one student, or with the grades of a class.
fn read_file(course: &Course, checks: &Checks, file: &Path) -> anyhow::Result<Vec<(String, Student)>> {
    let text = fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
    let read = || -> anyhow::Result<Vec<(String, Student)>> {
        let value: serde_json::Value = serde_json::from_str(&text)?;
        let is_self_reported = value.get("students").is_none();
        let (version, students) = if is_self_reported {
            let Results { course, exercises, .. } = serde_json::from_value(value)?;
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            (course, vec![(name, exercises)])
        } else {
            let Class { course, students, .. } = serde_json::from_value(value)?;
            (course, students.into_iter().map(|student| (student.name, student.exercises)).collect())
        };
        // Grades also contain the commit.
        let version = version.split(' ').next().unwrap_or_default();
        ensure!(version == VERSION, "it is from version {version} of the course, but this is {VERSION}");
        for (_, lines) in &students {
            validate(course, checks, lines)?;
        }
        let student = |lines| Student { file: file.to_owned(), lines, is_self_reported };
        Ok(students.into_iter().map(|(name, lines)| (name, student(lines))).collect())
    };
    read().with_context(|| format!("{} is not output from `cargo course verify --json`", file.display()))
}

/// Fails if exercises are not those of the course, or not what its checks can lead to.
fn validate(course: &Course, checks: &Checks, lines: &[Line]) -> anyhow::Result<()> {
    ensure!(!lines.is_empty(), "it has no exercise");
    let mut known = BTreeSet::new();
    for line @ Line { id, .. } in lines {
        let is_of_course = course.exercises.iter().any(|exercise| exercise.id == *id);
        ensure!(is_of_course, "this course has no exercise `{id}`");
        ensure!(known.insert(id), "{id} occurs twice");
        let expected = checks.get(id).map(Vec::as_slice).unwrap_or_default();
        if let Some(problem) = line.contradiction().or_else(|| line.unexpected_checks(expected)) {
            bail!("{problem}");
        }
    }
    Ok(())
}

/// Returns the JSON files in a folder, or the file itself.
fn files(place: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if place.is_file() {
        return Ok(vec![place.to_owned()]);
    }
    let entries = fs::read_dir(place).with_context(|| format!("can't read {}", place.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    Ok(files)
}
