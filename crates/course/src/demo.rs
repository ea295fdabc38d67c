//! `cargo course demo`: runs a module's solved program.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use course::answers::has_solutions;
use course::checks::cargo;
use course::progress::State;
use course::results::count;
use course::syllabus::{Exercise, Module};

use crate::session::Session;

/// Runs a module's program and returns its exit code. The program is the solved one, or the student's if there are no
/// solutions.
pub(crate) fn run(session: &Session, module: &str, arguments: &[String]) -> anyhow::Result<ExitCode> {
    let (root, course) = (session.root, session.course);
    let is_solved = has_solutions(root);
    let has_program = |module: &Module| module.program(root).is_file();
    let module = course.module(module)?;
    let with: Vec<&str> = course
        .modules
        .iter()
        .filter(|module| has_program(module))
        .map(|module| module.folder.as_str())
        .collect();
    ensure!(
        has_program(module),
        "module {} has no program; these have one: {}",
        module.folder,
        if with.is_empty() { "none yet".to_owned() } else { with.join(", ") }
    );
    let package = if is_solved { module.solution_package() } else { module.starter_package() };
    if !is_solved {
        ensure_finished(session, module)?;
        eprintln!("this copy of the course has no solutions, so this runs your own program, {package}");
    }
    // During a long first build, a person in front of a terminal should see progress.
    let quiet = if std::io::stderr().is_terminal() { None } else { Some("--quiet") };
    let status = cargo()
        .arg("run")
        .args(quiet)
        .args(["--package", &package, "--"])
        .args(arguments)
        .current_dir(root)
        .status()
        .context("can't run cargo")?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Fails if an exercise that the student's own program may use still has a `todo!`, where the program would panic.
fn ensure_finished(session: &Session, module: &Module) -> anyhow::Result<()> {
    let earlier = session.course.modules.iter().take_while(|other| other.folder != module.folder);
    let mut open: Vec<&Exercise> = Vec::new();
    for exercise in earlier.chain([module]).flat_map(|module| session.of(module)) {
        if matches!(session.state(exercise)?, State::Open(_)) {
            open.push(exercise);
        }
    }
    let Some(first) = open.first() else { return Ok(()) };
    bail!(
        "this copy of the course has no solutions, so this would run your own program, which needs every exercise up to \
         this module, and {} {} still to do\n\
         what the solved program prints: modules/{}/README.md\n\
         the first exercise to do: cargo course run {}",
        count(open.len(), "exercise"),
        if open.len() == 1 { "is" } else { "are" },
        module.folder,
        first.id
    )
}
