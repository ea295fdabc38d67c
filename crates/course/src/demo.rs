//! `cargo course demo`: a module's program, solved.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use course::checks::cargo;
use course::syllabus::Course;

/// Runs the program of a solved module and passes its exit code on.
pub(crate) fn run(
    root: &Path,
    course: &Course,
    module: &str,
    arguments: &[String],
) -> anyhow::Result<ExitCode> {
    let has_program = |folder: &str| root.join("solutions").join(folder).join("src/main.rs").is_file();
    let module = course.module(module)?;
    let with: Vec<&str> = course
        .modules
        .iter()
        .map(|module| module.folder.as_str())
        .filter(|folder| has_program(folder))
        .collect();
    ensure!(
        has_program(&module.folder),
        "module {} has no program; these have one: {}",
        module.folder,
        if with.is_empty() { "none yet".to_owned() } else { with.join(", ") }
    );
    let status = cargo()
        .args(["run", "--quiet", "--package", &module.solution_package(), "--"])
        .args(arguments)
        .current_dir(root)
        .status()
        .context("can't run cargo")?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
