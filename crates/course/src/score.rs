//! `cargo course score`: the score of a student's design, next to those of the course's own designs.

use std::process::ExitCode;

use anyhow::{Context, bail};
use course::checks;
use course::progress::read_answer;
use course::scores::{self, Design};
use course::syllabus::Exercise;
use lab::Score;

use crate::session::{Session, print, print_exactly};
use crate::under_way::UnderWay;
use crate::verdict_text::{details, headline};

/// Checks an exercise that has a score, and shows the score if the answer is right.
pub(crate) fn run(session: &mut Session, id: Option<&str>) -> anyhow::Result<ExitCode> {
    let (exercise, designs) = with_score(session, id)?;
    read_answer(session.root, exercise)?;
    let under_way = UnderWay::new(&exercise.id);
    let verdict = session.check_one(exercise, &mut |check| under_way.running(check));
    drop(under_way);
    let verdict = verdict?;
    if !verdict.is_right() {
        let details = details(session.root, exercise, &verdict);
        print(&format!("{details}{}\nonly a right answer has a score\n", headline(exercise, &verdict)))?;
        return Ok(ExitCode::FAILURE);
    }
    let score = checks::score(session.root, exercise)
        .with_context(|| format!("{} is right, but no check could measure its score here", exercise.id))?;
    print_exactly(&shown(exercise, &score, &designs))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the exercise and the scores of the course's designs for it.
fn with_score<'a>(session: &Session<'a>, id: Option<&str>) -> anyhow::Result<(&'a Exercise, Vec<Design>)> {
    if let Some(id) = id {
        let exercise = session.course.exercise(id)?;
        let Some(designs) = scores::read(session.root, exercise)? else {
            bail!("{} has no score; without an exercise, this command finds the one that has", exercise.id);
        };
        return Ok((exercise, designs));
    }
    for exercise in &session.course.exercises {
        if let Some(designs) = scores::read(session.root, exercise)? {
            return Ok((exercise, designs));
        }
    }
    bail!("no exercise of this course has a score")
}

/// Formats the student's score among those of the designs, the best first.
fn shown(exercise: &Exercise, own: &Score, designs: &[Design]) -> String {
    let mut rows = vec![("yours".to_owned(), own.clone())];
    rows.extend(designs.iter().map(|design| (design.name.clone(), design.score.clone())));
    rows.sort_by(|(_, one), (_, other)| scores::order(one, other));
    let mut text = format!("{} on {} GPUs\n\n{}\n", exercise.id, own.ranks, scores::table("design", &rows));
    text += &format!("step      the time of one step; the bound is {:.3} ms\n", own.bound / 1e3);
    text += "sent      the most that a rank sends in a step\n";
    text += "memory    the most that a GPU has in use at the same time\n";
    match designs.iter().find(|design| design.score.times != own.times) {
        None => text += &format!("Times are {}.\n", own.times),
        Some(other) => {
            let theirs = &other.score.times;
            text += &format!(
                "Your times are {}; the other designs' are {theirs}, so they can't be compared.\n",
                own.times
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use course::syllabus::Course;

    use super::*;

    fn score(microseconds: f64, times: &str) -> Score {
        Score { ranks: 4, microseconds, bound: 500.0, sent: Some(1), memory: 2, times: times.to_owned() }
    }

    #[test]
    fn measured_and_modeled_times_are_told_apart() {
        let root = course::syllabus::root().unwrap();
        let course = Course::read(&root).unwrap();
        let exercise = course.exercise("scale/capstone").unwrap();
        let designs = [Design { name: "solution".to_owned(), score: score(600.0, "modeled for a node") }];
        let text = shown(exercise, &score(700.0, "modeled for a node"), &designs);
        assert!(text.ends_with("Times are modeled for a node.\n"), "{text}");
        assert!(text.find("solution").unwrap() < text.find("yours").unwrap(), "{text}");
        let text = shown(exercise, &score(550.0, "measured on a GPU"), &designs);
        assert!(text.find("yours").unwrap() < text.find("solution").unwrap(), "{text}");
        let note = "Your times are measured on a GPU; the other designs' are modeled for a node, so they can't be compared.\n";
        assert!(text.ends_with(note), "{text}");
    }
}
