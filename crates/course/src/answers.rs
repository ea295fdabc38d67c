//! Manages a student's files: restores the starter, installs the solution, and compares the two. A student's work is
//! never overwritten until a copy has been saved elsewhere.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use diffy::{DiffOptions, Patch, create_patch};

use crate::progress::folder;
use crate::replace::replace;
use crate::starter;
use crate::syllabus::Exercise;

/// Returns whether the solutions are available. A course that was handed out may not include them.
pub fn has_solutions(root: &Path) -> bool {
    root.join("solutions").is_dir()
}

/// Returns the solved file as it would appear in the student's module.
///
/// # Errors
/// Fails if there is no solution.
pub fn solution(root: &Path, exercise: &Exercise) -> anyhow::Result<String> {
    ensure!(
        has_solutions(root),
        "{}: this copy of the course has no solutions, but the archive that it came in contains the original files",
        exercise.id
    );
    let path = exercise.solution(root);
    let text = fs::read_to_string(&path)
        .with_context(|| format!("{} has no solution here: can't read {}", exercise.id, path.display()))?;
    Ok(starter::renamed(exercise.folder(), &text))
}

/// Returns the file as the student originally received it.
///
/// # Errors
/// Fails if there is no solution to make the file from, or if making it fails.
pub fn starter(root: &Path, exercise: &Exercise) -> anyhow::Result<String> {
    starter::starter(&solution(root, exercise)?).with_context(|| exercise.id.clone())
}

/// A folder with copies of files that are about to be overwritten.
pub struct Backup {
    folder: PathBuf,
}

impl Backup {
    /// Creates a new backup, with the next free number.
    ///
    /// # Errors
    /// Fails if the backup can't be created.
    pub fn new(root: &Path) -> anyhow::Result<Self> {
        let all = folder(root).join("backups");
        let said = || format!("can't create a backup in {}", all.display());
        fs::create_dir_all(&all).with_context(said)?;
        for number in 1_u32.. {
            let folder = all.join(format!("{number:04}"));
            match fs::create_dir(&folder) {
                Ok(()) => return Ok(Self { folder }),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(said),
            }
        }
        unreachable!("there are more numbers than folders")
    }

    /// Returns the backup with that number, or the latest.
    ///
    /// # Errors
    /// Fails if there is no such backup; the error lists the existing backups.
    pub fn find(root: &Path, number: Option<&str>) -> anyhow::Result<Self> {
        let all = folder(root).join("backups");
        let mut names: Vec<String> = fs::read_dir(&all)
            .map(|entries| entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
            .unwrap_or_default();
        names.sort();
        let Some(latest) = names.last() else {
            bail!("there are no backups yet; `cargo course reset` and `cargo course catch-up` create them");
        };
        let wanted = number.map(|number| format!("{number:0>4}"));
        let name = wanted.as_ref().unwrap_or(latest);
        ensure!(names.contains(name), "there is no backup {name}; there are {}", names.join(", "));
        Ok(Self { folder: all.join(name) })
    }

    /// Returns the backup's copy of an exercise's file, if it has one.
    ///
    /// # Errors
    /// Fails if the file exists but can't be read.
    pub fn read(&self, exercise: &Exercise) -> anyhow::Result<Option<Vec<u8>>> {
        let file = self.folder.join(&exercise.file);
        match fs::read(&file) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("can't read {}", file.display())),
        }
    }

    /// Returns the backup's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Saves a copy of the student's file for an exercise, if it exists, and then writes the text to the file. Returns
    /// `false` if the file already had that text.
    ///
    /// # Errors
    /// Fails if the file can't be read, saved, or written. The file is then unchanged.
    pub fn overwrite(
        &self,
        root: &Path,
        exercise: &Exercise,
        text: impl AsRef<[u8]>,
    ) -> anyhow::Result<bool> {
        let file = exercise.starter(root);
        match fs::read(&file) {
            Ok(mine) if mine == text.as_ref() => return Ok(false),
            Ok(mine) => replace(&self.folder.join(&exercise.file), mine)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("can't read {}", file.display())),
        }
        replace(&file, text)?;
        Ok(true)
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        // The folder is removed only if it is empty.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// The kind of a line in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The line is only in the first text.
    Removed,
    /// The line is only in the second text.
    Added,
    /// The line is in both texts.
    Same,
    /// Lines were left out here.
    Gap,
}

/// Returns the changes from one text to another, line by line, with three lines of context around each change. The
/// result is empty if the texts are equal.
pub fn compare(from: &str, to: &str) -> Vec<(Change, String)> {
    changes(&create_patch(from, to))
}

/// Returns the changes from one text to another, line by line, among all lines of both texts.
pub fn compare_whole(from: &str, to: &str) -> Vec<(Change, String)> {
    let context = from.lines().count();
    changes(&DiffOptions::new().set_context_len(context).create_patch(from, to))
}

/// Returns the lines of a diff.
pub(crate) fn changes(patch: &Patch<'_, str>) -> Vec<(Change, String)> {
    let mut lines = Vec::new();
    for (index, hunk) in patch.hunks().iter().enumerate() {
        if index > 0 {
            lines.push((Change::Gap, "…".to_owned()));
        }
        for line in hunk.lines() {
            let (change, text) = match *line {
                diffy::Line::Delete(text) => (Change::Removed, text),
                diffy::Line::Insert(text) => (Change::Added, text),
                diffy::Line::Context(text) => (Change::Same, text),
            };
            lines.push((change, text.trim_end_matches('\n').to_owned()));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::read_answer;
    use crate::syllabus::tests::an_exercise;

    #[test]
    fn overwritten_files_are_kept() {
        let root = std::env::temp_dir().join(format!("course_backup_{}", std::process::id()));
        let exercise = an_exercise();
        replace(&exercise.starter(&root), "mine").unwrap();
        for number in ["0001", "0002"] {
            let backup = Backup::new(&root).unwrap();
            assert!(backup.overwrite(&root, &exercise, number).unwrap());
            assert!(!backup.overwrite(&root, &exercise, number).unwrap(), "the file already has that text");
            assert!(backup.folder().ends_with(number));
        }
        let kept = |number: &str| folder(&root).join("backups").join(number).join(&exercise.file);
        assert_eq!(fs::read_to_string(kept("0001")).unwrap(), "mine");
        assert_eq!(fs::read_to_string(kept("0002")).unwrap(), "0001");
        assert_eq!(read_answer(&root, &exercise).unwrap(), "0002");
        let unused = Backup::new(&root).unwrap().folder().to_owned();
        assert!(!unused.exists(), "an empty backup is removed");
        fs::write(exercise.starter(&root), b"\xff").unwrap();
        let backup = Backup::new(&root).unwrap();
        backup.overwrite(&root, &exercise, "text").unwrap();
        assert_eq!(fs::read(backup.folder().join(&exercise.file)).unwrap(), b"\xff");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_comparison_shows_what_changes() {
        assert_eq!(compare("a\nb\n", "a\nb\n"), []);
        let lines = compare("a\nb\nc\n", "a\nx\nc\n");
        let expected =
            [(Change::Same, "a"), (Change::Removed, "b"), (Change::Added, "x"), (Change::Same, "c")];
        assert_eq!(lines, expected.map(|(change, text)| (change, text.to_owned())));
        let long: String = (0..9).map(|number| format!("{number}\n")).collect();
        assert_eq!(compare(&long, &long.replace('0', "x")).len(), 5);
        assert_eq!(compare_whole(&long, &long.replace('0', "x")).len(), 10);
    }
}
