//! `course.toml`, the single list of modules and exercises.

mod lookup;
mod problems;
mod schedule;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;

pub use schedule::{Scheduled, clock};

/// Returns the root of the course that contains the current folder, or else of the course that this program was built
/// in.
///
/// # Errors
/// Fails if there is none.
pub fn root() -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir().context("can't determine the current folder")?;
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().chain(own.ancestors()).find(|folder| folder.join("course.toml").is_file());
    root.map(Path::to_owned)
        .with_context(|| format!("there is no course.toml in {} or in any folder above it", here.display()))
}

/// The course, as listed in `course.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Course {
    /// The modules, in order.
    #[serde(rename = "module")]
    pub modules: Vec<Module>,
    /// The exercises, in order.
    #[serde(rename = "exercise")]
    pub exercises: Vec<Exercise>,
    /// The paths through the course.
    #[serde(rename = "path", default)]
    pub paths: Vec<Route>,
}

/// A module: a crate and its lesson.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Module {
    /// Its folder in `modules/`, `solutions/`, and `tests/`, such as `01_init`.
    pub folder: String,
    /// Its subject.
    pub title: String,
}

/// An exercise: one idea, one file, one file of checks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exercise {
    /// Its permanent name, such as `init/devices`.
    pub id: String,
    /// A title, a few words long.
    pub title: String,
    /// What a student can do afterward.
    pub objective: String,
    /// How long it takes, in minutes.
    pub minutes: u32,
    /// The ids of the exercises that it builds on, all of which come earlier.
    pub needs: Vec<String>,
    /// The minimum number of ranks for its checks to be conclusive.
    pub min_ranks: usize,
    /// Its source file, under both `modules/` and `solutions/`: `01_init/src/devices.rs`.
    pub file: String,
    /// Its checks, below `tests/`: `01_init/devices.rs`. Their names start with the file's name.
    pub test: String,
    /// Its hints, each more explicit than the previous one; the last one is nearly the answer.
    pub hints: Vec<String>,
}

/// A path through the course: which exercises to do in which order, and what happens between them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Its name on the command line, such as `half-day`.
    pub name: String,
    /// A title, a few words long.
    pub title: String,
    /// What it continues: the name of an earlier path, or a module's folder. Students who follow it have done the
    /// exercises of that path, or those of all modules up to that one.
    pub after: Option<String>,
    /// Its steps, as an instructor runs them. If there are none, the path contains every exercise in course order.
    pub steps: Option<Vec<Step>>,
}

/// A step of a path: a talk and some exercises, or another activity.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// How long it takes, in minutes. The time that its exercises don't need is for a talk before them.
    pub minutes: u32,
    /// The ids of its exercises.
    #[serde(default)]
    pub exercises: Vec<String>,
    /// The activity, if the step has no exercises, such as `break` or `lunch`.
    pub instead: Option<String>,
}

impl Step {
    /// Returns whether it is a break or lunch.
    fn is_pause(&self) -> bool {
        matches!(self.instead.as_deref(), Some("break") | Some(LUNCH))
    }
}

/// The activity of a step in which everyone has lunch.
const LUNCH: &str = "lunch";

impl Module {
    /// Returns the name of the package that a student edits, such as `m01_init`.
    pub fn starter_package(&self) -> String {
        format!("m{}", self.folder)
    }

    /// Returns the path to its program's source. Not every module has a program.
    pub fn program(&self, root: &Path) -> PathBuf {
        root.join("modules").join(&self.folder).join("src/main.rs")
    }

    /// Returns the name of the solved package, such as `s01_init`.
    pub fn solution_package(&self) -> String {
        format!("s{}", self.folder)
    }
}

impl Exercise {
    /// Returns its module's folder.
    pub fn folder(&self) -> &str {
        self.file.split('/').next().unwrap_or_default()
    }

    /// Returns the name of the file with its checks, such as `devices`.
    pub fn checks(&self) -> String {
        Path::new(&self.test).file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns the prefix of its checks' names, such as `devices::`.
    pub fn filter(&self) -> String {
        format!("{}::", self.checks())
    }

    /// Returns the command that checks a student's answer.
    pub fn test_command(&self) -> String {
        format!("cargo test -p m{} {}", self.folder(), self.filter())
    }

    /// Returns the path to the file that a student edits.
    pub fn starter(&self, root: &Path) -> PathBuf {
        root.join("modules").join(&self.file)
    }

    /// Returns the path to the solved file.
    pub fn solution(&self, root: &Path) -> PathBuf {
        root.join("solutions").join(&self.file)
    }

    /// Returns the path to the page to read before it.
    pub fn lesson(&self, root: &Path) -> PathBuf {
        self.page(root, "md")
    }

    /// Returns the path to the page to read after it.
    pub fn after(&self, root: &Path) -> PathBuf {
        self.page(root, "after.md")
    }

    fn page(&self, root: &Path, ending: &str) -> PathBuf {
        let name = Path::new(&self.file).file_stem().unwrap_or_default().to_string_lossy();
        root.join("modules").join(self.folder()).join("lessons").join(format!("{name}.{ending}"))
    }
}

impl Course {
    /// Reads `course.toml` in the root of the workspace.
    ///
    /// # Errors
    /// Fails if the file can't be read, isn't TOML, or has unknown keys.
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        let path = root.join("course.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is no course", path.display()))
    }

    /// Reads a course from the text of a `course.toml`.
    ///
    /// # Errors
    /// Fails if the text isn't TOML or has unknown keys.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(toml::from_str(text)?)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the exercise `init/devices`.
    pub(crate) fn an_exercise() -> Exercise {
        Course::parse(GOOD).unwrap().exercises.remove(0)
    }

    pub(super) const GOOD: &str = r#"
        [[module]]
        folder = "01_init"
        title = "Start"

        [[exercise]]
        id = "init/devices"
        title = "Devices"
        objective = "Open GPUs"
        minutes = 10
        needs = []
        min_ranks = 1
        file = "01_init/src/devices.rs"
        test = "01_init/devices.rs"
        hints = ["count", "open"]
    "#;

    #[test]
    fn a_misspelled_key_is_an_error_that_names_it() {
        let error = format!("{:#}", Course::parse(&GOOD.replace("minutes", "minuts")).unwrap_err());
        assert!(error.contains("minuts"), "{error}");
    }
}
