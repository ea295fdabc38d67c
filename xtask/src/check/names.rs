//! The names of checks, and the words of their messages, wherever the course's files repeat them.

use std::collections::BTreeMap;
use std::path::Path;

use course::starter::read_folder;
use course::syllabus::{Course, Exercise};

/// What a new entry of `tests/deletions.toml` contains until its author replaces it.
pub(super) const TEMPLATE: [&str; 2] = ["the check that fails", "words of its message"];

/// The fewest letters and digits that identify a message.
const FEWEST: usize = 2;

/// The sources of each module's checks, by the module's folder.
pub(super) struct CheckSources(BTreeMap<String, BTreeMap<String, String>>);

impl CheckSources {
    /// Reads the sources. A folder that doesn't exist has none.
    pub(super) fn read(root: &Path, course: &Course) -> anyhow::Result<Self> {
        let mut all = BTreeMap::new();
        for module in &course.modules {
            let folder = root.join("tests").join(&module.folder);
            let files = if folder.is_dir() { read_folder(&folder)? } else { BTreeMap::new() };
            let files = files.into_iter().map(|(path, text)| (path.display().to_string(), text));
            all.insert(module.folder.clone(), files.collect());
        }
        Ok(Self(all))
    }

    /// Returns the source of an exercise's checks, including those in a folder of the same name.
    pub(super) fn of(&self, exercise: &Exercise) -> String {
        let stem = exercise.filter().trim_end_matches(':').to_owned();
        let is_own = |path: &str| path == format!("{stem}.rs") || path.starts_with(&format!("{stem}/"));
        let files = self.0.get(exercise.folder()).into_iter().flatten();
        files.filter(|(path, _)| is_own(path)).map(|(_, text)| text.as_str()).collect()
    }

    /// Returns what is wrong with the check and the words that a mistake or a deletion lists.
    pub(super) fn recorded(&self, exercise: &Exercise, fails: &str, says: &[String]) -> Vec<String> {
        let mut problems = Vec::new();
        // Some exercises add the prefix when they make their checks.
        let short = fails.strip_prefix(&exercise.filter());
        let source = self.of(exercise);
        let is_there = |name: &str| source.contains(&format!("\"{name}\""));
        if !short.is_some_and(|short| is_there(fails) || is_there(short)) {
            problems.push(format!("there is no check `{fails}` in tests/{}", exercise.test));
        }
        let is_vague = |words: &&String| {
            TEMPLATE.contains(&words.as_str())
                || words.chars().filter(|char| char.is_alphanumeric()).count() < FEWEST
        };
        let vague = says.iter().filter(is_vague);
        problems
            .extend(vague.map(|words| format!("`{words}` doesn't identify a message: write words of it")));
        problems
    }
}

/// Returns the problems with an exercise's checks: their names, and the ranks that they need.
pub(super) fn problems(exercise: &Exercise, source: &str) -> Vec<String> {
    let (filter, ranks) = (exercise.filter(), exercise.min_ranks);
    let mut problems = Vec::new();
    let names = source.split("Check::new(").skip(1);
    let names = names.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
    for name in names.filter(|name| !name.starts_with(&filter)) {
        problems.push(format!("the name of its check `{name}` must start with `{filter}`"));
    }
    if ranks > 1 && !source.contains(&format!(".min_ranks({ranks})")) {
        problems.push(format!("min_ranks = {ranks}, but none of its checks calls `.min_ranks({ranks})`"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str =
        "Check::new(\"devices::one\", one), Check::new(\n    \"device::two\", two).min_ranks(2)";

    fn exercise() -> Exercise {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        Course::read(root).unwrap().exercise("init/devices").unwrap().clone()
    }

    #[test]
    fn a_check_has_its_exercise_s_prefix_and_its_ranks_are_needed() {
        let mut exercise = exercise();
        assert_eq!(
            problems(&exercise, SOURCE),
            ["the name of its check `device::two` must start with `devices::`"]
        );
        exercise.min_ranks = 3;
        assert!(problems(&exercise, SOURCE)[1].contains("none of its checks calls `.min_ranks(3)`"));
        exercise.min_ranks = 2;
        assert_eq!(problems(&exercise, SOURCE).len(), 1);
    }

    #[test]
    fn a_mistake_names_an_existing_check_and_its_words() {
        let files = BTreeMap::from([("devices.rs".to_owned(), SOURCE.to_owned())]);
        let sources = CheckSources(BTreeMap::from([("01_init".to_owned(), files)]));
        let recorded = |fails: &str, says: &str| sources.recorded(&exercise(), fails, &[says.to_owned()]);
        assert_eq!(recorded("devices::one", "got 1"), [""; 0]);
        let [check, words] = TEMPLATE;
        assert_eq!(recorded(check, words).len(), 2);
        assert!(recorded("devices::three", "got 1")[0].contains("no check `devices::three`"));
        assert!(recorded("devices::one", "?")[0].contains("doesn't identify a message"));
    }
}
