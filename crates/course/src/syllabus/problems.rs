//! Finds problems in a `course.toml`, and describes how to fix each.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Course, Exercise, LUNCH, Route, Scheduled, Step, clock};

/// The longest time between two breaks, in minutes.
const BETWEEN_BREAKS: u32 = 75;
/// A path that is longer than this contains lunch, in minutes.
const WITHOUT_LUNCH: u32 = 5 * 60;
/// The shortest lunch, in minutes.
const SHORTEST_LUNCH: u32 = 45;

impl Course {
    /// Returns the problems with the list, and how to fix each. `exists` returns whether a path below the root is a
    /// file.
    pub fn problems(&self, exists: impl Fn(&str) -> bool) -> Vec<String> {
        let mut problems = self.path_problems();
        if self.exercises.is_empty() {
            problems.push("it lists no exercises".to_owned());
        }
        problems.extend(self.missing_lessons(&exists));
        for (index, exercise) in self.exercises.iter().enumerate() {
            let earlier = &self.exercises[..index];
            let own = [
                self.place_problems(exercise, earlier, &exists),
                self.order_problems(exercise, earlier),
                content_problems(exercise),
            ];
            problems.extend(own.concat().into_iter().map(|problem| format!("{}: {problem}", exercise.id)));
        }
        problems
    }

    fn missing_lessons(&self, exists: &impl Fn(&str) -> bool) -> Vec<String> {
        let folders: BTreeSet<&str> = self.modules.iter().map(|module| module.folder.as_str()).collect();
        let lessons = folders.into_iter().map(|folder| (folder, format!("modules/{folder}/README.md")));
        let missing = lessons.filter(|(_, file)| !exists(file));
        missing.map(|(folder, file)| format!("module {folder} has no lesson: write {file}")).collect()
    }

    /// Checks that an exercise's files are in the right places and belong to it alone.
    fn place_problems(
        &self,
        exercise: &Exercise,
        earlier: &[Exercise],
        exists: &impl Fn(&str) -> bool,
    ) -> Vec<String> {
        let (file, test, folder) = (&exercise.file, &exercise.test, exercise.folder());
        let mut problems = Vec::new();
        if earlier.iter().any(|other| other.file == *file) {
            problems.push(format!("{file} is also another exercise's file; give this exercise its own file"));
        }
        if self.modules.iter().all(|module| module.folder != folder) {
            problems.push(format!("its file is in the folder `{folder}`, but no [[module]] has that folder"));
        }
        if test.split('/').next() != Some(folder) {
            problems.push(format!("its test {test} is not in tests/{folder}"));
        }
        let paths = [
            format!("modules/{file}"),
            format!("solutions/{file}"),
            format!("tests/{test}"),
            exercise.lesson(Path::new("")).display().to_string(),
            exercise.after(Path::new("")).display().to_string(),
        ];
        problems
            .extend(paths.into_iter().filter(|path| !exists(path)).map(|path| format!("there is no {path}")));
        problems
    }

    /// Checks that an exercise comes after the exercises that it needs, and that its id and its checks are unique.
    fn order_problems(&self, exercise: &Exercise, earlier: &[Exercise]) -> Vec<String> {
        let is_earlier = |id: &str| earlier.iter().any(|other| other.id == id);
        let mut problems = Vec::new();
        for need in exercise.needs.iter().filter(|need| !is_earlier(need)) {
            problems.push(format!("it needs `{need}`, which is not an earlier exercise"));
        }
        let own = exercise.filter();
        let runs_too = |other: &&Exercise| {
            other.id != exercise.id && other.folder() == exercise.folder() && other.filter().ends_with(&own)
        };
        if let Some(other) = self.exercises.iter().find(runs_too) {
            problems.push(format!("`cargo test {own}` runs the checks of {} too; rename its test", other.id));
        }
        if is_earlier(&exercise.id) {
            problems.push("an earlier exercise has the same id".to_owned());
        }
        problems
    }

    /// Returns the problems with the paths.
    fn path_problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (index, path) in self.paths.iter().enumerate() {
            let mut own = Vec::new();
            if self.paths[..index].iter().any(|other| other.name == path.name) {
                own.push("an earlier path has the same name".to_owned());
            }
            if path.title.trim().is_empty() {
                own.push("its title is empty".to_owned());
            }
            let earlier = &self.paths[..index];
            if let Some(name) = path.after.as_deref()
                && earlier.iter().all(|path| path.name != name)
                && self.modules.iter().all(|module| module.folder != name)
            {
                own.push(format!("it continues `{name}`, but no earlier path and no module has this name"));
            }
            own.extend(self.exercises_of_path_problems(path, &self.done_before(path, earlier)));
            for step in path.steps.iter().flatten() {
                own.extend(self.step_problem(step));
            }
            if path.steps.is_some() {
                own.extend(pause_problems(&self.schedule(path)));
            }
            problems.extend(own.into_iter().map(|problem| format!("path {}: {problem}", path.name)));
        }
        problems
    }

    /// Returns the exercises of the modules or paths that a path continues. The paths are among the `earlier` ones.
    fn done_before(&self, path: &Route, earlier: &[Route]) -> Vec<String> {
        if let Some(last) = self.modules.iter().position(|module| Some(&module.folder) == path.after.as_ref())
        {
            let is_done = |exercise: &&Exercise| {
                self.modules[..=last].iter().any(|module| module.folder == exercise.folder())
            };
            return self.exercises.iter().filter(is_done).map(|exercise| exercise.id.clone()).collect();
        }
        let continued = earlier.iter().position(|other| Some(&other.name) == path.after.as_ref());
        continued.map_or_else(Vec::new, |at| {
            let mut done = self.done_before(&earlier[at], &earlier[..at]);
            done.extend(
                self.schedule(&earlier[at]).into_iter().flat_map(|scheduled| scheduled.step.exercises),
            );
            done
        })
    }

    /// Checks that a path's exercises exist, and that each occurs once and after the exercises that it needs, unless these
    /// were `done` before.
    fn exercises_of_path_problems(&self, path: &Route, done: &[String]) -> Vec<String> {
        let steps = self.schedule(path);
        let on_it: Vec<&str> =
            steps.iter().flat_map(|scheduled| &scheduled.step.exercises).map(String::as_str).collect();
        let mut problems = Vec::new();
        if on_it.is_empty() {
            problems.push("it has no exercises".to_owned());
        }
        for (at, id) in on_it.iter().enumerate() {
            if on_it[..at].contains(id) {
                problems.push(format!("`{id}` comes twice"));
            }
            let Some(exercise) = self.exercises.iter().find(|exercise| exercise.id == *id) else {
                problems.push(format!("there is no exercise `{id}`"));
                continue;
            };
            if done.iter().any(|done| done == id) {
                problems.push(format!("`{id}` is part of what it continues"));
            }
            let is_missing = |need: &&String| !on_it[..at].contains(&need.as_str()) && !done.contains(need);
            for need in exercise.needs.iter().filter(is_missing) {
                if on_it[at..].contains(&need.as_str()) {
                    problems.push(format!("`{id}` needs `{need}`, which comes later"));
                } else {
                    problems.push(format!("`{id}` needs `{need}`; add it to the path"));
                }
            }
        }
        problems
    }

    /// Checks that a step has either exercises or another activity, with time for them and for a talk.
    fn step_problem(&self, step: &Step) -> Option<String> {
        let (minutes, work) = (step.minutes, self.minutes_to_work(step));
        if step.exercises.is_empty() != step.instead.is_some() {
            return Some(format!("a step of {minutes} minutes must have either `exercises` or `instead`"));
        }
        (minutes <= work).then(|| match &step.instead {
            Some(what) => format!("`{what}` has no time"),
            None => format!(
                "{:?} takes {work} minutes of work, and the step has {minutes}; add time for a talk",
                step.exercises
            ),
        })
    }
}

/// Checks that breaks are close enough to each other, and that a long path contains lunch.
fn pause_problems(steps: &[Scheduled]) -> Vec<String> {
    let mut problems = Vec::new();
    let end = steps.last().map_or(0, Scheduled::end);
    let pauses = steps.iter().filter(|scheduled| scheduled.step.is_pause());
    let mut work = 0;
    for (start, next) in pauses.map(|pause| (pause.start, pause.end())).chain([(end, end)]) {
        if start - work > BETWEEN_BREAKS {
            problems.push(format!(
                "there is no break from {} to {}; add one after at most {BETWEEN_BREAKS} minutes",
                clock(work),
                clock(start)
            ));
        }
        work = next;
    }
    let is_lunch = |step: &Step| step.instead.as_deref() == Some(LUNCH) && step.minutes >= SHORTEST_LUNCH;
    if end > WITHOUT_LUNCH && !steps.iter().any(|scheduled| is_lunch(&scheduled.step)) {
        problems.push(format!(
            "it takes {} without lunch; add `instead = \"{LUNCH}\"` with at least {SHORTEST_LUNCH} minutes",
            clock(end)
        ));
    }
    problems
}

/// Checks an exercise's texts and numbers.
fn content_problems(exercise: &Exercise) -> Vec<String> {
    let mut problems = Vec::new();
    if exercise.id.split('/').filter(|part| !part.is_empty()).count() != 2 {
        problems.push("an id must have the form `module/exercise`, such as `init/devices`".to_owned());
    }
    if exercise.hints.len() < 2 {
        problems.push(format!("it needs at least 2 hints, and has {}", exercise.hints.len()));
    }
    let mut texts = [&exercise.title, &exercise.objective].into_iter().chain(&exercise.hints);
    if texts.any(|text| text.trim().is_empty()) {
        problems.push("its title, its objective, or a hint is empty".to_owned());
    }
    if !(1..=60).contains(&exercise.minutes) {
        problems.push(format!("minutes is {}, but must be from 1 to 60", exercise.minutes));
    }
    if exercise.min_ranks == 0 {
        problems.push("min_ranks is 0, but must be at least 1".to_owned());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syllabus::tests::GOOD;

    #[test]
    fn a_good_course_has_no_problems_and_each_fault_has_one() {
        assert_eq!(Course::parse(GOOD).unwrap().problems(|_| true), Vec::<String>::new());
        for (from, to, words) in [
            ("hints = [\"count\", \"open\"]", "hints = [\"count\"]", "needs at least 2 hints, and has 1"),
            ("minutes = 10", "minutes = 0", "minutes is 0"),
            ("needs = []", "needs = [\"init/later\"]", "not an earlier exercise"),
            ("test = \"01_init", "test = \"02_other", "is not in tests/01_init"),
            ("min_ranks = 1", "min_ranks = 0", "at least 1"),
            ("id = \"init/devices\"", "id = \"devices\"", "an id must have the form"),
        ] {
            let problems = Course::parse(&GOOD.replace(from, to)).unwrap().problems(|_| true);
            assert!(problems.len() == 1 && problems[0].contains(words), "{problems:?}");
        }
        assert_eq!(Course::parse(GOOD).unwrap().problems(|_| false).len(), 6);
    }

    #[test]
    fn a_path_may_continue_an_earlier_one_or_modules() {
        let exercise = GOOD.split_once("[[exercise]]").unwrap().1.replace("devices", "buffers");
        let second = exercise.replace("needs = []", "needs = [\"init/devices\"]");
        let path = |name: &str, exercise: &str, after: &str| {
            let steps = format!("[{{ minutes = 15, exercises = [\"init/{exercise}\"] }}]");
            format!("[[path]]\nname = \"{name}\"\ntitle = \"A path\"\n{after}steps = {steps}\n")
        };
        let first = path("first", "devices", "");
        for (paths, words) in [
            (first.clone() + &path("second", "buffers", "after = \"first\"\n"), ""),
            (
                first.clone() + &path("second", "buffers", ""),
                "path second: `init/buffers` needs `init/devices`",
            ),
            (
                first.clone() + &path("second", "devices", "after = \"first\"\n"),
                "is part of what it continues",
            ),
            (path("second", "buffers", "after = \"01_init\"\n"), "is part of what it continues"),
            (
                path("second", "devices", "after = \"first\"\n") + &first,
                "but no earlier path and no module has this name",
            ),
        ] {
            let problems =
                Course::parse(&format!("{GOOD}\n[[exercise]]{second}\n{paths}")).unwrap().problems(|_| true);
            match words {
                "" => assert_eq!(problems, Vec::<String>::new()),
                words => assert!(problems.len() == 1 && problems[0].contains(words), "{problems:?}"),
            }
        }
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
        assert_eq!(course.schedule(course.path("short").unwrap()).len(), 2);
        assert_eq!(course.length(course.path("all").unwrap()), 20);
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
            ("minutes = 25", "minutes = 20", "takes 20 minutes of work, and the step has 20"),
            (
                "[\"init/devices\", \"init/buffers\"]",
                "[\"init/buffers\"]",
                "`init/buffers` needs `init/devices`; add it",
            ),
            (", instead = \"a pause\"", "", "either `exercises` or `instead`"),
            ("minutes = 5", "minutes = 0", "`a pause` has no time"),
            ("minutes = 5", "minutes = 51", "there is no break from 0:00 to 1:16"),
            (
                "minutes = 5, instead = \"a pause\"",
                "minutes = 276, instead = \"break\"",
                "takes 5:01 without lunch",
            ),
            ("minutes = 5, instead = \"a pause\"", "minutes = 276, instead = \"lunch\"", ""),
            ("name = \"all\"", "name = \"short\"", "the same name"),
            ("title = \"All\"", "title = \" \"", "its title is empty"),
        ] {
            let problems = Course::parse(&text.replace(from, to)).unwrap().problems(|_| true);
            let expected = usize::from(!words.is_empty());
            assert!(
                problems.len() == expected && problems.iter().all(|one| one.contains(words)),
                "{problems:?}"
            );
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
}
