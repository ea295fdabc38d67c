//! Checks that all packages build the virtual GPU with the same features. Otherwise, Cargo would rebuild it each time a
//! student switches between packages, because the libraries have the same name in both builds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, ensure};

use super::cargo;

/// The features of each package, by name and version. A package may be built twice: for programs, and for build scripts
/// and macros.
type Features = BTreeMap<String, BTreeSet<String>>;

/// Returns the dependencies whose features differ between `lab` and another package that builds the virtual GPU.
pub(super) fn differences(root: &Path) -> anyhow::Result<Vec<String>> {
    let of_lab = features(root, &["--package", "lab"])?;
    let builds_it = |features: &Features| features.keys().any(|name| name.starts_with("virtual-cuda "));
    let mut problems = Vec::new();
    for package in members(root)? {
        for (name, there) in
            Some(features(root, &["--package", &package])?).filter(builds_it).into_iter().flatten()
        {
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

/// Returns the names of all packages in the workspace.
fn members(root: &Path) -> anyhow::Result<Vec<String>> {
    let all = features(root, &["--workspace", "--depth", "0"])?;
    Ok(all.into_keys().filter_map(|name| Some(name.split_once(' ')?.0.to_owned())).collect())
}

/// Returns the packages that Cargo builds for some packages and their tests.
fn features(root: &Path, packages: &[&str]) -> anyhow::Result<Features> {
    let arguments = ["tree", "--prefix", "none", "--format", "{p}|{f}", "--no-dedupe"];
    let output = cargo(root).args(arguments).args(packages).output().context("can't run cargo tree")?;
    ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).context("cargo tree")?;
    let lines = text.lines().filter_map(|line| line.split_once('|'));
    let mut found = Features::new();
    for (name, features) in lines {
        found.entry(name.to_owned()).or_default().insert(features.to_owned());
    }
    Ok(found)
}
