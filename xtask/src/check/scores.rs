//! `cargo xtask scores`: measures the scores of the course's own designs, on the virtual GPU.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use clap::Args;
use course::alternatives;
use course::checks::score_in;
use course::replace::replace;
use course::scores::{self, Design, Score, Scores};
use course::syllabus::{Course, Exercise};

use super::built::{Built, Test};
use super::scratch::Scratch;
use super::target;
use super::variants::{self, Variant, answer_name};

/// The name of the solution among the designs.
const SOLUTION: &str = "solution";

/// Options of `cargo xtask scores`.
#[derive(Args)]
pub(crate) struct Options {
    /// Write nothing; fail if a recorded score differs
    #[arg(long)]
    check: bool,
}

/// Measures the solution and the alternatives of each exercise that has a file for scores, and then either compares the
/// scores with the file or writes it.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let course = Course::read(root)?;
    let mut count = 0;
    for exercise in course.exercises.iter().filter(|exercise| root.join(scores::file(exercise)).is_file()) {
        let (path, designs) = (scores::file(exercise), measure(root, &course, exercise)?);
        count += designs.len();
        let text = scores::text(&designs)?;
        let found = fs::read_to_string(root.join(&path)).unwrap_or_default();
        if options.check {
            ensure!(found == text, "{} is not up to date; run `cargo xtask scores`", path.display());
        } else if found != text {
            replace(&root.join(&path), text)?;
            println!("scores: wrote {}", path.display());
        }
    }
    ensure!(count > 0, "no exercise has a file for scores, such as tests/06_scale/capstone.scores.json");
    println!("scores: {count} designs");
    Ok(())
}

/// Returns the problem with the recorded scores, if there is one.
pub(super) fn problems(root: &Path) -> Vec<String> {
    run(root, &Options { check: true }).err().map(|error| format!("{error:#}")).into_iter().collect()
}

/// Returns the designs of an exercise, the best first.
fn measure(root: &Path, course: &Course, exercise: &Exercise) -> anyhow::Result<Vec<Design>> {
    let mut alternatives = alternatives::read(root)?;
    alternatives.retain(|alternative| alternative.patch.exercise == exercise.id);
    let applied =
        variants::of_answers(root, course, &alternatives, |alternative| &alternative.patch, |_| None)?;
    ensure!(applied.problems.is_empty(), "{}", applied.problems.join("\n"));
    let file = root.join("solutions").join(&exercise.file);
    let source = fs::read_to_string(&file).with_context(|| format!("can't read {}", file.display()))?;
    let (id, name) = (exercise.id.clone(), format!("{SOLUTION}_{}", exercise.id.replace('/', "_")));
    let solution = Variant { exercise: id, name: name.clone(), source, check: None };
    let mut names = vec![(SOLUTION.to_owned(), name)];
    names.extend(applied.answers.iter().map(|answer| {
        let patch = &answer.patch;
        (patch.name.replace('_', " "), answer_name(patch))
    }));
    let variants = applied.variants.iter().chain([&solution]);
    let built = Scratch::write_variants(root, course, "xtask-scores", variants)?.build()?;
    let mut designs = Vec::new();
    for (name, variant) in names {
        let score = of_variant(root, exercise, &built, &variant).with_context(|| name.clone())?;
        designs.push(Design { name, score });
    }
    designs.sort_by(|one, other| scores::order(&one.score, &other.score));
    Ok(designs)
}

/// Runs the checks of a variant, and returns the score.
fn of_variant(root: &Path, exercise: &Exercise, built: &Built, variant: &str) -> anyhow::Result<Score> {
    let Test { program, folder } = built.tests.get(variant).context("it doesn't compile")?;
    let scores = target(root).join("xtask-scores").join("scores");
    let mut command = Command::new(program);
    command
        .arg(exercise.filter())
        .current_dir(folder)
        .env("LAB_TIER", "virtual")
        .env_remove("RUST_BACKTRACE");
    Scores::keep_in(&scores, &mut command)?;
    let output = command.stdin(Stdio::null()).output().context("can't run the checks")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "a check fails:\n{text}");
    score_in(&scores, exercise).context("no check has a score")
}
