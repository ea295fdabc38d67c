//! `course.toml`: the one list of modules and exercises.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
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

/// A module: a crate, and the lesson beside it.
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

    /// The lesson of its module.
    pub fn lesson(&self, root: &Path) -> PathBuf {
        root.join("modules").join(self.folder()).join("README.md")
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

    /// The exercise of that id or that file; the part behind the slash is enough where it is the only one.
    ///
    /// # Errors
    /// There is none, or several: all ids that it may have meant.
    pub fn exercise(&self, id: &str) -> anyhow::Result<&Exercise> {
        let named: Vec<&Exercise> = self
            .exercises
            .iter()
            .filter(|exercise| {
                exercise.id == id
                    || exercise.id.rsplit('/').next() == Some(id)
                    || Path::new(id).ends_with(&exercise.file)
            })
            .collect();
        match named.as_slice() {
            [exercise] => Ok(exercise),
            [] => {
                if let Ok(module) = self.module(id) {
                    bail!(
                        "`{id}` is a module: cargo course test {}; its exercises: cargo course list",
                        module.folder
                    )
                }
                let near =
                    self.nearest(id).map(|near| format!("; did you mean {near}?")).unwrap_or(".".to_owned());
                bail!("there is no exercise `{id}`{near} All of them: cargo course list")
            }
            several => {
                let ids: Vec<&str> = several.iter().map(|exercise| exercise.id.as_str()).collect();
                bail!("`{id}` may be {}", ids.join(" or "))
            }
        }
    }

    /// The id that is most like a name that is none, if any is.
    fn nearest(&self, name: &str) -> Option<&str> {
        const ALIKE: f64 = 0.75;
        let name = name.trim_end_matches(".rs").to_lowercase();
        let last = |id: &str| id.rsplit('/').next().unwrap_or_default().to_owned();
        let alike =
            |id: &str| strsim::jaro_winkler(id, &name).max(strsim::jaro_winkler(&last(id), &last(&name)));
        let ids = self.exercises.iter().map(|exercise| (exercise.id.as_str(), alike(&exercise.id)));
        let (near, likeness) = ids.max_by(|one, other| one.1.total_cmp(&other.1))?;
        (likeness >= ALIKE).then_some(near)
    }

    /// The module of that folder, such as `01_init`; its number or its name is enough.
    ///
    /// # Errors
    /// There is none: the folders that there are.
    pub fn module(&self, name: &str) -> anyhow::Result<&Module> {
        let meant = |module: &&Module| {
            let (number, rest) = module.folder.split_once('_').unwrap_or((&module.folder, ""));
            let same_number = name.parse::<u32>().is_ok_and(|name| number.parse() == Ok(name));
            module.folder == name || rest == name || same_number
        };
        self.modules.iter().find(meant).with_context(|| {
            let folders: Vec<&str> = self.modules.iter().map(|module| module.folder.as_str()).collect();
            format!("there is no module `{name}`; there are {}", folders.join(", "))
        })
    }

    /// The path of that name.
    ///
    /// # Errors
    /// There is none: the paths that there are.
    pub fn path(&self, name: &str) -> anyhow::Result<&Route> {
        self.paths.iter().find(|path| path.name == name).with_context(|| {
            let names: Vec<&str> = self.paths.iter().map(|path| path.name.as_str()).collect();
            format!("there is no path `{name}`; there are {}", names.join(", "))
        })
    }

    /// A path's parts; where it lists none, a part for each exercise.
    pub fn steps(&self, path: &Route) -> Vec<Step> {
        let whole = |exercise: &Exercise| Step {
            minutes: exercise.minutes,
            exercises: vec![exercise.id.clone()],
            instead: None,
        };
        path.steps.clone().unwrap_or_else(|| self.exercises.iter().map(whole).collect())
    }

    /// What is wrong with the paths, each with how to mend it.
    fn path_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut names: BTreeSet<&str> = BTreeSet::new();
        for path in &self.paths {
            let mut problem = |text: String| problems.push(format!("path {}: {text}", path.name));
            if !names.insert(&path.name) {
                problem("a path before it has the same name".to_owned());
            }
            if path.title.trim().is_empty() {
                problem("its title is empty".to_owned());
            }
            let steps = self.steps(path);
            let on_it: Vec<&str> =
                steps.iter().flat_map(|step| &step.exercises).map(String::as_str).collect();
            if on_it.is_empty() {
                problem("it has no exercise".to_owned());
            }
            for (at, id) in on_it.iter().enumerate() {
                if on_it[..at].contains(id) {
                    problem(format!("`{id}` comes twice"));
                }
                let Some(exercise) = self.exercises.iter().find(|exercise| exercise.id == *id) else {
                    problem(format!("there is no exercise `{id}`"));
                    continue;
                };
                for need in exercise.needs.iter().filter(|need| on_it[at..].contains(&need.as_str())) {
                    problem(format!("`{id}` needs `{need}`, which comes later"));
                }
            }
            for step in &steps {
                let exercises =
                    step.exercises.iter().filter_map(|id| self.exercises.iter().find(|one| one.id == *id));
                let needed: u32 = exercises.map(|exercise| exercise.minutes).sum();
                if step.minutes < needed.max(1) {
                    problem(format!(
                        "{:?} takes {} minutes, and is given {}",
                        step.exercises,
                        needed.max(1),
                        step.minutes
                    ));
                }
                if step.exercises.is_empty() != step.instead.is_some() {
                    problem(format!(
                        "a step of {} minutes has either `exercises` or `instead`",
                        step.minutes
                    ));
                }
            }
        }
        problems
    }

    /// What is wrong with the list, each with how to mend it. `exists` tells whether a path below the root is a file.
    pub fn problems(&self, exists: impl Fn(&str) -> bool) -> Vec<String> {
        let mut problems = self.path_problems();
        if self.exercises.is_empty() {
            problems.push("it lists no exercise".to_owned());
        }
        let folders: BTreeSet<&str> = self.modules.iter().map(|module| module.folder.as_str()).collect();
        for folder in &folders {
            let lesson = format!("modules/{folder}/README.md");
            if !exists(&lesson) {
                problems.push(format!("module {folder} has no lesson: write {lesson}"));
            }
        }
        let mut known: BTreeSet<&str> = BTreeSet::new();
        let mut files: BTreeSet<&str> = BTreeSet::new();
        for exercise in &self.exercises {
            let id = exercise.id.as_str();
            let mut problem = |text: String| problems.push(format!("{id}: {text}"));
            if id.split('/').filter(|part| !part.is_empty()).count() != 2 {
                problem("an id is `module/exercise`, such as `init/devices`".to_owned());
            }
            if !files.insert(&exercise.file) {
                problem(format!("{} is another exercise's file too; give it its own", exercise.file));
            }
            if !folders.contains(exercise.folder()) {
                problem(format!("no [[module]] has the folder `{}` that its file is in", exercise.folder()));
            }
            if exercise.test.split('/').next() != Some(exercise.folder()) {
                problem(format!("its test {} is not in tests/{}", exercise.test, exercise.folder()));
            }
            for path in [
                format!("modules/{}", exercise.file),
                format!("solutions/{}", exercise.file),
                format!("tests/{}", exercise.test),
            ] {
                if !exists(&path) {
                    problem(format!("there is no {path}"));
                }
            }
            for need in exercise.needs.iter().filter(|need| !known.contains(need.as_str())) {
                problem(format!("it needs `{need}`, which is no exercise before it"));
            }
            let own = exercise.filter();
            let runs_too = |other: &&Exercise| {
                other.id != exercise.id
                    && other.folder() == exercise.folder()
                    && other.filter().ends_with(&own)
            };
            if let Some(other) = self.exercises.iter().find(runs_too) {
                problem(format!("`cargo test {own}` runs the checks of {} too; rename its test", other.id));
            }
            if exercise.hints.len() < 2 {
                problem(format!("it has {} hints; give it at least 2", exercise.hints.len()));
            }
            let texts = [&exercise.title, &exercise.objective].into_iter().chain(&exercise.hints);
            if texts.clone().any(|text| text.trim().is_empty()) {
                problem("its title, its objective or a hint is empty".to_owned());
            }
            if !(1..=60).contains(&exercise.minutes) {
                problem(format!("{} minutes; an exercise takes 1 to 60", exercise.minutes));
            }
            if exercise.min_ranks == 0 {
                problem("min_ranks is 0; it takes at least 1".to_owned());
            }
            if !known.insert(id) {
                problem("an exercise before it has the same id".to_owned());
            }
        }
        problems
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `init/devices`.
    pub(crate) fn an_exercise() -> Exercise {
        Course::parse(GOOD).unwrap().exercises.remove(0)
    }

    const GOOD: &str = r#"
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
    fn an_exercise_is_found_by_either_name_and_an_unknown_one_names_all() {
        let course = Course::parse(GOOD).unwrap();
        assert_eq!(course.exercise("devices").unwrap().id, course.exercise("init/devices").unwrap().id);
        let error = course.exercise("device").unwrap_err().to_string();
        assert!(error.starts_with("there is no exercise `device`; did you mean init/devices?"), "{error}");
        assert_eq!(course.exercise("modules/01_init/src/devices.rs").unwrap().id, "init/devices");
        for name in ["INIT/DEVICE", "01_init/devices", "devices.rs", "src/devices.rs"] {
            assert!(
                course.exercise(name).unwrap_err().to_string().contains("did you mean init/devices?"),
                "{name}"
            );
        }
        for name in ["", "xyz"] {
            let error = course.exercise(name).unwrap_err().to_string();
            assert_eq!(error, format!("there is no exercise `{name}`. All of them: cargo course list"));
        }
        assert!(
            course
                .exercise("init")
                .unwrap_err()
                .to_string()
                .starts_with("`init` is a module: cargo course test 01_init")
        );
        assert_eq!(course.module("1").unwrap().starter_package(), "m01_init");
        assert_eq!(course.exercises[0].test_command(), "cargo test -p m01_init devices::");
    }

    #[test]
    fn a_good_course_has_no_problems_and_each_fault_has_one() {
        assert_eq!(Course::parse(GOOD).unwrap().problems(|_| true), Vec::<String>::new());
        for (from, to, words) in [
            ("hints = [\"count\", \"open\"]", "hints = [\"count\"]", "has 1 hints"),
            ("minutes = 10", "minutes = 0", "0 minutes"),
            ("needs = []", "needs = [\"init/later\"]", "no exercise before it"),
            ("test = \"01_init", "test = \"02_other", "is not in tests/01_init"),
            ("min_ranks = 1", "min_ranks = 0", "at least 1"),
            ("id = \"init/devices\"", "id = \"devices\"", "an id is"),
        ] {
            let problems = Course::parse(&GOOD.replace(from, to)).unwrap().problems(|_| true);
            assert!(problems.len() == 1 && problems[0].contains(words), "{problems:?}");
        }
        assert_eq!(Course::parse(GOOD).unwrap().problems(|_| false).len(), 4);
    }

    #[test]
    fn a_path_has_exercises_that_exist_in_an_order_that_works() {
        let exercise = GOOD.split_once("[[exercise]]").unwrap().1.replace("devices", "buffers");
        let second = exercise.replace("needs = []", "needs = [\"init/devices\"]");
        let text = format!(
            "{GOOD}\n[[exercise]]{second}\n\
             [[path]]\nname = \"short\"\ntitle = \"Short\"\nsteps = [\n\
             {{ minutes = 25, exercises = [\"init/devices\", \"init/buffers\"] }},\n\
             {{ minutes = 5, instead = \"a pause\" }},\n]\n\
             [[path]]\nname = \"all\"\ntitle = \"All\"\n"
        );
        let course = Course::parse(&text).unwrap();
        assert_eq!(course.problems(|_| true), Vec::<String>::new());
        assert_eq!(course.steps(course.path("short").unwrap()).len(), 2);
        let all = course.steps(course.path("all").unwrap());
        assert_eq!(all.iter().map(|step| step.minutes).collect::<Vec<_>>(), [10, 10]);
        assert_eq!(
            course.path("long").unwrap_err().to_string(),
            "there is no path `long`; there are short, all"
        );
        for (from, to, words) in [
            (
                "[\"init/devices\", \"init/buffers\"]",
                "[\"init/devices\", \"init/none\"]",
                "no exercise `init/none`",
            ),
            (
                "[\"init/devices\", \"init/buffers\"]",
                "[\"init/buffers\", \"init/devices\"]",
                "which comes later",
            ),
            ("[\"init/devices\", \"init/buffers\"]", "[\"init/devices\", \"init/devices\"]", "comes twice"),
            ("minutes = 25", "minutes = 19", "takes 20 minutes, and is given 19"),
            (", instead = \"a pause\"", "", "either `exercises` or `instead`"),
            ("minutes = 5", "minutes = 0", "takes 1 minutes"),
            ("name = \"all\"", "name = \"short\"", "the same name"),
            ("title = \"All\"", "title = \" \"", "its title is empty"),
        ] {
            let problems = Course::parse(&text.replace(from, to)).unwrap().problems(|_| true);
            assert!(problems.len() == 1 && problems[0].contains(words), "{problems:?}");
        }
        assert!(Course::parse(&text.replace("instead", "inst")).is_err());
    }

    #[test]
    fn a_filter_that_runs_another_exercise_s_checks_is_a_problem() {
        let exercise = GOOD.split_once("[[exercise]]").unwrap().1;
        let text = format!("{GOOD}\n[[exercise]]{}", exercise.replace("devices", "my_devices"));
        let problems = Course::parse(&text).unwrap().problems(|_| true);
        assert_eq!(
            problems,
            ["init/devices: `cargo test devices::` runs the checks of init/my_devices too; rename its test"]
        );
    }

    #[test]
    fn a_misspelt_key_is_an_error_that_names_it() {
        let error = format!("{:#}", Course::parse(&GOOD.replace("minutes", "minuts")).unwrap_err());
        assert!(error.contains("minuts"), "{error}");
    }
}
