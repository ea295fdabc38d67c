//! `cargo course teach starter-archive`: packs the course without its solutions.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use course::answers::starter;
use course::handout::stage;
use course::syllabus::Course;

/// Writes the course without its solutions. Later modules then build on the student's own earlier modules.
pub(super) fn write(root: &Path, course: &Course, to: &Path) -> anyhow::Result<String> {
    let name = to.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let top = name.strip_suffix(".tar.gz").filter(|top| !top.is_empty());
    let top = top.with_context(|| format!("{}: the file name must end in .tar.gz", to.display()))?;
    let around = course::progress::folder(root).join(format!("archive-{}", std::process::id()));
    let made = stage(root, course, &around.join(top), |exercise| starter(root, exercise)).and_then(|count| {
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

fn pack(around: &Path, top: &str, file: &Path) -> anyhow::Result<()> {
    let tar = Command::new("tar").arg("-czf").arg(file).arg("-C").args([around, Path::new(top)]).output();
    let tar = tar.context("can't run tar")?;
    ensure!(tar.status.success(), "tar: {}", String::from_utf8_lossy(&tar.stderr).trim());
    Ok(())
}
