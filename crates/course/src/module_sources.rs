//! Which sources of a module, and which of its checks, belong to an exercise. To compile those of the other exercises takes
//! longer than to compile the exercise.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::syllabus::{Course, Exercise};

/// A module's root, below the module's folder.
pub const LIBRARY: &str = "src/lib.rs";

/// What is before and after an exercise's name in the line above the `mod` of its checks.
pub const ONLY_FOR: [&str; 2] = ["#[cfg(any(not(one_exercise), ", "))]"];

/// The words of a source, without those of lines that are comments.
pub struct Words(BTreeSet<String>);

impl Words {
    /// Finds the words of a source.
    pub fn of(source: &str) -> Self {
        let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
        let words = code.flat_map(|line| line.split(|next: char| !next.is_alphanumeric() && next != '_'));
        Self(words.filter(|word| !word.is_empty()).map(str::to_owned).collect())
    }

    /// Returns whether the source contains a name.
    pub fn contains(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

/// Returns the sources that neither the exercise, nor its checks, nor a source that they use mentions. All paths start in
/// the module's folder: `src/devices.rs`.
pub fn unused<'w>(
    sources: &BTreeMap<PathBuf, impl Borrow<Words>>,
    exercise: &Path,
    checks: impl Iterator<Item = &'w Words>,
) -> BTreeSet<PathBuf> {
    let mut unused: BTreeSet<PathBuf> = sources.keys().cloned().collect();
    unused.remove(Path::new(LIBRARY));
    let mentioned = |unused: &BTreeSet<PathBuf>, words: &Words| -> Vec<PathBuf> {
        let is_mentioned = |path: &&PathBuf| {
            path.file_stem().and_then(|stem| stem.to_str()).is_none_or(|stem| words.contains(stem))
        };
        unused.iter().filter(is_mentioned).cloned().collect()
    };
    let mut used: Vec<PathBuf> = vec![exercise.to_owned()];
    used.extend(checks.flat_map(|words| mentioned(&unused, words)));
    while let Some(path) = used.pop() {
        if unused.remove(&path) {
            used.extend(mentioned(&unused, sources[&path].borrow()));
        }
    }
    unused
}

/// Returns a module's root without the modules that are not used.
pub fn library_without(library: &str, unused: &BTreeSet<PathBuf>) -> String {
    let is_used = |line: &&str| {
        let name = line.strip_prefix("pub mod ").and_then(|line| line.strip_suffix(';'));
        name.is_none_or(|name| !unused.contains(&Path::new("src").join(format!("{name}.rs"))))
    };
    library.lines().filter(is_used).map(|line| format!("{line}\n")).collect()
}

/// Returns the files of `tests/NN`, which are passed with paths in this folder, with only one exercise's checks and what they
/// share with others.
///
/// # Errors
/// Fails if the folder has no `mod.rs` with a list of checks.
pub fn own_checks(
    mut files: BTreeMap<PathBuf, String>,
    course: &Course,
    exercise: &Exercise,
) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let in_module = course.exercises.iter().filter(|other| other.folder() == exercise.folder());
    let others: Vec<String> =
        in_module.filter(|other| other.id != exercise.id).map(|other| other.filter()).collect();
    let is_other = |name: &str| others.contains(&format!("{name}::"));
    files.retain(|path, _| {
        let name = path.iter().next().unwrap_or_default().to_string_lossy();
        !is_other(name.trim_end_matches(".rs"))
    });
    let all = files.get_mut(Path::new("mod.rs")).context("a module's checks have a mod.rs")?;
    let is_own = |line: &&str| {
        let inside = |[before, after]: [&str; 2]| line.strip_prefix(before)?.strip_suffix(after);
        let name = inside(["mod ", ";"]).or_else(|| inside(ONLY_FOR));
        name.is_none_or(|name| !is_other(name))
    };
    *all = all.lines().filter(is_own).map(|line| format!("{line}\n")).collect();
    let list = "lab::checks![";
    let (before, rest) = all.split_once(list).context("a module's mod.rs has lab::checks![…]")?;
    let (names, after) = rest.split_once(']').context("the list of checks has an end")?;
    let own: Vec<&str> = names.split(',').map(str::trim).filter(|name| !is_other(name)).collect();
    *all = format!("{before}{list}{}]{after}", own.join(", "));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_used_sources_are_modules() {
        let library = "pub mod a;\npub mod b;\npub mod c;\npub mod d;\n\n#[cfg(test)]\nuse crate as x;\n";
        let sources = [
            (LIBRARY, library),
            ("src/a.rs", "use crate::b::f;"),
            ("src/b.rs", "// d is not used"),
            ("src/c.rs", ""),
            ("src/d.rs", ""),
        ];
        let sources = BTreeMap::from(sources.map(|(path, text)| (PathBuf::from(path), Words::of(text))));
        let checks = [Words::of("use x::{a, c};")];
        let unused = unused(&sources, Path::new("src/a.rs"), checks.iter());
        assert_eq!(unused, BTreeSet::from([PathBuf::from("src/d.rs")]));
        assert_eq!(
            library_without(library, &unused),
            "pub mod a;\npub mod b;\npub mod c;\n\n#[cfg(test)]\nuse crate as x;\n"
        );
    }

    #[test]
    fn an_exercise_has_its_own_checks_and_shared_files() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let course = Course::read(&root).unwrap();
        let exercise = course.exercise("grouping/events").unwrap();
        let files = ["mod.rs", "events.rs", "group.rs", "foreign.rs"];
        let read = |file| std::fs::read_to_string(root.join("tests/03_grouping").join(file)).unwrap();
        let files = files.map(|file| (PathBuf::from(file), read(file)));
        let own = own_checks(files.into(), &course, exercise).unwrap();
        assert!(own.keys().eq(["events.rs", "foreign.rs", "mod.rs"].map(Path::new)));
        let list = &own[Path::new("mod.rs")];
        let of_exercise = ONLY_FOR.join("events") + "\nmod events;\n";
        assert!(list.contains(&of_exercise) && list.contains("\nmod foreign;\n"), "{list}");
        assert!(list.contains("lab::checks![events]") && !list.contains("mod group;"), "{list}");
        assert_eq!(list.matches(ONLY_FOR[0]).count(), 1, "{list}");
    }
}
