//! `cargo xtask mistake`: saves an edit of a solution as a mistake, and updates saved mistakes after solutions change.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use course::alternatives::{self, Alternative};
use course::answer_patch::AnswerPatch;
use course::mistakes::{self, Mistake};
use course::replace::replace;
use course::starter::read_folder;
use course::syllabus::Course;
use diffy::{DiffOptions, Hunk, Line};

/// The maximum number of context lines around each change.
const MOST_CONTEXT: usize = 3;

/// Subcommands of `cargo xtask mistake`.
#[derive(Subcommand)]
pub(crate) enum Task {
    /// Save an edit of a solution as a mistake, and restore the solution
    ///
    /// The edit is what `git diff solutions` shows. To change a mistake, `git apply` its patch, remove the patch, edit
    /// the solution, and add the mistake again.
    Add(Add),
    /// Save an edit of a solution as a right answer that differs from it, and restore the solution
    AddRight(AddRight),
    /// Rewrite the patches whose solution has changed, and list those that need a manual edit
    Refresh,
}

/// The header of a new mistake.
#[derive(Args)]
pub(crate) struct Add {
    /// Name of the mistake: lower-case letters, digits, and `_`
    name: String,
    /// What is wrong
    #[arg(long, value_name = "WORDS")]
    mistake: String,
    /// The check that must fail
    #[arg(long, value_name = "CHECK")]
    fails: String,
    /// Words that the check's message must contain; can be repeated
    #[arg(long, value_name = "WORDS", required = true)]
    says: Vec<String>,
}

/// The header of a new right answer.
#[derive(Args)]
pub(crate) struct AddRight {
    /// Name of the answer: lower-case letters, digits, and `_`
    name: String,
    /// What it does differently
    #[arg(long, value_name = "WORDS")]
    alternative: String,
}

/// Runs the task.
pub(crate) fn run(root: &Path, task: &Task) -> anyhow::Result<()> {
    match task {
        Task::Add(head) => add(root, head),
        Task::AddRight(head) => add_right(root, head),
        Task::Refresh => refresh(root),
    }
}

/// An edit of a solution.
struct Edit {
    exercise: String,
    folder: String,
    file: String,
    solution: String,
    edited: String,
}

impl Edit {
    /// Finds the only edited solution.
    fn find(root: &Path) -> anyhow::Result<Self> {
        let course = Course::read(root)?;
        let of_exercise = |file: &&str| {
            course.exercises.iter().any(|exercise| *file == format!("solutions/{}", exercise.file))
        };
        let untracked = git(root, &["ls-files", "--others", "--exclude-standard", "--", "solutions"])?;
        if let Some(file) = untracked.lines().find(of_exercise) {
            bail!("{file} is not in git\nhelp: restore the right answer, `git add` it, and then edit it");
        }
        let edited = git(root, &["diff", "--name-only", "--", "solutions"])?;
        let files: Vec<&str> = edited.lines().filter(of_exercise).collect();
        let [file] = files[..] else {
            bail!(
                "{} solutions of exercises have been edited, but exactly 1 is expected{}\nhelp: edit the solution of one exercise; `git add` or `git restore` other edits",
                files.len(),
                files.iter().map(|file| format!("\n  {file}")).collect::<String>()
            );
        };
        let exercise =
            course.exercises.iter().find(|exercise| file == format!("solutions/{}", exercise.file));
        let exercise = exercise.context("the file is that of an exercise")?;
        let solution = git(root, &["show", &format!(":{file}")])?;
        ensure!(
            !solution.is_empty(),
            "{file} is empty in git's index\nhelp: restore the right answer, `git add` it, and then edit it"
        );
        let edited = fs::read_to_string(root.join(file)).with_context(|| format!("can't read {file}"))?;
        Ok(Self {
            exercise: exercise.id.clone(),
            folder: exercise.folder().to_owned(),
            file: file.to_owned(),
            solution,
            edited,
        })
    }

    /// Returns the edit as a patch in `folder`.
    fn patch(&self, folder: &'static str, name: &str) -> anyhow::Result<AnswerPatch> {
        let is_name = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
        ensure!(
            !name.is_empty() && name.chars().all(is_name),
            "`{name}` is not a valid name: use a-z, 0-9, and `_`"
        );
        let diff = diff(&self.file, &self.solution, &self.edited);
        let patch = AnswerPatch { folder, exercise: self.exercise.clone(), name: name.to_owned(), diff };
        ensure!(
            patch.apply(&self.solution)? == self.edited,
            "the diff for {} doesn't reproduce the edit",
            self.file
        );
        Ok(patch)
    }

    /// Saves the text of the patch, and then restores the solution.
    fn save(&self, root: &Path, patch: &AnswerPatch, text: String) -> anyhow::Result<()> {
        let path = root.join(patch.path());
        ensure!(!path.exists(), "{} already exists: choose another name, or remove the file", patch.path());
        replace(&path, text)?;
        if let Err(error) = replace(&root.join(&self.file), &self.solution) {
            // The solution still contains the edit.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        println!(
            "saved {}, and restored {}; `cargo xtask check {}` runs it",
            patch.path(),
            self.file,
            self.exercise
        );
        Ok(())
    }
}

fn add(root: &Path, head: &Add) -> anyhow::Result<()> {
    let edit = Edit::find(root)?;
    let tests = read_folder(&root.join("tests").join(&edit.folder))?;
    ensure!(
        tests.values().any(|text| text.contains(&format!("\"{}\"", head.fails.trim()))),
        "there is no check `{}` in tests/{}",
        head.fails.trim(),
        edit.folder
    );
    let mistake = new(head, &edit)?;
    edit.save(root, &mistake.patch, mistake.text())
}

fn add_right(root: &Path, head: &AddRight) -> anyhow::Result<()> {
    let edit = Edit::find(root)?;
    let what = one_line(&head.alternative)?;
    let right = Alternative { patch: edit.patch(alternatives::FOLDER, &head.name)?, what };
    edit.save(root, &right.patch, right.text())
}

/// Returns the mistake that an edit makes.
fn new(head: &Add, edit: &Edit) -> anyhow::Result<Mistake> {
    Ok(Mistake {
        patch: edit.patch(mistakes::FOLDER, &head.name)?,
        what: one_line(&head.mistake)?,
        fails: one_line(&head.fails)?,
        says: head.says.iter().map(|words| one_line(words)).collect::<anyhow::Result<_>>()?,
    })
}

/// Returns the words of a line in a header.
fn one_line(words: &str) -> anyhow::Result<String> {
    let line = words.trim();
    ensure!(!line.is_empty() && !line.contains('\n'), "`{words}` must be one line and must not be empty");
    Ok(line.to_owned())
}

/// The result of updating a patch.
enum Refreshed {
    /// The patch is unchanged.
    Same,
    /// The patch must have this new diff.
    Moved(String),
    /// The patch conflicts with the changes in the solution.
    NeedsPerson,
}

fn refresh(root: &Path) -> anyhow::Result<()> {
    let course = Course::read(root)?;
    let mut mistakes = mistakes::read(root)?;
    let mut alternatives = alternatives::read(root)?;
    let mut earlier: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut colliding = Vec::new();
    let of_mistakes = mistakes.iter_mut().map(|mistake| &mut mistake.patch);
    for patch in of_mistakes.chain(alternatives.iter_mut().map(|alternative| &mut alternative.patch)) {
        let file = format!("solutions/{}", course.exercise(&patch.exercise)?.file);
        let solution = fs::read_to_string(root.join(&file)).with_context(|| format!("can't read {file}"))?;
        if patch.apply(&solution).is_err() && !earlier.contains_key(&file) {
            earlier.insert(file.clone(), versions(root, &file)?);
        }
        let versions = earlier.get(&file).map(Vec::as_slice).unwrap_or_default();
        match refreshed(patch, &file, &solution, versions) {
            Refreshed::Same => {}
            Refreshed::Moved(diff) => patch.diff = diff,
            Refreshed::NeedsPerson => colliding.push(format!("\n  {} on {file}", patch.path())),
        }
    }
    let texts = mistakes.iter().map(|mistake| (mistake.patch.path(), mistake.text()));
    let texts = texts.chain(alternatives.iter().map(|it| (it.patch.path(), it.text())));
    let mut rewritten = 0;
    for (path, text) in texts {
        if fs::read_to_string(root.join(&path)).ok().as_ref() != Some(&text) {
            replace(&root.join(&path), text)?;
            println!("rewrote {path}");
            rewritten += 1;
        }
    }
    println!("{} mistakes and {} alternatives, {rewritten} rewritten", mistakes.len(), alternatives.len());
    ensure!(
        colliding.is_empty(),
        "patches that no longer apply and can't be merged: {}{}\nhelp: restore each solution if you are still editing it; otherwise, make the patch's change to its solution by hand, and save the patch again",
        colliding.len(),
        colliding.concat()
    );
    Ok(())
}

/// Applies the patch to the solution. If that fails, applies it to the latest earlier version that accepts it, and
/// merges the changes since then.
fn refreshed(patch: &AnswerPatch, file: &str, solution: &str, earlier: &[String]) -> Refreshed {
    let merged = || {
        let (base, wrong) = earlier.iter().find_map(|base| Some((base, patch.apply(base).ok()?)))?;
        diffy::merge(base, solution, &wrong).ok()
    };
    match patch.apply(solution).ok().or_else(merged) {
        Some(wrong) if wrong != solution => match diff(file, solution, &wrong) {
            diff if diff == patch.diff => Refreshed::Same,
            diff => Refreshed::Moved(diff),
        },
        _ => Refreshed::NeedsPerson,
    }
}

/// Returns the diff from a solution to a wrong answer, in `git apply` format. It has just enough context lines to
/// identify the location of each change, so that it is short and applies only there.
fn diff(file: &str, solution: &str, wrong: &str) -> String {
    let with_context = |lines| {
        let mut options = DiffOptions::new();
        options.set_context_len(lines);
        options.set_original_filename(format!("a/{file}")).set_modified_filename(format!("b/{file}"));
        options.create_patch(solution, wrong)
    };
    let lines: Vec<&str> = solution.split_inclusive('\n').collect();
    let is_unique = |hunk: &Hunk<'_, str>| {
        let old: Vec<&str> = hunk.lines().iter().filter_map(old_line).collect();
        lines.windows(old.len()).filter(|window| *window == old).count() == 1
    };
    let fewest = (1..MOST_CONTEXT).find(|&lines| with_context(lines).hunks().iter().all(is_unique));
    with_context(fewest.unwrap_or(MOST_CONTEXT)).to_string()
}

/// Returns the line of the solution that a diff line contains.
fn old_line<'a>(line: &Line<'a, str>) -> Option<&'a str> {
    match line {
        Line::Context(text) | Line::Delete(text) => Some(text),
        Line::Insert(_) => None,
    }
}

/// Returns the committed versions of a file, latest first.
fn versions(root: &Path, file: &str) -> anyhow::Result<Vec<String>> {
    let commits = git(root, &["log", "--format=%H", "--diff-filter=d", "--", file])?;
    commits.lines().map(|commit| git(root, &["show", &format!("{commit}:{file}")])).collect()
}

fn git(root: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").args(arguments).current_dir(root).output().context("can't run git")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {}: {}", arguments.join(" "), stderr.trim());
    String::from_utf8(output.stdout).with_context(|| format!("git {}", arguments.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "solutions/x.rs";
    const SOLUTION: &str = "one\ntwo\nthree\nfour\nfive\nsix\n";
    const WRONG: &str = "one\ntwo\nthree\n4\nfive\nsix\n";

    /// A text with two lines `four` that have the same neighbors.
    const TWICE: &str = "three\nfour\nfive\none\nthree\nfour\nfive\nsix\n";
    const TWICE_WRONG: &str = "three\nfour\nfive\none\nthree\n4\nfive\nsix\n";

    fn head() -> Add {
        Add { name: "four".into(), mistake: "it's 4".into(), fails: "a::b".into(), says: vec!["no 4".into()] }
    }

    fn edit(solution: &str, edited: &str) -> Edit {
        Edit {
            exercise: "init/devices".into(),
            folder: "01_init".into(),
            file: FILE.into(),
            solution: solution.into(),
            edited: edited.into(),
        }
    }

    fn mistake() -> Mistake {
        new(&head(), &edit(SOLUTION, WRONG)).unwrap()
    }

    #[test]
    fn an_edit_becomes_a_patch_with_minimal_context() {
        let expected = "mistake: it's 4\nfails: a::b\nsays: no 4\n--- a/solutions/x.rs\n+++ b/solutions/x.rs\n\
                        @@ -3,3 +3,3 @@\n three\n-four\n+4\n five\n";
        assert_eq!(mistake().text(), expected);
        assert!(
            diff(FILE, TWICE, TWICE_WRONG)
                .contains("@@ -4,5 +4,5 @@\n one\n three\n-four\n+4\n five\n six\n")
        );
    }

    #[test]
    fn a_bad_header_is_rejected() {
        for (change, words) in [
            (Add { name: "Four!".into(), ..head() }, "`Four!` is not a valid name"),
            (Add { mistake: " ".into(), ..head() }, "must be one line"),
            (Add { says: vec!["a\nb".into()], ..head() }, "must be one line"),
        ] {
            let error = new(&change, &edit(SOLUTION, WRONG)).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_patch_follows_its_solution() {
        let follow = |mistake: &Mistake, solution: &str, earlier: &[&str]| {
            let earlier: Vec<String> = earlier.iter().map(|&text| text.to_owned()).collect();
            match refreshed(&mistake.patch, FILE, solution, &earlier) {
                Refreshed::Same => "same".to_owned(),
                Refreshed::Moved(diff) => diff,
                Refreshed::NeedsPerson => "needs a person".to_owned(),
            }
        };
        let moved = |solution: &str, earlier: &[&str]| follow(&mistake(), solution, earlier);
        assert_eq!(moved(SOLUTION, &[]), "same");
        assert!(moved(&format!("zero\n{SOLUTION}"), &[]).contains("@@ -4,3 +4,3 @@"));
        let twice = new(&head(), &edit(TWICE, TWICE_WRONG)).unwrap();
        let renamed = TWICE.replace("one", "ONE");
        assert_eq!(follow(&twice, &renamed, &[]), "needs a person");
        let merged = follow(&twice, &renamed, &["other\n", TWICE]);
        assert!(merged.contains(" ONE\n three\n-four\n+4\n"), "{merged}");
        assert_eq!(moved(&SOLUTION.replace("four", "FOUR"), &[SOLUTION]), "needs a person");
        assert_eq!(moved(WRONG, &[SOLUTION]), "needs a person");
    }
}
