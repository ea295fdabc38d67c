//! The sources of variants: an answer, the solutions that it uses, and its checks.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::Context;
use course::module_sources::{LIBRARY, Words, library_without, own_checks, unused};
use course::starter::read_folder;
use course::syllabus::Course;

use super::member;
use super::only::{Divided, Selected};
use super::program::{crate_name, folder_of_variant};
use super::variants::Variant;

/// Makes the sources of variants. What variants share is read and divided once.
pub(super) struct Sources<'a> {
    root: &'a Path,
    course: &'a Course,
    solutions: &'a BTreeMap<PathBuf, String>,
    /// Each module's solutions, with paths like `src/devices.rs`.
    modules: BTreeMap<&'a str, BTreeMap<PathBuf, Source<'a>>>,
    /// Each exercise's checks.
    checks: BTreeMap<&'a str, Divided>,
}

#[derive(Clone)]
struct Source<'a> {
    text: &'a str,
    words: Rc<Words>,
}

impl<'a> Source<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, words: Rc::new(Words::of(text)) }
    }
}

impl Borrow<Words> for Source<'_> {
    fn borrow(&self) -> &Words {
        &self.words
    }
}

impl<'a> Sources<'a> {
    pub(super) fn new(root: &'a Path, course: &'a Course, solutions: &'a BTreeMap<PathBuf, String>) -> Self {
        Self { root, course, solutions, modules: BTreeMap::new(), checks: BTreeMap::new() }
    }

    /// Returns a variant's sources and its exercise's checks, as modules of a program.
    pub(super) fn of(&mut self, variant: &Variant) -> anyhow::Result<BTreeMap<PathBuf, String>> {
        let Variant { exercise, name, source, check } = variant;
        let (course, solutions) = (self.course, self.solutions);
        let exercise = course.exercise(exercise).with_context(|| format!("the exercise for {name}"))?;
        let module = exercise.folder();
        let library = crate_name(solutions, module)?;
        let folder = folder_of_variant(name);
        let divided = match self.checks.entry(&exercise.id) {
            Entry::Occupied(divided) => divided.into_mut(),
            Entry::Vacant(place) => {
                let checks = read_folder(&self.root.join("tests").join(module))?;
                place.insert(Divided::new(&own_checks(checks, course, exercise)?))
            }
        };
        let Selected { files: checks, words } = divided.select(check.as_deref());
        let mut own: BTreeMap<PathBuf, Source<'_>> =
            self.modules.entry(module).or_insert_with(|| of_module(solutions, module)).clone();
        let answer: PathBuf = Path::new(&exercise.file).iter().skip(1).collect();
        own.insert(answer.clone(), Source::new(source));
        let unused = unused(&own, &answer, words.iter().map(|words| &**words));
        let mut files = BTreeMap::new();
        for (path, Source { text, .. }) in own.into_iter().filter(|(path, _)| !unused.contains(path)) {
            // Each variant has the checks of its exercise, so the library has none.
            let text = match path == Path::new(LIBRARY) {
                true => library_without(text.split("#[cfg(test)]").next().unwrap_or_default(), &unused),
                false => text.to_owned(),
            };
            let text = text.replace("crate::", &format!("crate::{name}::{library}::"));
            files.insert(folder.join(path), text);
        }
        for (path, text) in checks {
            let text = text.replace("crate::", &format!("crate::{name}::"));
            files.insert(folder.join("tests/exercise").join(path), text);
        }
        Ok(files)
    }
}

/// Returns the solutions of a module.
fn of_module<'a>(solutions: &'a BTreeMap<PathBuf, String>, module: &str) -> BTreeMap<PathBuf, Source<'a>> {
    let in_module = solutions.iter().filter(|(path, _)| member::folder_of(path) == module);
    let all = in_module.map(|(path, text)| (path.iter().skip(1).collect::<PathBuf>(), text));
    all.filter(|(path, _)| path.starts_with("src")).map(|(path, text)| (path, Source::new(text))).collect()
}
