//! Finds exercises, modules, and paths by the names that students use.

use std::path::Path;

use anyhow::{Context, bail};

use super::{Course, Exercise, Module, Route};

impl Course {
    /// Returns the exercise with that id or file. The part after the slash is enough if it is unique.
    ///
    /// # Errors
    /// Fails if there is none, or if there are several; the error lists all ids that the name may refer to.
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
                let mut ids: Vec<&str> = several.iter().map(|exercise| exercise.id.as_str()).collect();
                ids.dedup();
                if let [id] = ids[..] {
                    bail!("course.toml lists the exercise `{id}` twice");
                }
                bail!("`{id}` may be {}", ids.join(" or "))
            }
        }
    }

    /// Returns the id that is most similar to an unknown name, if any is similar.
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

    /// Returns the module in that folder, such as `01_init`. Its number or its name is enough.
    ///
    /// # Errors
    /// Fails if there is none; the error lists the existing folders.
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

    /// Returns the path with that name.
    ///
    /// # Errors
    /// Fails if there is none; the error lists the existing paths.
    pub fn path(&self, name: &str) -> anyhow::Result<&Route> {
        self.paths.iter().find(|path| path.name == name).with_context(|| {
            let names: Vec<&str> = self.paths.iter().map(|path| path.name.as_str()).collect();
            format!("there is no path `{name}`; there are {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syllabus::tests::GOOD;

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
        let mut twice = course.clone();
        twice.exercises.push(course.exercises[0].clone());
        let error = twice.exercise("devices").unwrap_err().to_string();
        assert_eq!(error, "course.toml lists the exercise `init/devices` twice");
        assert_eq!(course.module("1").unwrap().starter_package(), "m01_init");
        assert_eq!(course.exercises[0].test_command(), "cargo test -p m01_init devices::");
    }
}
