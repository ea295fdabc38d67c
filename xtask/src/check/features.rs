//! Checks that all packages build the virtual GPU with the same features. Otherwise, Cargo would rebuild it each time a
//! student switches between packages, because the libraries have the same name in both builds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, ensure};
use course::syllabus::Course;

use super::cargo;

/// The features of each package, by name and version. A package may be built twice: for programs, and for build scripts
/// and macros.
type Features = BTreeMap<String, BTreeSet<String>>;

/// Returns the dependencies whose features differ between `lab` and another package in the workspace.
pub(super) fn differences(root: &Path, course: &Course) -> anyhow::Result<Vec<String>> {
    let of_lab = features(root, "lab")?;
    let modules =
        course.modules.iter().flat_map(|module| [module.starter_package(), module.solution_package()]);
    let mut problems = Vec::new();
    for package in ["course".to_owned(), "nvidia".to_owned(), "xtask".to_owned()].into_iter().chain(modules) {
        for (name, there) in features(root, &package)? {
            if let Some(here) = of_lab.get(&name).filter(|here| !here.is_subset(&there)) {
                let [here, there] =
                    [here, &there].map(|all| Vec::from_iter(all.iter().cloned()).join("` and `"));
                problems.push(format!(
                    "{name} is built with `{there}` for {package} and with `{here}` for lab: \
                     ask for both in crates/virtual-gpu/Cargo.toml"
                ));
            }
        }
    }
    Ok(problems)
}

/// Returns the packages that Cargo builds for a package and its tests.
fn features(root: &Path, package: &str) -> anyhow::Result<Features> {
    let arguments = ["tree", "--prefix", "none", "--format", "{p}|{f}", "--no-dedupe", "--package", package];
    let output = cargo(root).args(arguments).output().context("can't run cargo tree")?;
    ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).context("cargo tree")?;
    let lines = text.lines().filter_map(|line| line.split_once('|'));
    let mut found = Features::new();
    for (name, features) in lines {
        found.entry(name.to_owned()).or_default().insert(features.to_owned());
    }
    Ok(found)
}
