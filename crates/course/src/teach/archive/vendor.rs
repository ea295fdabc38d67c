//! Adds the sources of all dependencies to a copy of the course, so that it builds without a network.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use course::checks::cargo;
use serde::Deserialize;

/// The platforms that the course runs on.
const PLATFORMS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// The folder with the dependencies.
const VENDOR: &str = "vendor";

/// The file with the checksums of a dependency. Cargo verifies only the files that it lists.
const CHECKSUMS: &str = ".cargo-checksum.json";

/// The part of `cargo metadata` that is read here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    manifest_path: PathBuf,
}

/// Downloads the dependencies that are not in Cargo's cache, and stores the sources of all of them in the course. `cargo
/// vendor` has no option to choose platforms, so dependencies that no platform of the course uses are emptied afterward.
pub(super) fn add(staging: &Path) -> anyhow::Result<()> {
    let config = output(cargo().args(["vendor", "--locked", VENDOR]).current_dir(staging))?;
    let vendor = staging.join(VENDOR);
    fs::create_dir_all(staging.join(".cargo"))?;
    let mut file =
        fs::OpenOptions::new().create(true).append(true).open(staging.join(".cargo/config.toml"))?;
    write!(file, "\n# Makes Cargo take dependencies from a folder instead of a network.\n{config}")?;
    let mut used = BTreeSet::new();
    for platform in PLATFORMS {
        let mut metadata = cargo();
        metadata.args(["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform"]);
        let metadata: Metadata = serde_json::from_str(&output(metadata.arg(platform).current_dir(staging))?)?;
        used.extend(metadata.packages.into_iter().map(|package| package.manifest_path));
    }
    // A course may have no dependencies.
    for package in fs::read_dir(&vendor).into_iter().flatten() {
        let folder = package?.path();
        if !used.contains(&folder.canonicalize()?.join("Cargo.toml")) {
            empty(&folder).with_context(|| folder.display().to_string())?;
        }
    }
    Ok(())
}

/// Runs a command, and returns its output.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().context("can't run cargo")?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// Replaces a dependency that is never built with an empty library. Cargo still reads its manifest.
fn empty(package: &Path) -> anyhow::Result<()> {
    let mut manifest: toml::Table = toml::from_str(&fs::read_to_string(package.join("Cargo.toml"))?)?;
    for targets in ["lib", "bin", "example", "test", "bench"] {
        manifest.remove(targets);
    }
    let about = manifest.get_mut("package").and_then(toml::Value::as_table_mut).context("it has no name")?;
    about.retain(|key, _| ["name", "version", "edition"].contains(&key));
    let mut checksums: serde_json::Value = serde_json::from_slice(&fs::read(package.join(CHECKSUMS))?)?;
    checksums["files"] = serde_json::json!({});
    fs::remove_dir_all(package)?;
    fs::create_dir_all(package.join("src"))?;
    fs::write(package.join("src/lib.rs"), "")?;
    fs::write(package.join("Cargo.toml"), toml::to_string(&manifest)?)?;
    fs::write(package.join(CHECKSUMS), checksums.to_string())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unused_dependency_keeps_its_name_and_its_own_dependencies() {
        let package = std::env::temp_dir().join(format!("course_vendor_{}", std::process::id()));
        let manifest = "[package]\nname = \"a\"\nversion = \"1.2.3\"\nbuild = \"build.rs\"\nlinks = \"a\"\n\
                        [lib]\npath = \"src/main.rs\"\n[features]\nb = []\n[dependencies]\nc = \"1\"\n";
        let checksums = r#"{"files": {"src/main.rs": "1"}, "package": "3"}"#;
        for (file, text) in [("Cargo.toml", manifest), (CHECKSUMS, checksums), ("src/main.rs", "f")] {
            let file = package.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        empty(&package).unwrap();
        let manifest: toml::Table =
            toml::from_str(&fs::read_to_string(package.join("Cargo.toml")).unwrap()).unwrap();
        let expected: toml::Table = toml::from_str(
            "[package]\nname = \"a\"\nversion = \"1.2.3\"\n[features]\nb = []\n[dependencies]\nc = \"1\"\n",
        )
        .unwrap();
        assert_eq!(manifest, expected);
        assert_eq!(fs::read_to_string(package.join("src/lib.rs")).unwrap(), "");
        assert!(!package.join("src/main.rs").exists());
        assert_eq!(fs::read_to_string(package.join(CHECKSUMS)).unwrap(), r#"{"files":{},"package":"3"}"#);
        fs::remove_dir_all(package).unwrap();
    }
}
