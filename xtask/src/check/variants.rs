//! Changed solutions: each is a package of its own in the scratch workspace, so that its checks can be run.

use std::fs;
use std::path::Path;

use anyhow::Context;
use course::mistakes::Mistake;
use course::syllabus::Course;

use super::deletions::Deletion;

/// A solution with another source for one exercise.
pub(super) struct Variant {
    /// Id of the exercise.
    pub(super) exercise: String,
    /// Its package in the scratch workspace.
    pub(super) package: String,
    /// What stands in the exercise's file.
    pub(super) source: String,
}

/// Mistakes that apply to their solutions.
#[derive(Default)]
pub(super) struct Applied<'m> {
    pub(super) mistakes: Vec<&'m Mistake>,
    /// A variant for each of them.
    pub(super) variants: Vec<Variant>,
    /// What is wrong with the other mistakes.
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

/// The deletions as variants.
pub(super) fn of_deletions(deletions: &[Deletion]) -> impl Iterator<Item = Variant> {
    deletions.iter().enumerate().map(|(at, Deletion { exercise, source, .. })| {
        let (exercise, source) = (exercise.clone(), source.clone());
        Variant { exercise, package: deletion_package(at), source }
    })
}

/// A deletion's package in the scratch workspace.
pub(super) fn deletion_package(at: usize) -> String {
    format!("d_{at}")
}

/// A mistake's package in the scratch workspace.
pub(super) fn mistake_package(mistake: &Mistake) -> String {
    format!("x_{}_{}", mistake.exercise.replace('/', "_"), mistake.name)
}
