//! `cargo xtask check`: checks that course.toml, solutions, starters, mistakes, deletions, and kernels are consistent.

mod built;
mod complete;
mod deletions;
mod examples;
mod features;
mod member;
pub(crate) mod mutants;
mod names;
mod only;
mod problems;
mod program;
pub(crate) mod scores;
mod scratch;
pub(crate) mod sessions;
mod sources;
mod test_output;
mod triage;
mod variants;
mod verdicts;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, anyhow, ensure};
use course::alternatives::{self, Alternative};
use course::mistakes::{self, Mistake};
use course::syllabus::{Course, Exercise};

use crate::starters::{Made, Starters};
use crate::{kernels, lessons, starters};
use built::Built;
pub(crate) use built::map_in_parallel;
use deletions::Deletion;
use names::CheckSources;
use problems::Problems;
use scratch::Scratch;
use variants::Variant;

/// Options of `cargo xtask check`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The exercise whose answers to check, such as init/devices; by default, everything is checked
    exercise: Option<String>,
    /// Only look at the files, which takes seconds: nothing is built and no check runs
    #[arg(long, conflicts_with = "exercise")]
    quick: bool,
    /// Leave out the format, Clippy, and the checks of the solutions, because they have just passed
    #[arg(long, conflicts_with = "exercise")]
    solutions_passed: bool,
}

/// What to build and check, of one exercise or of all.
struct Answers<'a> {
    exercises: Vec<&'a Exercise>,
    wrong: Vec<&'a Mistake>,
    right: Vec<&'a Alternative>,
    deletions: Vec<Deletion>,
    /// Everything above, ready to be built.
    variants: Vec<Variant>,
}

/// Runs every check, and fails if any of them finds problems.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let course = Course::read(root)?;
    ensure!(!course.exercises.is_empty(), "course.toml lists no exercises");
    let only = options.exercise.as_deref().map(|id| course.exercise(id)).transpose()?;
    let (mistakes, broken_mistakes) = readable(mistakes::read_each(root)?);
    let (alternatives, broken_alternatives) = readable(alternatives::read_each(root)?);
    let sources = CheckSources::read(root, &course)?;
    let (deletions, deletion_problems) = deletions::read(root, &course, &sources)?;
    let made = starters::make_all(root)?;
    let wrong = variants::of_answers(
        root,
        &course,
        &mistakes,
        |mistake| &mistake.patch,
        |mistake| Some(mistake.fails.as_str()),
    )?;
    let right =
        variants::of_answers(root, &course, &alternatives, |alternative| &alternative.patch, |_| None)?;

    let mut problems = Problems::default();
    problems.point("course.toml matches the files", || Ok(listed(root, &course, &made)));
    problems.point("every exercise is complete", || {
        Ok(complete::problems(root, &course, &mistakes, &alternatives, &sources))
    });
    problems.point("starters are up to date with solutions", || {
        let differences = starters::differences(root, &made)?;
        let stale = differences.iter().map(|one| format!("{}: run `cargo xtask starters`", one.describe()));
        Ok(made.broken.values().cloned().chain(stale).collect())
    });
    problems.point("mistakes and alternatives apply to their solutions, and name a check", || {
        let named = wrong.answers.iter().flat_map(|mistake| recorded(&course, &sources, mistake)).collect();
        let broken = [broken_mistakes, broken_alternatives].concat();
        Ok([broken, wrong.problems.clone(), right.problems.clone(), named].concat())
    });
    problems.point("lessons: form, introduced calls, and no answers given away", || {
        lessons::problems(root, &course)
    });
    problems.point("the triage page quotes messages that students see", || triage::problems(root, &mistakes));
    problems.point("deletions of synchronizing calls are recorded", || Ok(deletion_problems));
    // Without all starters, there is nothing to build.
    if options.quick || !made.broken.is_empty() {
        return problems.finish();
    }
    let is_asked = |id: &str| only.is_none_or(|only| only.id == id);
    let deletions: Vec<Deletion> =
        deletions.into_iter().filter(|deletion| is_asked(&deletion.exercise)).collect();
    let known = wrong.variants.into_iter().chain(right.variants);
    let variants = known.filter(|variant| is_asked(&variant.exercise));
    let variants = variants.chain(variants::of_deletions(&deletions)).collect();
    let is_right = |alternative: &&Alternative| is_asked(&alternative.patch.exercise);
    let answers = Answers {
        exercises: course.exercises.iter().filter(|exercise| is_asked(&exercise.id)).collect(),
        wrong: wrong.answers.into_iter().filter(|mistake| is_asked(&mistake.patch.exercise)).collect(),
        right: right.answers.into_iter().filter(is_right).collect(),
        deletions,
        variants,
    };
    match only {
        Some(only) => one_exercise(root, &course, only, &answers, &made.starters, &mut problems)?,
        None => everything(root, &course, options, &answers, &made.starters, &mut problems)?,
    }
    problems.finish()
}

/// Sorts what was read from what could not be read.
fn readable<T>(all: Vec<anyhow::Result<T>>) -> (Vec<T>, Vec<String>) {
    let (mut good, mut broken) = (Vec::new(), Vec::new());
    for one in all {
        match one {
            Ok(one) => good.push(one),
            Err(error) => broken.push(format!("{error:#}")),
        }
    }
    (good, broken)
}

/// Returns what is wrong with the check and the words that a mistake lists.
fn recorded(course: &Course, sources: &CheckSources, mistake: &Mistake) -> Vec<String> {
    // A mistake without an exercise is not applied, so it is not here.
    let Ok(exercise) = course.exercise(&mistake.patch.exercise) else { return Vec::new() };
    let problems = sources.recorded(exercise, &mistake.fails, &mistake.says);
    problems.into_iter().map(|problem| format!("{}: {problem}", mistake.patch.path())).collect()
}

/// Builds and checks what belongs to one exercise.
fn one_exercise(
    root: &Path,
    course: &Course,
    exercise: &Exercise,
    answers: &Answers<'_>,
    starters: &Starters,
    problems: &mut Problems,
) -> anyhow::Result<()> {
    let package = format!("s{}", exercise.folder());
    problems.point("its solution: format, clippy, checks", || {
        solutions(root, &["-p".to_owned(), package], Some(&exercise.filter()))
    });
    let in_module = starters.iter().filter(|(path, _)| member::folder_of(path) == exercise.folder());
    let starters = in_module.map(|(path, text)| (path.clone(), text.clone())).collect();
    let built = Scratch::write_one(root, course, &starters, &answers.variants)?.build()?;
    built_answers(course, answers, &built, problems);
    Ok(())
}

/// Builds and checks everything.
fn everything(
    root: &Path,
    course: &Course,
    options: &Options,
    answers: &Answers<'_>,
    starters: &Starters,
    problems: &mut Problems,
) -> anyhow::Result<()> {
    problems
        .point("every package builds the virtual GPU with the same features", || features::differences(root));
    let packages = course.modules.iter().flat_map(|module| ["-p".to_owned(), module.solution_package()]);
    let packages: Vec<String> = packages.collect();
    if !options.solutions_passed {
        problems.point("solutions: format, clippy, checks", || solutions(root, &packages, None));
    }
    let built = Scratch::write(root, course, starters, &answers.variants)?.build()?;
    std::thread::scope(|scope| {
        // The simulated students wait for one thing at a time, so the other checks need not wait for them.
        let screens = scope.spawn(|| sessions::check(root));
        built_answers(course, answers, &built, problems);
        problems.point("the screens that students see in `cargo course watch`, beside the others", || {
            screens.join().map_err(|_| anyhow!("their check panicked"))?
        });
    });
    problems.point("the incidents of scale/postmortem are those that the virtual GPU records", || {
        command(cargo(root).args(["run", "--quiet", "--package", "incidents", "--", "--check"]))
    });
    problems.point("the recorded scores of designs are up to date", || Ok(scores::problems(root)));
    match kernels::require_compiler() {
        Ok(()) => {
            problems.point("kernels/*.ptx matches what kernels/*.cu compiles to", || {
                let own = std::env::current_exe().context("can't find this executable")?;
                command(Command::new(own).args(["kernels", "--check"]).current_dir(root))
            });
            problems.point("cudarc's own examples run", || examples::check(root, &built.folder));
        }
        Err(reason) => {
            println!("skipped: kernels/*.ptx is not compared with kernels/*.cu: {reason:#}");
            println!("skipped: cudarc's own examples, which compile kernels when they run");
        }
    }
    Ok(())
}

/// Runs the checks on the starters, the known answers, and the deletions.
fn built_answers(course: &Course, answers: &Answers<'_>, built: &Built, problems: &mut Problems) {
    let Answers { exercises, wrong, right, deletions, .. } = answers;
    problems.point(&format!("starters that fail at their own todo!: {}", exercises.len()), || {
        built.check_starters(exercises)
    });
    problems.point(&format!("mistakes that fail with the words they list: {}", wrong.len()), || {
        built.check_mistakes(wrong)
    });
    problems.point(&format!("right answers in other forms that pass: {}", right.len()), || {
        built.check_alternatives(course, right)
    });
    problems.point(&format!("deletions that have the recorded effect: {}", deletions.len()), || {
        built.check_deletions(course, deletions)
    });
}

/// Compares the exercises listed in course.toml with the files in the folders.
fn listed(root: &Path, course: &Course, made: &Made) -> Vec<String> {
    let mut problems: Vec<String> = course
        .problems(|path| root.join(path).is_file())
        .into_iter()
        .map(|problem| format!("course.toml: {problem}"))
        .collect();
    let solutions = made.starters.keys().chain(made.broken.keys());
    for path in solutions.filter(|path| path.extension().is_some_and(|extension| extension == "rs")) {
        let source = std::fs::read_to_string(root.join("solutions").join(path)).unwrap_or_default();
        let listed = course.exercises.iter().any(|exercise| Path::new(&exercise.file) == path);
        let regions = course::starter::regions(&source);
        if regions > 0 && !listed {
            problems.push(format!(
                "solutions/{} has regions with answers, but course.toml doesn't list it",
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

/// Checks the formatting of these packages, runs Clippy on them, and runs their tests whose names match the filter.
fn solutions(root: &Path, packages: &[String], filter: Option<&str>) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    for arguments in [&["fmt", "--check"][..], &["clippy", "-q", "--all-targets"], &["test", "-q"]] {
        let mut cargo = cargo(root);
        cargo.args(arguments).args(packages);
        match arguments[0] {
            "clippy" => cargo.args(["--", "-D", "warnings"]),
            "test" => cargo.args(filter),
            _ => &mut cargo,
        };
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
pub(crate) fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |target| root.join(target))
}
