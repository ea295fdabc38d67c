//! `cargo course teach starter-archive`: packs the course without its solutions.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use course::answers::starter;
use course::checks::cargo;
use course::syllabus::Course;

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

/// Writes the course without its solutions. Later modules then build on the student's own earlier modules.
pub(super) fn write(root: &Path, course: &Course, to: &Path) -> anyhow::Result<String> {
    let name = to.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let top = name.strip_suffix(".tar.gz").filter(|top| !top.is_empty());
    let top = top.with_context(|| format!("{}: the file name must end in .tar.gz", to.display()))?;
    let around = course::progress::folder(root).join(format!("archive-{}", std::process::id()));
    let made = stage(root, course, &around.join(top)).and_then(|count| {
        let new = to.with_file_name(format!(".{name}.{}", std::process::id()));
        let written = pack(&around, top, &new).and_then(|()| Ok(fs::rename(&new, to)?));
        if written.is_err() {
            // The file may not exist.
            let _ = fs::remove_file(&new);
        }
        written.with_context(|| format!("can't write {}", to.display())).map(|()| count)
    });
    // Leftover files are harmless.
    let _ = fs::remove_dir_all(&around);
    Ok(format!("wrote {} files to {}\n", made?, to.display()))
}

/// Copies the files to a separate folder, with a manifest and a lock file for the remaining packages.
fn stage(root: &Path, course: &Course, staging: &Path) -> anyhow::Result<usize> {
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
    // The archive must not contain what the instructor has written in the exercises.
    for exercise in &course.exercises {
        fs::write(exercise.starter(staging), starter(root, exercise)?)?;
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

fn pack(around: &Path, top: &str, file: &Path) -> anyhow::Result<()> {
    let tar = Command::new("tar").arg("-czf").arg(file).arg("-C").args([around, Path::new(top)]).output();
    let tar = tar.context("can't run tar")?;
    ensure!(tar.status.success(), "tar: {}", String::from_utf8_lossy(&tar.stderr).trim());
    Ok(())
}
