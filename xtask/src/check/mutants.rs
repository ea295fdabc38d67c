//! `cargo xtask mutants`: mutates the answers as cargo-mutants does, and checks that each change makes a check fail.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use clap::Args;
use course::syllabus::{Course, Exercise};
use serde::Deserialize;

use super::built::{Built, map_in_parallel};
use super::scratch::Scratch;
use super::variants::Variant;

/// The mutants that no check can detect, each with a reason.
const EQUIVALENT: &str = "tests/equivalent_mutants.toml";

/// The comment that cargo-mutants writes into a changed line.
const MARK: &str = " /* ~ changed by cargo-mutants ~ */";

/// Options of `cargo xtask mutants`.
#[derive(Args)]
pub(crate) struct Options {
    /// The exercises to mutate; all by default
    exercises: Vec<String>,
    /// Mutate only answers with a line that differs from this commit
    #[arg(long, value_name = "COMMIT")]
    since: Option<String>,
}

/// A mutant as cargo-mutants lists it.
#[derive(Deserialize)]
struct Listed {
    file: String,
    name: String,
    diff: String,
    span: Span,
    function: Option<Function>,
}

#[derive(Deserialize)]
struct Function {
    span: Span,
}

#[derive(Clone, Copy, Deserialize)]
struct Span {
    start: Position,
    end: Position,
}

#[derive(Clone, Copy, Deserialize)]
struct Position {
    line: usize,
}

/// A changed answer.
struct Mutant {
    exercise: String,
    /// The line number in the solution where the change begins, and the text of that line before and after the change,
    /// without the surrounding spaces.
    number: usize,
    line: String,
    becomes: String,
    variant: Variant,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Equivalents {
    #[serde(default)]
    mutant: Vec<Equivalent>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Equivalent {
    exercise: String,
    line: String,
    becomes: String,
    #[expect(dead_code, reason = "this field is only for readers of the list")]
    reason: String,
}

/// Runs the checks of each mutant's exercise, and fails if a mutant that is not listed as equivalent passes.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let course = Course::read(root)?;
    for id in &options.exercises {
        course.exercise(id)?;
    }
    let equivalents = equivalents(root)?;
    let mut mutants = Vec::new();
    for exercise in &course.exercises {
        if options.exercises.is_empty() || options.exercises.contains(&exercise.id) {
            mutants.extend(of_exercise(root, exercise, options.since.as_deref())?);
        }
    }
    let is_equivalent = |mutant: &Mutant| {
        let is_it = |it: &&Equivalent| {
            it.exercise == mutant.exercise && it.line == mutant.line && it.becomes == mutant.becomes
        };
        equivalents.iter().any(|it| is_it(&it))
    };
    let (equivalent, mutants): (Vec<_>, Vec<_>) = mutants.into_iter().partition(is_equivalent);
    if mutants.is_empty() {
        println!("there is no answer to mutate");
        return Ok(());
    }
    let variants = mutants.iter().map(|mutant| &mutant.variant);
    let built = Scratch::write_variants(root, &course, "xtask-mutants", variants)?.build()?;
    let (mut killed, mut unviable, mut survivors) = (0, 0, Vec::new());
    for (mutant, outcome) in mutants.iter().zip(outcomes(&course, &built, &mutants)?) {
        match outcome {
            Outcome::Killed => killed += 1,
            Outcome::Unviable => unviable += 1,
            Outcome::Survived => survivors.push(mutant),
        }
    }
    let viable = killed + survivors.len();
    for Mutant { exercise, number, line, becomes, .. } in &survivors {
        println!("survived: {exercise}, line {number}\n    line = '{line}'\n    becomes = '{becomes}'");
    }
    println!(
        "{killed} of {viable} mutants killed ({:.1}%); {} equivalent, {unviable} that don't compile",
        100.0 * killed as f64 / viable.max(1) as f64,
        equivalent.len()
    );
    ensure!(
        survivors.is_empty(),
        "{} mutants survive; add a check, or list them with a reason in {EQUIVALENT}",
        survivors.len()
    );
    Ok(())
}

enum Outcome {
    Killed,
    Unviable,
    Survived,
}

/// Runs the checks on each mutant.
fn outcomes(course: &Course, built: &Built, mutants: &[Mutant]) -> anyhow::Result<Vec<Outcome>> {
    map_in_parallel(1, mutants, |mutant| {
        let exercise = course.exercise(&mutant.exercise)?;
        let Some(test) = built.tests.get(&mutant.variant.name) else { return Ok(Outcome::Unviable) };
        Ok(if test.all_pass(&exercise.filter())? { Outcome::Survived } else { Outcome::Killed })
    })
}

/// Returns the mutants for an exercise's regions.
fn of_exercise(root: &Path, exercise: &Exercise, since: Option<&str>) -> anyhow::Result<Vec<Mutant>> {
    let file = format!("solutions/{}", exercise.file);
    let source = fs::read_to_string(root.join(&file)).with_context(|| format!("can't read {file}"))?;
    let changed = since.map(|commit| changed_lines(root, commit, &file)).transpose()?;
    let regions = regions(&source);
    let mut mutants = Vec::new();
    for Listed { file: listed, name, diff, span, function } in list(root, &file)? {
        ensure!(listed == file, "cargo-mutants changes {listed}, but {file} was expected");
        let is_answer = regions.iter().any(|(start, end)| *start < span.start.line && span.end.line < *end);
        let function = function.map_or(span, |function| function.span);
        let has_changed = changed
            .as_ref()
            .is_none_or(|lines| lines.range(function.start.line..=function.end.line).next().is_some());
        if !is_answer || !has_changed {
            continue;
        }
        let patch = diffy::Patch::from_str(hunks(&diff)).with_context(|| format!("the diff for {name}"))?;
        let variant = format!("m_{}_{}", exercise.id.replace('/', "_"), mutants.len());
        let changed = diffy::apply(&source, &patch).with_context(|| format!("the diff for {name}"))?;
        let line_of = |text: &str| {
            text.lines().nth(span.start.line - 1).unwrap_or_default().replace(MARK, "").trim().to_owned()
        };
        mutants.push(Mutant {
            exercise: exercise.id.clone(),
            number: span.start.line,
            line: line_of(&source),
            becomes: line_of(&changed),
            variant: Variant { exercise: exercise.id.clone(), name: variant, source: changed, check: None },
        });
    }
    Ok(mutants)
}

/// Lists the mutants for a file.
fn list(root: &Path, file: &str) -> anyhow::Result<Vec<Listed>> {
    let output = Command::new("cargo-mutants")
        .args(["mutants", "--list", "--json", "--diff", "--file", file])
        .current_dir(root)
        .output()
        .context("can't run cargo-mutants; install it with `cargo install cargo-mutants --locked`")?;
    if !output.status.success() {
        bail!("cargo-mutants: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("the list from cargo-mutants")
}

/// Returns the first and the last line of each region, counted from 1.
fn regions(source: &str) -> Vec<(usize, usize)> {
    let mut starts = BTreeMap::new();
    let mut regions = Vec::new();
    for (line, text) in (1..).zip(source.lines()) {
        if let Some(name) = text.trim().strip_prefix("// ANCHOR: ") {
            starts.insert(name, line);
        } else if let Some(start) =
            text.trim().strip_prefix("// ANCHOR_END: ").and_then(|name| starts.remove(name))
        {
            regions.push((start, line));
        }
    }
    regions
}

/// Returns a diff without the names of its files. For cargo-mutants, the second one is the mutant's name, which may contain quotation
/// marks.
fn hunks(diff: &str) -> &str {
    diff.find("\n@@").map_or(diff, |before| &diff[before + 1..])
}

/// Returns the lines of a file that differ from the version in a commit.
fn changed_lines(root: &Path, commit: &str, file: &str) -> anyhow::Result<BTreeSet<usize>> {
    let output = Command::new("git")
        .args(["diff", "--unified=0", commit, "--", file])
        .current_dir(root)
        .output()
        .context("can't run git")?;
    ensure!(output.status.success(), "git: {}", String::from_utf8_lossy(&output.stderr).trim());
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(hunk_lines).flatten().collect())
}

/// Returns the range of new lines in a hunk header, `@@ -1,2 +3,4 @@`.
fn hunk_lines(line: &str) -> Option<std::ops::Range<usize>> {
    let new = line.strip_prefix("@@ ")?.split(' ').nth(1)?.strip_prefix('+')?;
    let (start, count) = new.split_once(',').unwrap_or((new, "1"));
    let start: usize = start.parse().ok()?;
    Some(start..start + count.parse::<usize>().ok()?)
}

fn equivalents(root: &Path) -> anyhow::Result<Vec<Equivalent>> {
    let path = root.join(EQUIVALENT);
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(&path).with_context(|| format!("can't read {EQUIVALENT}"))?;
    let read: Equivalents = toml::from_str(&text).context(EQUIVALENT)?;
    Ok(read.mutant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutants_name_may_contain_quotation_marks() {
        let diff = "--- src/a.rs\n+++ replace a -> &str with \"\"\n@@ -1 +1 @@\n-\"a\"\n+\"\"\n";
        let patch = diffy::Patch::from_str(hunks(diff)).unwrap();
        assert_eq!(diffy::apply("\"a\"\n", &patch).unwrap(), "\"\"\n");
    }

    #[test]
    fn regions_lie_between_their_anchors() {
        let source =
            "fn a() {\n    // ANCHOR: a\n    1\n    // ANCHOR_END: a\n}\n// ANCHOR: b\n// ANCHOR_END: b\n";
        assert_eq!(regions(source), [(2, 4), (6, 7)]);
    }

    #[test]
    fn the_header_of_a_hunk_has_its_new_lines() {
        assert_eq!(hunk_lines("@@ -1,2 +3,4 @@ fn a()"), Some(3..7));
        assert_eq!(hunk_lines("@@ -1 +3 @@"), Some(3..4));
        assert_eq!(hunk_lines("@@ -1,2 +3,0 @@"), Some(3..3));
        assert_eq!(hunk_lines("+@@"), None);
    }
}
