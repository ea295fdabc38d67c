//! Copies of the course without its solutions.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::checks::cargo;
use crate::syllabus::{Course, Exercise};
use anyhow::{Context, bail, ensure};

/// Paths that give away the answers, or that are useless without them.
const LEFT_OUT: [&str; 8] = [
    "solutions/",
    "tests/alternatives/",
    "tests/mistakes/",
    "tests/deletions.toml",
    "tests/equivalent_mutants.toml",
    "crates/course/tests/programs.rs",
    "xtask/",
    ".ci/",
];

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
    let is_kept =
        |name: &&str| !name.is_empty() && !LEFT_OUT.iter().any(|left_out| name.starts_with(left_out));
    let mut count = 0;
    for name in names.split('\0').filter(is_kept) {
        let (from, to) = (root.join(name), staging.join(name));
        fs::create_dir_all(to.parent().context("the archive is in a folder")?)?;
        fs::copy(&from, &to).with_context(|| format!("can't copy {}", from.display()))?;
        count += 1;
    }
    for exercise in &course.exercises {
        fs::write(exercise.starter(staging), text(exercise)?)?;
    }
    let manifest = staging.join("Cargo.toml");
    fs::write(&manifest, without_solutions(&fs::read_to_string(&manifest)?)?)?;
    // Cargo removes the missing packages from the lock file. Unlike other commands, this one needs no package's source.
    let output = cargo()
        .args(["update", "--workspace", "--offline", "--quiet"])
        .current_dir(staging)
        .output()
        .context("can't run cargo")?;
    ensure!(output.status.success(), "cargo update: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(count)
}

/// Returns the workspace's manifest without the solutions.
fn without_solutions(manifest: &str) -> anyhow::Result<String> {
    let read: toml::Table = toml::from_str(manifest).context("Cargo.toml")?;
    let members =
        read["workspace"]["members"].as_array().into_iter().flatten().filter_map(|member| member.as_str());
    let is_gone = |member: &&str| LEFT_OUT.iter().any(|left_out| format!("{member}/").starts_with(left_out));
    let mut text = manifest.to_owned();
    for member in members.filter(is_gone) {
        text = text.replace(&format!(", \"{member}\""), "");
    }
    for line in manifest.lines().filter(|line| line.contains("path = \"solutions/")) {
        let own = line.replace("package = \"s", "package = \"m").replace("\"solutions/", "\"modules/");
        text = text.replace(line, &own);
    }
    if ["solutions/", "xtask"].iter().any(|gone| text.contains(gone)) {
        bail!("Cargo.toml still names solutions/ or xtask");
    }
    Ok(text)
}
