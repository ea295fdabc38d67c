//! `cargo course teach report`: reports what a class has done.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use course::syllabus::{Course, Module};

use crate::session::{BAD, DIM, GOOD, STRONG, print};
use crate::work::{Line, LineState};

const SELF_REPORTED: &str = "The students reported this themselves: each file is what its student's machine wrote, and can be edited.";

/// The contents of each student's file, by the student's name.
type Students = BTreeMap<String, (PathBuf, Vec<Line>)>;

/// Prints a row for each student, from files written by `cargo course verify --keep-going --json` and named after the
/// students. Other files are skipped, each with a warning; the exit code shows whether there were any.
pub(super) fn run(course: &Course, places: &[PathBuf]) -> anyhow::Result<ExitCode> {
    let (students, code) = read(course, places)?;
    if students.is_empty() {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        bail!("found no output from `cargo course verify --json` in {}", places.join(", "));
    }
    print(&table(course, &students))?;
    print(&format!("\n{DIM}{SELF_REPORTED}{DIM:#}\n"))?;
    Ok(code)
}

/// Reads every student's file. The exit code shows whether all files were valid.
fn read(course: &Course, places: &[PathBuf]) -> anyhow::Result<(Students, ExitCode)> {
    let mut students = Students::new();
    let mut code = ExitCode::SUCCESS;
    for file in places.iter().map(|place| files(place)).collect::<anyhow::Result<Vec<_>>>()?.concat() {
        let lines = match read_lines(course, &file) {
            Ok(lines) => lines,
            Err(error) => {
                anstream::eprintln!("{BAD}warning:{BAD:#} {error:#}; skipping it");
                code = ExitCode::FAILURE;
                continue;
            }
        };
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        match students.get(&name) {
            Some((other, _)) if *other == file => {}
            Some((other, _)) => {
                bail!(
                    "{} and {}: two students have the same name; rename one file",
                    other.display(),
                    file.display()
                )
            }
            None => _ = students.insert(name, (file, lines)),
        }
    }
    Ok((students, code))
}

/// Formats the table: a row for each student, a column for each module.
fn table(course: &Course, students: &Students) -> String {
    let width = students.keys().map(|name| name.chars().count()).max().unwrap_or(0).max("student".len());
    let mut text = format!("{STRONG}{:width$}  right  wrong  hints  ", "student");
    for module in &course.modules {
        let _ = write!(text, "  {}", module.folder);
    }
    let _ = writeln!(text, "{STRONG:#}");
    for (name, (_, lines)) in students {
        let count = |state: LineState| lines.iter().filter(|line| line.state == state).count();
        let hints = lines.iter().map(|line| line.hints).fold(0, usize::saturating_add);
        let wrong = count(LineState::Wrong) + count(LineState::Broken);
        let _ = write!(
            text,
            "{name:width$}  {GOOD}{:5}{GOOD:#}  {BAD}{wrong:5}{BAD:#}  {hints:5}  ",
            count(LineState::Right)
        );
        for module in &course.modules {
            let _ = write!(text, "  {:>width$}", share(course, module, lines), width = module.folder.len());
        }
        text.push('\n');
    }
    text
}

/// Formats how many of a module's exercises are right, such as `2/7`.
fn share(course: &Course, module: &Module, lines: &[Line]) -> String {
    let of: Vec<&str> = course
        .exercises
        .iter()
        .filter(|exercise| exercise.folder() == module.folder)
        .map(|exercise| exercise.id.as_str())
        .collect();
    let is_right = |line: &&Line| line.state == LineState::Right && of.contains(&line.id.as_str());
    format!("{}/{}", lines.iter().filter(is_right).count(), of.len())
}

/// Reads a file that `cargo course verify --json` wrote.
fn read_lines(course: &Course, file: &Path) -> anyhow::Result<Vec<Line>> {
    let text = fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
    let read = || -> anyhow::Result<Vec<Line>> {
        let lines: Vec<Line> = serde_json::from_str(&text)?;
        ensure!(!lines.is_empty(), "it has no exercise");
        let mut known = BTreeSet::new();
        for line @ Line { id, .. } in &lines {
            let is_of_course = course.exercises.iter().any(|exercise| exercise.id == *id);
            ensure!(is_of_course, "this course has no exercise `{id}`");
            ensure!(known.insert(id), "{id} occurs twice");
            if let Some(contradiction) = line.contradiction() {
                bail!("{contradiction}");
            }
        }
        Ok(lines)
    };
    read().with_context(|| format!("{} is not output from `cargo course verify --json`", file.display()))
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
