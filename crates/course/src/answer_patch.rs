//! Known answers to exercises, right and wrong, as patches to the solutions.
//!
//! `tests/mistakes/init/devices/off_by_one.patch` changes the solution to the exercise `init/devices`. Its first lines
//! describe the answer as `key: value`. A unified diff follows, so `git apply` accepts the file too.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use diffy::Patch;

use crate::answers::{Change, changes};
use crate::starter::read_folder;

/// A known answer: its location, and its diff from the solution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerPatch {
    /// The folder for all answers of this kind, relative to the root of the course.
    pub folder: &'static str,
    /// Its exercise's id.
    pub exercise: String,
    /// Its file name, without `.patch`.
    pub name: String,
    /// A unified diff against the solution.
    pub diff: String,
}

/// The `key: value` lines at the top of a patch, in order.
pub type Head = Vec<(String, String)>;

impl AnswerPatch {
    /// Reads all patches below a folder, and passes each with its header to `make`. A folder that doesn't exist contains
    /// no patches. The error of a malformed patch names its path.
    ///
    /// # Errors
    /// Fails if the folder can't be read.
    pub(crate) fn read_each<T>(
        root: &Path,
        folder: &'static str,
        make: impl Fn(Self, Head) -> anyhow::Result<T>,
    ) -> anyhow::Result<Vec<anyhow::Result<T>>> {
        let path = root.join(folder);
        if !path.is_dir() {
            return Ok(Vec::new());
        }
        let read = |(path, text): (&PathBuf, &String)| {
            Self::parse(folder, path, text)
                .and_then(|(patch, head)| make(patch, head))
                .with_context(|| format!("{folder}/{}", path.display()))
        };
        Ok(read_folder(&path)?.iter().map(read).collect())
    }

    /// Parses the file `path`, which is relative to `folder`.
    pub(crate) fn parse(folder: &'static str, path: &Path, text: &str) -> anyhow::Result<(Self, Head)> {
        let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
        let [module, exercise, file] = parts[..] else { bail!("the file must be in MODULE/EXERCISE/") };
        let name = file.strip_suffix(".patch").context("the file must be a .patch file")?;
        let mut head = Vec::new();
        let mut rest = text;
        while let Some((line, after)) = rest.split_once('\n').filter(|(line, _)| !line.starts_with("--- ")) {
            rest = after;
            if line.trim().is_empty() {
                continue;
            }
            let (key, value) =
                line.split_once(':').with_context(|| format!("`{line}` must have the form `key: value`"))?;
            let value = value.trim().to_owned();
            ensure!(!value.is_empty(), "the value after `{line}` is missing");
            head.push((key.to_owned(), value));
        }
        let exercise = format!("{module}/{exercise}");
        let made = Self { folder, exercise, name: name.to_owned(), diff: rest.to_owned() };
        ensure!(!made.patch()?.hunks().is_empty(), "there is no diff after the head");
        Ok((made, head))
    }

    /// Returns the path to the patch file, relative to the root of the course.
    pub fn path(&self) -> String {
        format!("{}/{}/{}.patch", self.folder, self.exercise, self.name)
    }

    /// Returns the path to the file that the diff changes, relative to the root of the course.
    ///
    /// # Errors
    /// Fails if the diff can't be read or doesn't name a file.
    pub fn changed_file(&self) -> anyhow::Result<String> {
        let file = self.patch()?.original().and_then(|name| name.strip_prefix("a/")).map(str::to_owned);
        file.with_context(|| format!("{} must contain a line `--- a/FILE`", self.path()))
    }

    /// Returns the answer: the solution with the diff applied.
    ///
    /// # Errors
    /// Fails if the diff can't be read, or doesn't apply to this solution.
    pub fn apply(&self, solution: &str) -> anyhow::Result<String> {
        let applied = diffy::apply(solution, &self.patch()?);
        applied.with_context(|| format!("{} doesn't apply to {}", self.path(), self.exercise))
    }

    /// Returns the diff from this answer back to the solution, line by line.
    ///
    /// # Errors
    /// Fails if the diff can't be read.
    pub fn correction(&self) -> anyhow::Result<Vec<(Change, String)>> {
        let mut lines = changes(&self.patch()?.reverse());
        let differs = |(change, _): &(Change, String)| matches!(change, Change::Removed | Change::Added);
        // As in every diff, removed lines come before added ones.
        for block in lines.chunk_by_mut(|one, next| differs(one) && differs(next)) {
            block.sort_by_key(|(change, _)| *change == Change::Added);
        }
        Ok(lines)
    }

    fn patch(&self) -> anyhow::Result<Patch<'_, str>> {
        Patch::from_str(&self.diff).with_context(|| format!("can't parse the diff in {}", self.path()))
    }
}

/// Returns the text of a patch file.
pub fn file_text(head: &[(&str, &str)], diff: &str) -> String {
    let head: String = head.iter().map(|(key, value)| format!("{key}: {value}\n")).collect();
    head + diff
}
