//! A student's progress: the result of the checks for each answer, and whether the answer has changed since.
//!
//! The progress is stored by exercise id in `.course/progress.json`, outside git. Running the checks again can restore
//! everything except the number of hints that were shown.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::checks::Verdict;
use crate::replace::replace;
use crate::syllabus::Exercise;

/// An exercise's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The answer still has this many `todo!`s.
    Open(usize),
    /// No `todo!` is left, but this version of the answer has not been checked.
    Written,
    /// Its checks fail.
    Wrong,
    /// Its checks pass.
    Right,
    /// Its file is missing.
    Missing,
}

/// The name of the file that stores the student's last exercise.
const POSITION: &str = "position";

/// The name of the file that stores the path that the student follows. There is none if it is the whole course.
const PATH: &str = "path";

/// The known state of each exercise.
#[derive(Debug)]
pub struct Progress {
    file: PathBuf,
    known: BTreeMap<String, Known>,
    /// The exercises that this process has changed.
    changed: BTreeSet<String>,
    /// The student's last exercise.
    position: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    /// The last answer that was checked, and the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    checked: Option<Checked>,
    /// The number of hints that were shown.
    #[serde(default)]
    hints: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Checked {
    is_right: bool,
    /// The text of the entire file.
    answer: String,
}

/// Returns the folder where the course stores a student's data.
pub fn folder(root: &Path) -> PathBuf {
    root.join(".course")
}

impl Progress {
    /// Reads the progress, which is empty if there is no file yet. If the file can't be parsed, it is renamed, and the
    /// second value describes the problem.
    ///
    /// # Errors
    /// Fails if the file exists but can't be read.
    pub fn read(root: &Path) -> anyhow::Result<(Self, Option<String>)> {
        let file = folder(root).join("progress.json");
        let position = fs::read_to_string(folder(root).join(POSITION)).ok();
        let position = position.map(|id| id.trim().to_owned());
        let knows = |file, known| Self { file, known, changed: BTreeSet::new(), position };
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok((knows(file, BTreeMap::new()), None));
            }
            Err(error) if error.kind() == ErrorKind::InvalidData => String::new(),
            Err(error) => return Err(error).with_context(|| format!("can't read {}", file.display())),
        };
        match serde_json::from_str(&text) {
            Ok(known) => Ok((knows(file, known), None)),
            Err(error) => {
                let aside = file.with_extension("json.damaged");
                let moved = match fs::rename(&file, &aside) {
                    Ok(()) => format!("it is now {}", aside.display()),
                    Err(error) => format!("and it can't be renamed: {error}"),
                };
                let told = format!(
                    "{} is damaged ({error}), {moved}; `cargo course verify` determines your progress again",
                    file.display()
                );
                Ok((knows(file, BTreeMap::new()), Some(told)))
            }
        }
    }

    /// Returns an exercise's state, based on its current file.
    ///
    /// # Errors
    /// Fails if the file exists but can't be read.
    pub fn state(&self, root: &Path, exercise: &Exercise) -> anyhow::Result<State> {
        if !exercise.starter(root).exists() {
            return Ok(State::Missing);
        }
        let answer = read_answer(root, exercise)?;
        let checked = self.known.get(&exercise.id).and_then(|known| known.checked.as_ref());
        Ok(match (todos(&answer), checked) {
            (0, Some(checked)) if checked.answer == answer => {
                if checked.is_right {
                    State::Right
                } else {
                    State::Wrong
                }
            }
            (0, _) => State::Written,
            (open, _) => State::Open(open),
        })
    }

    /// Records the result of checking an answer.
    pub fn note(&mut self, exercise: &Exercise, answer: String, verdict: &Verdict) {
        if verdict.is_decided() {
            self.of(exercise).checked = Some(Checked { is_right: verdict.is_right(), answer });
        }
    }

    /// Returns the last answer that was checked.
    pub fn last_checked(&self, exercise: &Exercise) -> Option<&str> {
        Some(&self.known.get(&exercise.id)?.checked.as_ref()?.answer)
    }

    /// Returns the id of the student's last exercise.
    pub fn position(&self) -> Option<&str> {
        self.position.as_deref()
    }

    /// Records that the student is at an exercise.
    pub fn set_position(&mut self, exercise: &Exercise) {
        self.position = Some(exercise.id.clone());
    }

    /// Returns the name of the path that the student follows, or `None` if it is the whole course. Another `cargo course`
    /// may have changed it in the meantime.
    pub fn path(&self) -> Option<String> {
        let name = fs::read_to_string(self.file.with_file_name(PATH)).ok()?;
        Some(name.trim().to_owned())
    }

    /// Stores the path that the student follows from now on.
    ///
    /// # Errors
    /// Fails if it can't be stored.
    pub fn set_path(&self, name: Option<&str>) -> anyhow::Result<()> {
        let file = self.file.with_file_name(PATH);
        match name {
            Some(name) => replace(&file, format!("{name}\n")),
            None => match fs::remove_file(&file) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(error).with_context(|| format!("can't remove {}", file.display()))
                }
                _ => Ok(()),
            },
        }
    }

    /// Returns the number of hints that were shown.
    pub fn hints(&self, exercise: &Exercise) -> usize {
        self.known.get(&exercise.id).map_or(0, |known| known.hints)
    }

    /// Records the number of hints that were shown.
    pub fn set_hints(&mut self, exercise: &Exercise, hints: usize) {
        self.of(exercise).hints = hints;
    }

    fn of(&mut self, exercise: &Exercise) -> &mut Known {
        self.changed.insert(exercise.id.clone());
        self.known.entry(exercise.id.clone()).or_default()
    }

    /// Writes the progress after merging it with what another `cargo course` has written in the meantime.
    ///
    /// # Errors
    /// Fails if the file can't be written.
    pub fn write(&mut self) -> anyhow::Result<()> {
        self.merge().context("your progress can't be saved")
    }

    fn merge(&mut self) -> anyhow::Result<()> {
        let lock = self.file.with_extension("lock");
        let said = || format!("can't write {}", self.file.display());
        fs::create_dir_all(lock.parent().unwrap_or(Path::new("."))).with_context(said)?;
        let lock = fs::File::create(&lock).with_context(said)?;
        // On a file system without locks, continue without one.
        let _ = lock.lock();
        let kept = fs::read_to_string(&self.file).ok();
        if let Some(mut kept) = kept.and_then(|text| serde_json::from_str::<BTreeMap<_, _>>(&text).ok()) {
            for id in &self.changed {
                kept.extend(self.known.remove_entry(id));
            }
            self.known = kept;
        }
        replace(&self.file, serde_json::to_string_pretty(&self.known)?)?;
        match &self.position {
            Some(id) => replace(&self.file.with_file_name(POSITION), format!("{id}\n")),
            None => Ok(()),
        }
    }
}

/// Reads the student's file for an exercise. Invalid UTF-8 is left for the compiler to report.
///
/// # Errors
/// Fails if the file can't be read.
pub fn read_answer(root: &Path, exercise: &Exercise) -> anyhow::Result<String> {
    let path = exercise.starter(root);
    let bytes = fs::read(&path).with_context(|| match path.exists() {
        true => format!("can't read {}", path.display()),
        false => {
            format!("{} is missing; restore it with `cargo course reset {}`", path.display(), exercise.id)
        }
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Counts the lines of a source that contain a `todo!` outside of comments.
fn todos(source: &str) -> usize {
    let code = source.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.filter(|line| line.contains("todo!(")).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syllabus::tests::an_exercise;

    /// Creates a separate folder that contains the file for [`an_exercise`].
    fn a_root(name: &str, answer: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("course_{name}_{}", std::process::id()));
        replace(&an_exercise().starter(&root), answer).unwrap();
        root
    }

    #[test]
    fn a_todo_in_a_comment_does_not_count() {
        assert_eq!(todos("fn f() {\n    todo!(\"this\")\n}"), 1);
        assert_eq!(todos("fn f() {\n    // was: todo!(\"this\")\n    1\n}"), 0);
    }

    #[test]
    fn a_verdict_applies_to_one_answer() {
        let (root, exercise) = (a_root("verdict", "todo!()"), an_exercise());
        let file = exercise.starter(&root);
        let (mut progress, told) = Progress::read(&root).unwrap();
        assert_eq!((progress.state(&root, &exercise).unwrap(), told), (State::Open(1), None));
        replace(&file, "1").unwrap();
        assert_eq!(progress.state(&root, &exercise).unwrap(), State::Written);
        progress.note(&exercise, "1".to_owned(), &Verdict::Passed(Default::default()));
        progress.set_hints(&exercise, 2);
        progress.write().unwrap();
        let (again, _) = Progress::read(&root).unwrap();
        assert_eq!((again.state(&root, &exercise).unwrap(), again.hints(&exercise)), (State::Right, 2));
        replace(&file, "2").unwrap();
        assert_eq!(again.state(&root, &exercise).unwrap(), State::Written);
        assert_eq!(again.last_checked(&exercise), Some("1"));
        fs::remove_file(&file).unwrap();
        assert_eq!(again.state(&root, &exercise).unwrap(), State::Missing);
        let told = read_answer(&root, &exercise).unwrap_err().to_string();
        assert!(told.ends_with("is missing; restore it with `cargo course reset init/devices`"), "{told}");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_path_is_stored_until_the_whole_course_takes_its_place() {
        let root = a_root("path", "1");
        let (one, other) = (Progress::read(&root).unwrap().0, Progress::read(&root).unwrap().0);
        one.set_path(None).unwrap();
        assert_eq!(one.path(), None);
        one.set_path(Some("half-day")).unwrap();
        assert_eq!([one.path(), other.path()], [(); 2].map(|()| Some("half-day".to_owned())));
        other.set_path(None).unwrap();
        assert_eq!(one.path(), None);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn concurrent_writers_keep_each_others_changes() {
        let root = a_root("two", "1");
        let exercises = ["init/one", "init/two"].map(|id| Exercise { id: id.to_owned(), ..an_exercise() });
        let [(mut one, _), (mut other, _)] = [(); 2].map(|()| Progress::read(&root).unwrap());
        one.set_hints(&exercises[0], 1);
        other.set_hints(&exercises[1], 2);
        one.write().unwrap();
        other.write().unwrap();
        one.set_hints(&exercises[0], 3);
        one.write().unwrap();
        for progress in [one, Progress::read(&root).unwrap().0] {
            assert_eq!(exercises.each_ref().map(|exercise| progress.hints(exercise)), [3, 2]);
        }
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_damaged_file_is_set_aside() {
        let root = a_root("damaged", "1");
        let file = folder(&root).join("progress.json");
        for damaged in ["{\"init/devices\": {", "[]", "{\"init/devices\": {\"done\": true}}"] {
            replace(&file, damaged).unwrap();
            let (progress, told) = Progress::read(&root).unwrap();
            assert!(progress.known.is_empty());
            assert!(told.is_some_and(|told| told.contains("is damaged") && told.contains("verify")));
            assert_eq!(fs::read_to_string(file.with_extension("json.damaged")).unwrap(), damaged);
            assert!(!file.exists());
        }
        fs::remove_dir_all(root).unwrap();
    }
}
