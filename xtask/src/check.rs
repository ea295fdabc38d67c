//! `cargo xtask check`: checks that course.toml, solutions, starters, mistakes, deletions, and kernels are consistent.

mod built;
mod complete;
mod deletions;
mod examples;
mod features;
mod member;
pub(crate) mod mutants;
mod problems;
mod program;
mod scratch;
pub(crate) mod sessions;
mod test_output;
mod triage;
mod variants;
mod verdicts;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use course::syllabus::Course;
use course::{alternatives, mistakes};

use crate::{kernels, lessons, starters};
use problems::Problems;
use scratch::Scratch;

/// Options of `cargo xtask check`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only look at the files, which takes seconds: nothing is built and no check runs
    #[arg(long)]
    quick: bool,
}

/// Runs every check, and fails if any of them finds problems.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    // Read everything first, because an unreadable file is an error, not a problem.
    let course = Course::read(root)?;
    let mistakes = mistakes::read(root)?;
    let alternatives = alternatives::read(root)?;
    let deletions = deletions::read(root, &course);
    let starters = starters::starters(root)?;
    ensure!(!course.exercises.is_empty(), "course.toml lists no exercises");

    let mut problems = Problems::default();
    problems.point("course.toml matches the files", || Ok(listed(root, &course, &starters)))?;
    problems.point("every exercise is complete", || {
        Ok(complete::problems(root, &course, &mistakes, &alternatives))
    })?;
    problems.point("starters are up to date with solutions", || {
        let differences = starters::differences(root)?;
        Ok(differences.iter().map(|one| format!("{}: run `cargo xtask starters`", one.describe())).collect())
    })?;
    let wrong = variants::of_answers(root, &course, &mistakes, |mistake| &mistake.patch)?;
    let right = variants::of_answers(root, &course, &alternatives, |alternative| &alternative.patch)?;
    problems.point("mistakes and alternatives apply to their solutions", || {
        Ok([wrong.problems, right.problems].concat())
    })?;
    let mut variants = wrong.variants;
    variants.extend(right.variants);
    problems.point("lessons: form, introduced calls, and no answers given away", || {
        // A lesson that is missing has been named above, so it is only a problem here.
        lessons::problems(root, &course).or_else(|error| Ok(vec![format!("{error:#}")]))
    })?;
    problems
        .point("the triage page quotes messages that students see", || triage::problems(root, &mistakes))?;
    problems.point("deletions of synchronizing calls are recorded", || {
        Ok(deletions.as_ref().err().map(|error| format!("{error:#}")).into_iter().collect())
    })?;
    if options.quick {
        return problems.finish();
    }
    let deletions = deletions?;
    variants.extend(variants::of_deletions(&deletions));
    problems.point("every package builds the virtual GPU with the same features", || {
        features::differences(root)
    })?;
    problems.point("solutions: format, clippy, checks", || solutions(root, &course))?;
    let scratch = Scratch::write(root, &course, &starters, &variants)?;
    let built = scratch.build()?;
    let title = format!("{} starters fail at their own todo!", course.exercises.len());
    problems.point(&title, || built.check_starters(&course))?;
    let title = format!("{} mistakes fail with the words they list", wrong.answers.len());
    problems.point(&title, || built.check_mistakes(&course, &wrong.answers))?;
    let title = format!("{} right answers in other forms pass", right.answers.len());
    problems.point(&title, || built.check_alternatives(&course, &right.answers))?;
    let title = format!("{} deletions of synchronizing calls have the recorded effect", deletions.len());
    problems.point(&title, || built.check_deletions(&course, &deletions))?;
    problems.point("the screens that students see in `cargo course watch`", || sessions::check(root))?;
    match kernels::require_compiler() {
        Ok(()) => {
            problems.point("kernels/*.ptx matches what kernels/*.cu compiles to", || {
                let own = std::env::current_exe().context("can't find this executable")?;
                command(Command::new(own).args(["kernels", "--check"]).current_dir(root))
            })?;
            problems.point("cudarc's own examples run", || examples::check(root, &built.folder))?;
        }
        Err(reason) => {
            println!("skipped: kernels/*.ptx is not compared with kernels/*.cu: {reason:#}");
            println!("skipped: cudarc's own examples, which compile kernels when they run");
        }
    }
    problems.finish()
}

/// Compares the exercises listed in course.toml with the files in the folders.
fn listed(root: &Path, course: &Course, starters: &starters::Starters) -> Vec<String> {
    let mut problems: Vec<String> = course
        .problems(|path| root.join(path).is_file())
        .into_iter()
        .map(|problem| format!("course.toml: {problem}"))
        .collect();
    for path in starters.keys().filter(|path| path.extension().is_some_and(|extension| extension == "rs")) {
        let source = std::fs::read_to_string(root.join("solutions").join(path)).unwrap_or_default();
        let listed = course.exercises.iter().any(|exercise| Path::new(&exercise.file) == path);
        let regions = course::starter::regions(&source);
        if regions > 0 && !listed {
            problems.push(format!(
                "solutions/{} has {regions} regions, but course.toml doesn't list it",
                path.display()
            ));
        }
        if regions == 0 && listed {
            problems.push(format!(
                "solutions/{} is an exercise, but has no `// ANCHOR: name` region",
                path.display()
            ));
        }
    }
    problems
}

/// Checks the solutions' formatting, runs Clippy on them, and runs their tests.
fn solutions(root: &Path, course: &Course) -> anyhow::Result<Vec<String>> {
    let packages: Vec<String> =
        course.modules.iter().flat_map(|module| ["-p".to_owned(), module.solution_package()]).collect();
    let mut problems = Vec::new();
    for arguments in [&["fmt", "--check"][..], &["clippy", "-q", "--all-targets"], &["test", "-q"]] {
        let mut cargo = cargo(root);
        cargo.args(arguments).args(&packages);
        if arguments[0] == "clippy" {
            cargo.args(["--", "-D", "warnings"]);
        }
        problems.extend(command(&mut cargo)?);
    }
    Ok(problems)
}

/// Returns the Cargo command that runs this program.
fn cargo(folder: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(folder);
    cargo
}

/// Runs a command to completion. If it fails, returns its output as the problem.
fn command(command: &mut Command) -> anyhow::Result<Vec<String>> {
    let output = command.output().with_context(|| format!("can't run {command:?}"))?;
    if output.status.success() {
        return Ok(Vec::new());
    }
    let words: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy()).collect();
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Ok(vec![format!("{program} {} fails:\n{stdout}{stderr}", words.join(" "))])
}

/// Returns the folder that Cargo builds this workspace in.
fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |target| root.join(target))
}
