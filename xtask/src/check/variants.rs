//! Changed solutions: mistakes, alternatives, deletions, and mutants.

use std::fs;
use std::path::Path;

use anyhow::Context;
use course::alternatives;
use course::answer_patch::AnswerPatch;
use course::syllabus::Course;

use super::deletions::Deletion;

/// A solution with a different source for one exercise.
pub(super) struct Variant {
    /// The id of the exercise.
    pub(super) exercise: String,
    /// Its name in the scratch workspace, where it is a Rust module.
    pub(super) name: String,
    /// The contents of the exercise's file.
    pub(super) source: String,
    /// The name of the only check that runs on it; `None` if all checks of the exercise do.
    pub(super) check: Option<String>,
}

/// The known answers, sorted by whether they apply cleanly to their solutions.
pub(super) struct Applied<'a, T> {
    pub(super) answers: Vec<&'a T>,
    /// A variant for each answer that applies.
    pub(super) variants: Vec<Variant>,
    /// The problems with the other answers.
    pub(super) problems: Vec<String>,
}

/// Applies the patch of each answer to its solution. `check` returns the only check that runs on an answer, if any.
pub(super) fn of_answers<'a, T>(
    root: &Path,
    course: &Course,
    answers: &'a [T],
    patch: impl Fn(&T) -> &AnswerPatch,
    check: impl Fn(&T) -> Option<&str>,
) -> anyhow::Result<Applied<'a, T>> {
    let mut all = Applied { answers: Vec::new(), variants: Vec::new(), problems: Vec::new() };
    for answer in answers {
        let (patch, check) = (patch(answer), check(answer).map(str::to_owned));
        let exercise = match course.exercise(&patch.exercise) {
            Ok(exercise) => exercise,
            Err(error) => {
                all.problems.push(format!("{}: {error:#}", patch.path()));
                continue;
            }
        };
        let file = format!("solutions/{}", exercise.file);
        let solution = fs::read_to_string(root.join(&file)).with_context(|| format!("can't read {file}"))?;
        let (path, changed) = (patch.path(), patch.changed_file()?);
        if changed != file {
            all.problems.push(format!("{path} changes {changed}; the exercise's solution is {file}"));
        } else if let Ok(source) = patch.apply(&solution) {
            let (exercise, name) = (patch.exercise.clone(), answer_name(patch));
            all.answers.push(answer);
            all.variants.push(Variant { exercise, name, source, check });
        } else {
            all.problems
                .push(format!("{path} no longer applies to {file}; run `cargo xtask mistake refresh`, or restore the solution if you are still editing it"));
        }
    }
    Ok(all)
}

/// Returns the deletions as variants.
pub(super) fn of_deletions(deletions: &[Deletion]) -> impl Iterator<Item = Variant> {
    deletions.iter().enumerate().map(|(at, Deletion { exercise, source, fails, .. })| {
        let (exercise, source, check) = (exercise.clone(), source.clone(), fails.clone());
        Variant { exercise, name: deletion_name(at), source, check }
    })
}

/// Returns the name of a deletion in the scratch workspace.
pub(super) fn deletion_name(at: usize) -> String {
    format!("d_{at}")
}

/// Returns the name of a known answer in the scratch workspace.
pub(super) fn answer_name(patch: &AnswerPatch) -> String {
    let kind = if patch.folder == alternatives::FOLDER { "a" } else { "x" };
    format!("{kind}_{}_{}", patch.exercise.replace('/', "_"), patch.name)
}
