//! `cargo course teach archive`: packs the course without its solutions.

mod vendor;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use course::answers::starter;
use course::handout::stage;
use course::syllabus::Course;

/// The README of a course without solutions.
const README: &str = include_str!("archive/README.md");

/// What an archive contains besides the course.
#[derive(clap::Args)]
pub(crate) struct Extras {
    /// Include the dependencies, so that the course builds without a network
    #[arg(long)]
    vendor: bool,
    /// Include a GitHub workflow that checks every push and uploads the results
    #[arg(long)]
    autograding: bool,
}

/// Writes the course without its solutions. Later modules then build on the student's own earlier modules.
pub(super) fn write(root: &Path, course: &Course, to: &Path, extras: &Extras) -> anyhow::Result<String> {
    let name = to.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let top = name.strip_suffix(".tar.gz").filter(|top| !top.is_empty());
    let top = top.with_context(|| format!("{}: the file name must end in .tar.gz", to.display()))?;
    let around = course::progress::folder(root).join(format!("archive-{}", std::process::id()));
    let staging = around.join(top);
    let made = stage(root, course, &staging, |exercise| starter(root, exercise)).and_then(|count| {
        fs::write(staging.join("README.md"), README)?;
        if extras.vendor {
            vendor::add(&staging)?;
        }
        if extras.autograding {
            fs::create_dir_all(staging.join(WORKFLOWS))?;
            fs::write(staging.join(WORKFLOWS).join("autograding.yml"), autograding(course))?;
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
    let with = if extras.vendor { " and the dependencies" } else { "" };
    Ok(format!("wrote {} files{with} to {}\n", made?, to.display()))
}

/// The folder in which GitHub looks for workflows.
const WORKFLOWS: &str = ".github/workflows";

/// Returns a GitHub workflow that checks all exercises, and has a step for each.
fn autograding(course: &Course) -> String {
    let mut workflow = include_str!("archive/autograding.yml").to_owned();
    for exercise in &course.exercises {
        let id = &exercise.id;
        // Each exercise's step runs even if an earlier exercise is not right.
        let _ = write!(
            workflow,
            "      - name: {id}\n        if: ${{{{ !cancelled() && steps.verify.outcome == 'success' }}}}\n        \
             run: jq --exit-status --raw-output --arg id {id} \"$SHOW\" \"$RESULTS\"\n"
        );
    }
    workflow
}

fn pack(around: &Path, top: &str, file: &Path) -> anyhow::Result<()> {
    let tar = Command::new("tar").arg("-czf").arg(file).arg("-C").args([around, Path::new(top)]).output();
    let tar = tar.context("can't run tar")?;
    ensure!(tar.status.success(), "tar: {}", String::from_utf8_lossy(&tar.stderr).trim());
    Ok(())
}
