//! `course.toml`: the one list of modules and exercises.

mod lookup;
mod problems;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;

/// The course, as `course.toml` lists it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Course {
    /// Modules in their order.
    #[serde(rename = "module")]
    pub modules: Vec<Module>,
    /// Exercises in their order.
    #[serde(rename = "exercise")]
    pub exercises: Vec<Exercise>,
    /// Ways through the course.
    #[serde(rename = "path", default)]
    pub paths: Vec<Route>,
}

/// A module: a crate, and its lesson.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Module {
    /// Its folder in `modules/`, `solutions/` and `tests/`, such as `01_init`.
    pub folder: String,
    /// What it is about.
    pub title: String,
}

/// An exercise: one idea, one file, one file of checks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exercise {
    /// Its name for good, such as `init/devices`.
    pub id: String,
    /// A few words.
    pub title: String,
    /// What a student can do after it.
    pub objective: String,
    /// How long it takes.
    pub minutes: u32,
    /// Ids of the exercises that it stands on; all of them come earlier.
    pub needs: Vec<String>,
    /// Ranks without which its checks decide too little.
    pub min_ranks: usize,
    /// Its source, below `modules/` and `solutions/`: `01_init/src/devices.rs`.
    pub file: String,
    /// Its checks, below `tests/`: `01_init/devices.rs`. Their names start with the file's.
    pub test: String,
    /// Each clearer than the one before; the last is nearly the answer.
    pub hints: Vec<String>,
}

/// A way through the course: which exercises, in which order, with what between them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// What it is called on the command line, such as `half-day`.
    pub name: String,
    /// A few words.
    pub title: String,
    /// Ids of exercises that its own exercises need and that are not on it: students read their lessons on the way.
    #[serde(default)]
    pub catch_up: Vec<String>,
    /// Its parts. Without them, the path is every exercise, in the order of the course.
    pub steps: Option<Vec<Step>>,
}

/// A part of a path: some exercises, or something else.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// How long it takes.
    pub minutes: u32,
    /// Ids of exercises.
    #[serde(default)]
    pub exercises: Vec<String>,
    /// What is done where it is no exercise, such as a pause.
    pub instead: Option<String>,
}

impl Module {
    /// The package that a student edits: `m01_init`.
    pub fn starter_package(&self) -> String {
        format!("m{}", self.folder)
    }

    /// The source of its program, which not every module has.
    pub fn program(&self, root: &Path) -> PathBuf {
        root.join("modules").join(&self.folder).join("src/main.rs")
    }

    /// The solved package: `s01_init`.
    pub fn solution_package(&self) -> String {
        format!("s{}", self.folder)
    }
}

impl Exercise {
    /// The folder of its module.
    pub fn folder(&self) -> &str {
        self.file.split('/').next().unwrap_or_default()
    }

    /// What the names of its checks start with, such as `devices::`.
    pub fn filter(&self) -> String {
        let stem = Path::new(&self.test).file_stem().unwrap_or_default();
        format!("{}::", stem.to_string_lossy())
    }

    /// The command that checks a student's answer.
    pub fn test_command(&self) -> String {
        format!("cargo test -p m{} {}", self.folder(), self.filter())
    }

    /// The file that a student edits.
    pub fn starter(&self, root: &Path) -> PathBuf {
        root.join("modules").join(&self.file)
    }

    /// The same file, solved.
    pub fn solution(&self, root: &Path) -> PathBuf {
        root.join("solutions").join(&self.file)
    }

    /// The page to read before it.
    pub fn lesson(&self, root: &Path) -> PathBuf {
        self.page(root, "md")
    }

    /// The page to read after it.
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
    /// It can't be read, isn't TOML, or has other keys than a course has.
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        let path = root.join("course.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is no course", path.display()))
    }

    /// Reads a course from the text of a `course.toml`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(toml::from_str(text)?)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `init/devices`.
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
    fn a_misspelt_key_is_an_error_that_names_it() {
        let error = format!("{:#}", Course::parse(&GOOD.replace("minutes", "minuts")).unwrap_err());
        assert!(error.contains("minuts"), "{error}");
    }
}
