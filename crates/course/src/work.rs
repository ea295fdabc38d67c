//! The commands that check exercises: run, test, and verify.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anstream::adapter::strip_str;
use course::checks;
use course::progress::read_answer;
use course::results::{Check, Line, Outcome, Results, State, VERSION, sha256};

use lab::tier::tier_for;

use crate::session::{Judged, Session, columns, print, print_exactly};
use crate::under_way::UnderWay;
use crate::verdict_text::{after_success, cut, details, drawn, headline, other_failures};
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
    Ok(exit(verdicts.iter().all(|judged| judged.verdict.is_right())))
}

/// Prints the details of the first exercise that failed, and then a line for each exercise.
fn show(root: &Path, verdicts: &[Judged]) -> anyhow::Result<()> {
    let told = verdicts.iter().map(|Judged { exercise, verdict, .. }| {
        details(root, exercise, verdict) + &other_failures(exercise, verdict)
    });
    let mut text = told.into_iter().find(|told| !told.is_empty()).map_or(String::new(), |told| told + "\n");
    for Judged { exercise, verdict, .. } in verdicts {
        text.push_str(&headline(exercise, verdict));
        text.push('\n');
    }
    print(&text)
}

/// Checks all modules in order, up to the first module that is not right.
pub(crate) fn verify(session: &mut Session, keep_going: bool, json: bool) -> anyhow::Result<ExitCode> {
    let mut judged = Vec::new();
    let mut all_right = true;
    for module in &session.course.modules {
        if session.of(module).is_empty() {
            continue;
        }
        if !json {
            eprintln!("checking {} …", module.folder);
        }
        let verdicts = session.check_module(module)?;
        all_right &= verdicts.iter().all(|judged| judged.verdict.is_right());
        match json {
            true => judged.extend(verdicts),
            false => show(session.root, &verdicts)?,
        }
        if !all_right && !keep_going {
            break;
        }
    }
    if json {
        print_exactly(&format!("{}\n", serde_json::to_string_pretty(&results(session, &judged))?))?;
    }
    Ok(exit(all_right))
}

/// Describes checked exercises for other programs.
fn results(session: &Session, judged: &[Judged]) -> Results {
    let tier = tier_for(2).map_or_else(|_| "none".to_owned(), |tier| tier.to_string());
    let exercises = judged.iter().map(|judged| line(session, judged)).collect();
    Results { course: VERSION.to_owned(), tier, exercises }
}

fn line(session: &Session, Judged { exercise, verdict, checked }: &Judged) -> Line {
    let (state, reason) = match verdict {
        checks::Verdict::Passed(_) => (State::Right, None),
        checks::Verdict::Failed(..) => (State::Wrong, None),
        checks::Verdict::Broken(errors) => (State::Broken, Some(strip_str(&errors.concat()).to_string())),
        checks::Verdict::Ignored(_) => (State::Ignored, None),
    };
    // If the file is missing, the compiler reports it.
    let answer = fs::read(exercise.starter(session.root)).ok();
    Line {
        id: exercise.id.clone(),
        state,
        reason,
        checks: checked.iter().map(check).collect(),
        hints: session.progress.hints(exercise),
        is_solution: None,
        sha256: answer.map(|answer| sha256(&answer)),
        score: None,
    }
}

fn check(checked: &checks::Checked) -> Check {
    let (outcome, message) = match &checked.outcome {
        checks::Outcome::Passed => (Outcome::Passed, ""),
        checks::Outcome::Failed(message) => (Outcome::Failed, message.as_str()),
        checks::Outcome::Ignored => (Outcome::Ignored, ""),
        checks::Outcome::Skipped => (Outcome::Skipped, ""),
    };
    Check { name: checked.name.clone(), outcome, message: strip_str(message).to_string(), seconds: None }
}
