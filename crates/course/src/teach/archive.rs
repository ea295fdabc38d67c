//! `cargo course teach archive`: packs the course without its solutions.

mod vendor;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use course::answers::starter;
use course::handout::stage;
use course::syllabus::Course;

/// The README of a course without solutions.
const README: &str = include_str!("archive/README.md");

/// Writes the course without its solutions, and the sources of its dependencies if `vendor` is set. Later modules then
/// build on the student's own earlier modules.
pub(super) fn write(root: &Path, course: &Course, to: &Path, vendor: bool) -> anyhow::Result<String> {
    let name = to.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let top = name.strip_suffix(".tar.gz").filter(|top| !top.is_empty());
    let top = top.with_context(|| format!("{}: the file name must end in .tar.gz", to.display()))?;
    let around = course::progress::folder(root).join(format!("archive-{}", std::process::id()));
    let staging = around.join(top);
    let made = stage(root, course, &staging, |exercise| starter(root, exercise)).and_then(|count| {
        fs::write(staging.join("README.md"), README)?;
        if vendor {
            vendor::add(&staging)?;
        }
        let new = to.with_file_name(format!(".{name}.{}", std::process::id()));
        let written = pack(&around, top, &new).and_then(|()| Ok(fs::rename(&new, to)?));
        if written.is_err() {
            // The file may not exist.
            let _ = fs::remove_file(&new);
        }
        written.with_context(|| format!("can't write {}", to.display()))?;
        Ok(count)
    });
    // Leftover files are harmless.
    let _ = fs::remove_dir_all(&around);
    let with = if vendor { " and the dependencies" } else { "" };
    Ok(format!("wrote {} files{with} to {}\n", made?, to.display()))
}

fn pack(around: &Path, top: &str, file: &Path) -> anyhow::Result<()> {
    let tar = Command::new("tar").arg("-czf").arg(file).arg("-C").args([around, Path::new(top)]).output();
    let tar = tar.context("can't run tar")?;
    ensure!(tar.status.success(), "tar: {}", String::from_utf8_lossy(&tar.stderr).trim());
    Ok(())
}
