//! The commands that check exercises: run, test, and verify.

use std::path::Path;
use std::process::ExitCode;

use course::checks::{self, Verdict};
use course::progress::read_answer;
use course::syllabus::Exercise;
use serde::{Deserialize, Serialize};

use crate::session::{Session, columns, print, print_exactly};
use crate::under_way::UnderWay;
use crate::verdict_text::{after_success, count, cut, details, drawn, headline, other_failures};
use crate::watch::text::wrapped;

fn exit(is_good: bool) -> ExitCode {
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The maximum number of lines of a failure that `run` shows, because a check may print without end.
const MOST_LINES: usize = 100;

/// The width of a chart if the output does not go to a terminal: the usual width of terminals.
const USUAL_COLUMNS: usize = 80;

/// Checks one exercise.
pub(crate) fn run(session: &mut Session, id: Option<&str>) -> anyhow::Result<ExitCode> {
    let exercise = session.exercise(id)?;
    read_answer(session.root, exercise)?;
    let under_way = UnderWay::new(&exercise.id);
    let verdict = session.check_one(exercise, &mut |check| under_way.running(check));
    drop(under_way);
    let verdict = verdict?;
    let details = details(session.root, exercise, &verdict);
    // Count lines as they will be shown.
    let details = columns().map_or_else(|| details.clone(), |columns| wrapped(&details, columns));
    let mut text = cut(&details, MOST_LINES, &format!(": {}", exercise.test_command()));
    let chart = checks::timeline(session.root, exercise, &verdict);
    let chart = chart.map_or_else(String::new, |chart| drawn(&chart, columns().unwrap_or(USUAL_COLUMNS)));
    let headline = headline(exercise, &verdict);
    let others = other_failures(exercise, &verdict);
    text.push_str(&match verdict.is_right() {
        true => format!("{headline}\n{chart}"),
        false if chart.is_empty() => format!("{others}{headline}\n"),
        false => format!("{chart}{others}\n{headline}\n"),
    });
    if verdict.is_right() {
        text.push_str(&after_success(session, exercise, false)?);
    }
    print(&text)?;
    Ok(exit(verdict.is_right()))
}

/// Checks the exercises in a module, or in the module of the next exercise.
pub(crate) fn test(session: &mut Session, module: Option<&str>) -> anyhow::Result<ExitCode> {
    let module = match module {
        Some(module) => session.course.module(module)?,
        None => session.course.module(session.exercise(None)?.folder())?,
    };
    eprintln!("checking {} …", module.folder);
    let verdicts = session.check_module(module)?;
    show(session.root, &verdicts)?;
    Ok(exit(verdicts.iter().all(|(_, verdict)| verdict.is_right())))
}

/// Prints the details of the first exercise that failed, and then a line for each exercise.
fn show(root: &Path, verdicts: &[(&Exercise, Verdict)]) -> anyhow::Result<()> {
    let told = verdicts
        .iter()
        .map(|(exercise, verdict)| details(root, exercise, verdict) + &other_failures(exercise, verdict));
    let mut text = told.into_iter().find(|told| !told.is_empty()).map_or(String::new(), |told| told + "\n");
    for (exercise, verdict) in verdicts {
        text.push_str(&headline(exercise, verdict));
        text.push('\n');
    }
    print(&text)
}

/// An exercise's state in the output of `verify --json`.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LineState {
    Right,
    Wrong,
    /// Its module doesn't compile.
    Broken,
    /// None of its checks can run.
    Ignored,
}

/// An exercise in the output of `verify --json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line {
    pub(crate) id: String,
    pub(crate) state: LineState,
    passed: usize,
    failed: usize,
    ignored: usize,
    pub(crate) hints: usize,
}

impl Line {
    /// Returns why its state contradicts its numbers of checks, if it does.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let Self { id, state, passed, failed, ignored, .. } = self;
        let why = match state {
            LineState::Right if *failed > 0 => format!("right, although {} failed", count(*failed, "check")),
            LineState::Right if *passed == 0 => "right, although no check passed".to_owned(),
            LineState::Wrong if *failed == 0 => "wrong, although no check failed".to_owned(),
            LineState::Broken if passed + failed + ignored > 0 => {
                "broken, although its checks ran".to_owned()
            }
            LineState::Ignored if passed + failed > 0 => "ignored, although its checks ran".to_owned(),
            _ => return None,
        };
        Some(format!("{id} is {why}"))
    }

    fn of(session: &Session, exercise: &Exercise, verdict: &Verdict) -> Self {
        let (state, counts) = match verdict {
            Verdict::Passed(counts) => (LineState::Right, *counts),
            Verdict::Failed(counts, _) => (LineState::Wrong, *counts),
            Verdict::Broken(_) => (LineState::Broken, Default::default()),
            Verdict::Ignored(counts) => (LineState::Ignored, *counts),
        };
        let hints = session.progress.hints(exercise);
        let id = exercise.id.clone();
        Self { id, state, passed: counts.passed, failed: counts.failed, ignored: counts.ignored, hints }
    }
}

/// Checks all modules in order, up to the first module that is not right.
pub(crate) fn verify(session: &mut Session, keep_going: bool, json: bool) -> anyhow::Result<ExitCode> {
    let mut lines = Vec::new();
    let mut all_right = true;
    for module in &session.course.modules {
        if session.of(module).is_empty() {
            continue;
        }
        if !json {
            eprintln!("checking {} …", module.folder);
        }
        let verdicts = session.check_module(module)?;
        all_right &= verdicts.iter().all(|(_, verdict)| verdict.is_right());
        match json {
            true => {
                lines.extend(verdicts.iter().map(|(exercise, verdict)| Line::of(session, exercise, verdict)))
            }
            false => show(session.root, &verdicts)?,
        }
        if !all_right && !keep_going {
            break;
        }
    }
    if json {
        print_exactly(&format!("{}\n", serde_json::to_string_pretty(&lines)?))?;
    }
    Ok(exit(all_right))
}
