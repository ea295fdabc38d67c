//! Changed solutions, each as a package of its own in the scratch workspace, so that its checks can be run.

use std::fs;
use std::path::Path;

use anyhow::Context;
use course::mistakes::Mistake;
use course::syllabus::Course;

use super::deletions::Deletion;

/// A solution with a different source for one exercise.
pub(super) struct Variant {
    /// The id of the exercise.
    pub(super) exercise: String,
    /// Its package in the scratch workspace.
    pub(super) package: String,
    /// The content of the exercise's file.
    pub(super) source: String,
}

/// The mistakes that apply to their solutions.
#[derive(Default)]
pub(super) struct Applied<'m> {
    pub(super) mistakes: Vec<&'m Mistake>,
    /// A variant for each of these mistakes.
    pub(super) variants: Vec<Variant>,
    /// The problems of the other mistakes.
    pub(super) problems: Vec<String>,
}

/// Applies each mistake to its solution.
pub(super) fn of_mistakes<'m>(
    root: &Path,
    course: &Course,
    mistakes: &'m [Mistake],
) -> anyhow::Result<Applied<'m>> {
    let mut all = Applied::default();
    for mistake in mistakes {
        let exercise = course.exercise(&mistake.exercise).with_context(|| mistake.path())?;
        let file = format!("solutions/{}", exercise.file);
        let solution = fs::read_to_string(root.join(&file)).with_context(|| format!("can't read {file}"))?;
        let (path, changed) = (mistake.path(), mistake.changed_file()?);
        if changed != file {
            all.problems.push(format!("{path} changes {changed}; the exercise's solution is {file}"));
        } else if let Ok(source) = mistake.apply(&solution) {
            let (exercise, package) = (mistake.exercise.clone(), mistake_package(mistake));
            all.mistakes.push(mistake);
            all.variants.push(Variant { exercise, package, source });
        } else {
            all.problems
                .push(format!("{path} no longer applies to {file}; run `cargo xtask mistake refresh`"));
        }
    }
    Ok(all)
}

/// Returns the deletions as variants.
pub(super) fn of_deletions(deletions: &[Deletion]) -> impl Iterator<Item = Variant> {
    deletions.iter().enumerate().map(|(at, Deletion { exercise, source, .. })| {
        let (exercise, source) = (exercise.clone(), source.clone());
        Variant { exercise, package: deletion_package(at), source }
    })
}

/// Returns a deletion's package in the scratch workspace.
pub(super) fn deletion_package(at: usize) -> String {
    format!("d_{at}")
}

/// Returns a mistake's package in the scratch workspace.
pub(super) fn mistake_package(mistake: &Mistake) -> String {
    format!("x_{}_{}", mistake.exercise.replace('/', "_"), mistake.name)
}
