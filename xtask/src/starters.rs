//! `cargo xtask starters`: generates the exercises in modules/ from solutions/. Lessons and programs are maintained in
//! modules/ and are not changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use course::starter::{self, read_folder};

/// Options of `cargo xtask starters`.
#[derive(Args)]
pub(crate) struct Options {
    /// Write nothing; fail if modules/ differs from what solutions/ generates
    #[arg(long)]
    check: bool,
}

/// The files that are generated from solutions, by path below modules/.
pub(crate) type Starters = BTreeMap<PathBuf, String>;

/// Runs the task: reads everything, then writes the files that differ, and removes starters without a solution.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let differences = differences(root, &starters(root)?)?;
    if options.check {
        ensure!(
            differences.is_empty(),
            "modules/ differs from what solutions/ generates:\n  {}\nhelp: cargo xtask starters",
            differences.iter().map(Difference::describe).collect::<Vec<_>>().join("\n  ")
        );
        return Ok(());
    }
    let modules = root.join("modules");
    for difference in &differences {
        let path = modules.join(&difference.path);
        match &difference.should_be {
            Some(text) => {
                let folder = path.parent().unwrap_or(&modules);
                fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
                fs::write(&path, text).with_context(|| format!("can't write {}", path.display()))?;
            }
            None => fs::remove_file(&path).with_context(|| format!("can't remove {}", path.display()))?,
        }
        println!("{}", difference.describe());
    }
    Ok(())
}

/// A file below modules/ that must change.
pub(crate) struct Difference {
    path: PathBuf,
    should_be: Option<String>,
}

impl Difference {
    /// Returns a description of the file and the required action.
    pub(crate) fn describe(&self) -> String {
        let action = if self.should_be.is_some() { "write" } else { "remove" };
        format!("{action} modules/{}", self.path.display())
    }
}

/// Returns the changes that make modules/ match solutions/. The starters of broken solutions stay unchanged.
pub(crate) fn differences(root: &Path, made: &Made) -> anyhow::Result<Vec<Difference>> {
    let modules = root.join("modules");
    let mut there = if modules.is_dir() { read_folder(&modules)? } else { BTreeMap::new() };
    there.retain(|path, _| !made.broken.contains_key(path));
    let mut differences = Vec::new();
    for (path, text) in &made.starters {
        if there.remove(path).as_ref() != Some(text) {
            differences.push(Difference { path: path.clone(), should_be: Some(text.clone()) });
        }
    }
    // Lessons and programs have no regions.
    there.retain(|_, text| starter::regions(text) > 0);
    differences.extend(there.into_keys().map(|path| Difference { path, should_be: None }));
    Ok(differences)
}

/// The starters that solutions generate, and the solutions that can't be turned into one.
#[derive(Default)]
pub(crate) struct Made {
    pub(crate) starters: Starters,
    /// What is wrong with each broken solution, by path below solutions/.
    pub(crate) broken: BTreeMap<PathBuf, String>,
}

/// Generates every starter from its solution.
///
/// # Errors
/// Fails if there is no solution, or if a file can't be read.
pub(crate) fn make_all(root: &Path) -> anyhow::Result<Made> {
    let solutions = root.join("solutions");
    let mut all = Made::default();
    let is_program = |path: &Path| path.iter().nth(1).is_some_and(|folder| folder == "programs");
    for (path, text) in read_folder(&solutions)?.into_iter().filter(|(path, _)| !is_program(path)) {
        match make(&path, &text) {
            Ok(starter) => all.starters.insert(path, starter),
            Err(error) => {
                let problem = format!("solutions/{}: {error:#}", path.display());
                all.broken.insert(path, problem)
            }
        };
    }
    ensure!(!all.starters.is_empty(), "{} contains no files", solutions.display());
    Ok(all)
}

/// Generates every starter from its solution.
///
/// # Errors
/// Fails like [`make_all`], or if a solution can't be turned into a starter. The error names its path.
pub(crate) fn starters(root: &Path) -> anyhow::Result<Made> {
    let made = make_all(root)?;
    ensure!(
        made.broken.is_empty(),
        "{}",
        made.broken.values().map(String::as_str).collect::<Vec<_>>().join("\n")
    );
    Ok(made)
}

fn make(path: &Path, text: &str) -> anyhow::Result<String> {
    let module = path.iter().next().unwrap_or_default().to_string_lossy();
    let renamed = || starter::renamed(&module, text);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => starter::starter(&renamed()),
        Some("toml") => starter::manifest(&renamed()),
        _ => bail!("only .rs and .toml files belong to a solution; lessons are in modules/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_module_s_own_package_is_renamed() {
        let text = "[package]\nname = \"s02_x\"\n\n[lints]\nworkspace = true\n\n[dependencies]\ninit.workspace = true # s01_init\n";
        let made = make(Path::new("02_x/Cargo.toml"), text).unwrap();
        assert!(made.contains("name = \"m02_x\"") && made.contains("# s01_init"), "{made}");
        assert!(make(Path::new("02_x/README.md"), "").is_err());
    }

    #[test]
    fn a_broken_solution_is_named_and_its_starter_stays() {
        let root = std::env::temp_dir().join(format!("xtask_starters_{}", std::process::id()));
        for (path, text) in [
            ("solutions/01_x/src/good.rs", "fn f() {}\n"),
            ("solutions/01_x/src/bad.rs", "// ANCHOR: f\n// Do it.\n\nf()\n"),
            ("modules/01_x/src/bad.rs", "// ANCHOR: f\n"),
        ] {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), text).unwrap();
        }
        let made = make_all(&root).unwrap();
        let described =
            differences(&root, &made).unwrap().iter().map(Difference::describe).collect::<Vec<_>>();
        assert_eq!(described, ["write modules/01_x/src/good.rs"]);
        let broken: Vec<&String> = made.broken.values().collect();
        assert!(broken[0].starts_with("solutions/01_x/src/bad.rs: region `f` is never closed"), "{broken:?}");
        assert!(starters(&root).is_err());
        fs::remove_dir_all(&root).unwrap();
    }
}
