//! For instructors: what a class has done, what goes wrong, and the course without its solutions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};
use course::answers::starter;
use course::checks::cargo;
use course::mistakes;
use course::syllabus::Course;

use crate::session::{BAD, DIM, GOOD, STRONG, print};
use crate::work::{Line, STATES, coloured};

/// The mistakes of an exercise: what is wrong, how it differs from the solution, which check finds it, and what that says.
pub(crate) fn show_mistakes(root: &Path, course: &Course, id: &str) -> anyhow::Result<String> {
    let exercise = course.exercise(id)?;
    let mut text = String::new();
    for mistake in mistakes::read(root)?.iter().filter(|mistake| mistake.exercise == exercise.id) {
        let _ = writeln!(text, "{STRONG}{}{STRONG:#}  {}", mistake.name, mistake.what);
        text += &coloured(&mistake.changes()?);
        let _ = writeln!(text, "  {DIM}{} says:{DIM:#}", mistake.fails);
        for says in &mistake.says {
            let _ = writeln!(text, "    {says}");
        }
        let _ = writeln!(text, "  {DIM}{}{DIM:#}\n", mistake.path());
    }
    ensure!(!text.is_empty(), "{} has no mistake", exercise.id);
    Ok(text)
}

/// A row for each student, from the files that `cargo course verify --keep-going --json` wrote: one each, named after them.
/// Files that are something else are left out, each with a warning; the code says whether there were any.
pub(crate) fn report(course: &Course, places: &[PathBuf]) -> anyhow::Result<ExitCode> {
    let mut students: BTreeMap<String, (PathBuf, Vec<Line>)> = BTreeMap::new();
    let mut code = ExitCode::SUCCESS;
    for file in places.iter().map(|place| files(place)).collect::<anyhow::Result<Vec<_>>>()?.concat() {
        let lines = match read_lines(course, &file) {
            Ok(lines) => lines,
            Err(error) => {
                anstream::eprintln!("{BAD}warning:{BAD:#} {error:#}; it is left out");
                code = ExitCode::FAILURE;
                continue;
            }
        };
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        match students.get(&name) {
            Some((other, _)) if *other == file => {}
            Some((other, _)) => {
                bail!("{} and {}: two students of one name; rename one file", other.display(), file.display())
            }
            None => _ = students.insert(name, (file, lines)),
        }
    }
    if students.is_empty() {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        bail!("no output of `cargo course verify --json` is in {}", places.join(", "));
    }
    let width = students.keys().map(|name| name.chars().count()).max().unwrap_or(0).max("student".len());
    let mut text = format!("{STRONG}{:width$}  right  wrong  hints  ", "student");
    for module in &course.modules {
        let _ = write!(text, "  {}", module.folder);
    }
    let _ = writeln!(text, "{STRONG:#}");
    for (name, (_, lines)) in &students {
        let count = |state: &str| lines.iter().filter(|line| line.state == state).count();
        let hints = lines.iter().map(|line| line.hints).fold(0, usize::saturating_add);
        let wrong = count("wrong") + count("broken");
        let _ = write!(
            text,
            "{name:width$}  {GOOD}{:5}{GOOD:#}  {BAD}{wrong:5}{BAD:#}  {hints:5}  ",
            count("right")
        );
        for module in &course.modules {
            let of: Vec<&str> = course
                .exercises
                .iter()
                .filter(|exercise| exercise.folder() == module.folder)
                .map(|exercise| exercise.id.as_str())
                .collect();
            let right =
                lines.iter().filter(|line| line.state == "right" && of.contains(&line.id.as_str())).count();
            let share = format!("{right}/{}", of.len());
            let _ = write!(text, "  {share:>width$}", width = module.folder.len());
        }
        text.push('\n');
    }
    print(&text)?;
    Ok(code)
}

/// What `cargo course verify --json` wrote into a file.
fn read_lines(course: &Course, file: &Path) -> anyhow::Result<Vec<Line>> {
    let text = fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
    let read = || -> anyhow::Result<Vec<Line>> {
        let lines: Vec<Line> = serde_json::from_str(&text)?;
        let mut known = BTreeSet::new();
        for Line { id, state, .. } in &lines {
            let is_of_course = course.exercises.iter().any(|exercise| exercise.id == *id);
            ensure!(is_of_course, "this course has no exercise `{id}`");
            ensure!(known.insert(id), "{id} is there twice");
            ensure!(STATES.contains(&state.as_str()), "{id}: `{state}` is no state");
        }
        Ok(lines)
    };
    read().with_context(|| format!("{} is not what `cargo course verify --json` prints", file.display()))
}

/// The JSON files in a folder, or the file itself.
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

/// What gives the answers away, or is of no use without them.
const LEFT_OUT: [&str; 6] = [
    "solutions/",
    "tests/mistakes/",
    "tests/deletions.toml",
    "crates/course/tests/programs.rs",
    "xtask/",
    ".ci/",
];

/// Writes the course without its solutions: later modules build on the student's own earlier ones.
pub(crate) fn starter_archive(root: &Path, course: &Course, to: &Path) -> anyhow::Result<String> {
    let name = to.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let top = name.strip_suffix(".tar.gz").filter(|top| !top.is_empty());
    let top = top.with_context(|| format!("{}: call it something.tar.gz", to.display()))?;
    let around = course::progress::folder(root).join(format!("archive-{}", std::process::id()));
    let made = stage(root, course, &around.join(top)).and_then(|count| {
        let new = to.with_file_name(format!(".{name}.{}", std::process::id()));
        let written = write(&around, top, &new).and_then(|()| Ok(fs::rename(&new, to)?));
        if written.is_err() {
            // It may not even be there.
            let _ = fs::remove_file(&new);
        }
        written.with_context(|| format!("can't write {}", to.display())).map(|()| count)
    });
    // What is left of it does no harm.
    let _ = fs::remove_dir_all(&around);
    Ok(format!("{} files are in {}\n", made?, to.display()))
}

/// Puts the files into a folder of their own, with the manifest and the lock file of what is left.
fn stage(root: &Path, course: &Course, staging: &Path) -> anyhow::Result<usize> {
    let output =
        Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().context("can't run git")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    let names = String::from_utf8(output.stdout).context("a file's name")?;
    let is_kept =
        |name: &&str| !name.is_empty() && !LEFT_OUT.iter().any(|left_out| name.starts_with(left_out));
    let mut count = 0;
    for name in names.split('\0').filter(is_kept) {
        let (from, to) = (root.join(name), staging.join(name));
        fs::create_dir_all(to.parent().context("it lies in a folder")?)?;
        fs::copy(&from, &to).with_context(|| format!("can't copy {}", from.display()))?;
        count += 1;
    }
    // Whatever the instructor has written into the exercises stays at home.
    for exercise in &course.exercises {
        fs::write(exercise.starter(staging), starter(root, exercise)?)?;
    }
    let manifest = staging.join("Cargo.toml");
    fs::write(&manifest, without_solutions(&fs::read_to_string(&manifest)?)?)?;
    // Cargo takes the packages that are gone out of the lock file.
    let output = cargo()
        .args(["metadata", "--offline", "--format-version", "1"])
        .current_dir(staging)
        .output()
        .context("can't run cargo")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(count)
}

/// The workspace's manifest without solutions.
fn without_solutions(manifest: &str) -> anyhow::Result<String> {
    let mut text = manifest.replace(", \"solutions/*\"", "").replace(", \"xtask\"", "");
    for line in manifest.lines().filter(|line| line.contains("path = \"solutions/")) {
        let own = line.replace("package = \"s", "package = \"m").replace("\"solutions/", "\"modules/");
        text = text.replace(line, &own);
    }
    if text.contains("solutions/") {
        bail!("Cargo.toml still speaks of solutions/");
    }
    Ok(text)
}

fn write(around: &Path, top: &str, file: &Path) -> anyhow::Result<()> {
    let tar = Command::new("tar").arg("-czf").arg(file).arg("-C").args([around, Path::new(top)]).output();
    let tar = tar.context("can't run tar")?;
    ensure!(tar.status.success(), "tar: {}", String::from_utf8_lossy(&tar.stderr).trim());
    Ok(())
}
