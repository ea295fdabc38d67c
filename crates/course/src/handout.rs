//! Copies of the course without its solutions.

mod pages;

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::checks::cargo;
use crate::syllabus::{Course, Exercise};
use anyhow::{Context, ensure};

/// Paths that give away the answers, that need them, or that only authors use.
const LEFT_OUT: [&str; 17] = [
    "solutions/",
    "tests/alternatives/",
    "tests/mistakes/",
    "tests/deletions.toml",
    "tests/equivalent_mutants.toml",
    "crates/conformance/",
    "crates/grade/",
    "site/book/src/authors.md",
    "site/book/src/instructors.md",
    "site/book/src/facilitator/",
    "xtask/",
    ".ci/",
    ".github/",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
];

/// Folders of a crate that only its authors use, and their parts of its manifest.
const FOR_AUTHORS: [(&str, &str); 2] = [("tests", "test"), ("benches", "bench")];

/// Returns whether a file of the course is handed out.
fn is_handed_out(name: &str) -> bool {
    // Lessons and error messages refer to the book's pages.
    let is_of_site = name.starts_with("site/") && !name.starts_with("site/book/src/");
    let mut parts = name.split('/');
    let is_of_crate = parts.next() == Some("crates");
    let is_for_authors =
        is_of_crate && parts.nth(1).is_some_and(|part| FOR_AUTHORS.iter().any(|(folder, _)| *folder == part));
    !is_of_site && !is_for_authors && !LEFT_OUT.iter().any(|left_out| name.starts_with(left_out))
}

/// Copies the course without its solutions to a folder, with a manifest and a lock file for the remaining packages. Later
/// modules then build on the earlier ones in `modules/`. `text` returns what to write to an exercise's file, instead of
/// what the instructor has written there. Returns the number of files.
///
/// # Errors
/// Fails if the course is not in a git repository, or if a file can't be copied or written.
pub fn stage(
    root: &Path,
    course: &Course,
    staging: &Path,
    text: impl Fn(&Exercise) -> anyhow::Result<String>,
) -> anyhow::Result<usize> {
    let output =
        Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().context("can't run git")?;
    ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    let names = String::from_utf8(output.stdout).context("a file's name")?;
    let mut count = 0;
    for name in names.split('\0').filter(|name| !name.is_empty() && is_handed_out(name)) {
        let (from, to) = (root.join(name), staging.join(name));
        fs::create_dir_all(to.parent().context("the archive is in a folder")?)?;
        fs::copy(&from, &to).with_context(|| format!("can't copy {}", from.display()))?;
        count += 1;
    }
    for exercise in &course.exercises {
        fs::write(exercise.starter(staging), text(exercise)?)?;
    }
    pages::adapt(staging)?;
    edit(&staging.join("Cargo.toml"), without_solutions)?;
    // A small course may have only modules.
    for crate_ in fs::read_dir(staging.join("crates")).into_iter().flatten() {
        edit(&crate_?.path().join("Cargo.toml"), without_tests)?;
    }
    // Cargo removes the missing packages from the lock file. Unlike other commands, this one needs no package's source.
    let output = cargo()
        .args(["update", "--workspace", "--offline", "--quiet"])
        .current_dir(staging)
        .output()
        .context("can't run cargo")?;
    ensure!(output.status.success(), "cargo update: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(count)
}

/// Changes a manifest.
fn edit(path: &Path, change: impl FnOnce(&mut toml::Table)) -> anyhow::Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    let mut manifest: toml::Table = toml::from_str(&text).with_context(|| path.display().to_string())?;
    change(&mut manifest);
    fs::write(path, toml::to_string_pretty(&manifest)?)?;
    Ok(())
}

/// Removes packages that are not handed out from the workspace's manifest. The modules take the places of the solutions.
fn without_solutions(manifest: &mut toml::Table) {
    let Some(workspace) = manifest.get_mut("workspace").and_then(toml::Value::as_table_mut) else { return };
    if let Some(members) = workspace.get_mut("members").and_then(toml::Value::as_array_mut) {
        members.retain(|member| member.as_str().is_some_and(|member| is_handed_out(&format!("{member}/"))));
    }
    // `cargo test` then builds what a student needs, and so does `cargo course doctor --workshop`.
    if workspace.contains_key("default-members") {
        let needed = ["crates/course", "crates/start", "modules/*"];
        workspace.insert("default-members".to_owned(), needed.map(toml::Value::from).to_vec().into());
    }
    let dependencies = workspace.get_mut("dependencies").and_then(toml::Value::as_table_mut);
    for (_, dependency) in dependencies.into_iter().flatten() {
        let Some(dependency) = dependency.as_table_mut() else { continue };
        let path = dependency.get("path").and_then(toml::Value::as_str);
        if let Some(folder) = path.and_then(|path| path.strip_prefix("solutions/")).map(str::to_owned) {
            dependency.insert("package".to_owned(), format!("m{folder}").into());
            dependency.insert("path".to_owned(), format!("modules/{folder}").into());
        }
    }
}

/// Removes the tests from a crate's manifest, and the dependencies that only they need.
fn without_tests(manifest: &mut toml::Table) {
    for (_, targets) in FOR_AUTHORS {
        manifest.remove(targets);
    }
    manifest.remove("dev-dependencies");
    // Only a configuration for tests has a dependency of its own.
    manifest.remove("target");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_student_needs_is_handed_out() {
        for needed in [
            "Cargo.toml",
            "modules/01_init/src/devices.rs",
            "tests/01_init/devices.rs",
            "crates/lab/src/check/mod.rs",
            "crates/lab/examples/reports.rs",
            "site/book/src/setup.md",
        ] {
            assert!(is_handed_out(needed), "{needed}");
        }
        for other in [
            "solutions/01_init/src/devices.rs",
            "tests/mistakes/init/devices/one.patch",
            "crates/lab/tests/harness.rs",
            "crates/lab/benches/nccl/main.rs",
            "crates/grade/src/main.rs",
            "site/src/main.rs",
            "site/book/src/instructors.md",
            "site/book/src/facilitator/quiz.md",
            "xtask/src/main.rs",
        ] {
            assert!(!is_handed_out(other), "{other}");
        }
    }

    #[test]
    fn the_modules_take_the_places_of_the_solutions() {
        let mut manifest: toml::Table = toml::from_str(
            r#"
            [workspace]
            members = ["crates/*", "modules/*", "solutions/*", "site", "xtask", "xtask/nvidia"]
            default-members = ["crates/lab", "solutions/*"]
            [workspace.dependencies]
            anyhow = "1"
            init = { package = "s01_init", path = "solutions/01_init" }
            "#,
        )
        .unwrap();
        without_solutions(&mut manifest);
        let expected: toml::Table = toml::from_str(
            r#"
            [workspace]
            members = ["crates/*", "modules/*"]
            default-members = ["crates/course", "crates/start", "modules/*"]
            [workspace.dependencies]
            anyhow = "1"
            init = { package = "m01_init", path = "modules/01_init" }
            "#,
        )
        .unwrap();
        assert_eq!(manifest, expected);
    }
}
