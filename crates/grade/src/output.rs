//! The results of a class: a table on the screen, and files for the instructor, the students, and other programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use course::mistakes::{self, Mistake};
use course::replace::replace;
use course::results::{Class, Outcome, State, Student, VERSION};
use course::scores;
use course::syllabus::Course;
use lab::Score;

use crate::pages;
use crate::ranking::ranking;

/// A failure that several students may have.
pub(crate) struct Common {
    pub(crate) exercise: String,
    pub(crate) check: String,
    /// The first line of the message.
    pub(crate) message: String,
    /// What is wrong, if it is a mistake that the course knows.
    pub(crate) known: Option<String>,
    pub(crate) students: Vec<String>,
}

/// Describes a class that was graded with the course in `root`.
pub(crate) fn class(root: &Path, sandbox: &str, students: Vec<Student>) -> Class {
    let commit = Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(root).output();
    let commit = commit.ok().filter(|output| output.status.success());
    let commit = commit.map(|output| format!(" ({})", String::from_utf8_lossy(&output.stdout).trim()));
    let course = format!("{}{}", VERSION, commit.unwrap_or_default());
    Class { course, tier: "virtual".to_owned(), sandbox: sandbox.to_owned(), students }
}

/// Formats a row for each student.
pub(crate) fn table(class: &Class) -> String {
    let states = [State::Right, State::Wrong, State::Broken, State::Unbegun, State::Missing, State::Refused];
    let width = class.students.iter().map(|student| student.name.chars().count()).max().unwrap_or(0).max(7);
    let mut text = format!("{:width$}", "student");
    for state in &states {
        let _ = write!(text, "  {:>7}", state.word());
    }
    text += "  hints\n";
    for student in &class.students {
        let _ = write!(text, "{:width$}", student.name);
        for &state in &states {
            let _ = write!(text, "  {:>width$}", student.count(state), width = state.word().len().max(7));
        }
        let hints: usize = student.exercises.iter().map(|exercise| exercise.hints).sum();
        let _ = writeln!(text, "  {hints:>5}");
        for exercise in &student.exercises {
            if let (State::Refused | State::Unable, Some(why)) = (exercise.state, &exercise.reason) {
                let why = why.lines().next().unwrap_or_default();
                let _ = writeln!(text, "  {} {}: {why}", exercise.id, exercise.state.word());
            }
        }
    }
    for (id, ranked) in ranking(class) {
        let rows: Vec<(String, Score)> =
            ranked.iter().map(|one| (format!("{}. {}", one.place, one.student), one.score.clone())).collect();
        let _ = write!(text, "\n{}", scores::table(id, &rows));
        if let Some(first) = ranked.first() {
            let _ = writeln!(text, "Times are {}.", first.score.times);
        }
    }
    text
}

/// Returns the failures, the most common first.
pub(crate) fn common(class: &Class, known: &[Mistake]) -> Vec<Common> {
    let mut all: BTreeMap<(&str, &str, String), Common> = BTreeMap::new();
    for student in &class.students {
        for exercise in &student.exercises {
            // The first failure of an answer is its cause, as far as the checks can tell.
            let Some(failed) = exercise.checks.iter().find(|check| check.outcome == Outcome::Failed) else {
                continue;
            };
            let line = failed.message.lines().next().unwrap_or_default().to_owned();
            let is_it = |mistake: &&Mistake| {
                mistake.patch.exercise == exercise.id
                    && mistake.fails == failed.name
                    && !mistake.says.is_empty()
                    && mistake.says.iter().all(|says| failed.message.contains(says))
            };
            let entry = all.entry((&exercise.id, &failed.name, line.clone())).or_insert_with(|| Common {
                exercise: exercise.id.clone(),
                check: failed.name.clone(),
                message: line,
                known: known.iter().find(is_it).map(|mistake| mistake.what.clone()),
                students: Vec::new(),
            });
            entry.students.push(student.name.clone());
        }
    }
    let mut all: Vec<Common> = all.into_values().collect();
    all.sort_by_key(|common| std::cmp::Reverse(common.students.len()));
    all
}

/// Writes all files.
///
/// # Errors
/// Fails if one can't be written.
pub(crate) fn write(root: &Path, course: &Course, class: &Class, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to).with_context(|| format!("can't create {}", to.display()))?;
    let known = mistakes::read(root)?;
    replace(&to.join("grades.json"), serde_json::to_string_pretty(class)? + "\n")?;
    replace(&to.join("grades.csv"), csv(course, class)?)?;
    replace(&to.join("index.html"), pages::instructor(course, class, &common(class, &known)))?;
    for student in &class.students {
        replace(&to.join(pages::file(&student.name)), pages::student(course, class, student))?;
    }
    Ok(())
}

/// Formats the class as a table: a row for each student, a column for each exercise.
fn csv(course: &Course, class: &Class) -> anyhow::Result<Vec<u8>> {
    let mut table = csv::Writer::from_writer(Vec::new());
    let ids: Vec<&str> = course
        .exercises
        .iter()
        .map(|exercise| exercise.id.as_str())
        .filter(|id| {
            class.students.iter().flat_map(|student| &student.exercises).any(|graded| graded.id == *id)
        })
        .collect();
    let ranking = ranking(class);
    let scored: Vec<String> = ranking.keys().map(|id| format!("{id} of bound")).collect();
    let head = ["student", "right", "of", "hints"].into_iter().chain(ids.iter().copied());
    table.write_record(head.chain(scored.iter().map(String::as_str)))?;
    for student in &class.students {
        let hints: usize = student.exercises.iter().map(|exercise| exercise.hints).sum();
        let mut row = vec![
            student.name.clone(),
            student.count(State::Right).to_string(),
            student.exercises.len().to_string(),
            hints.to_string(),
        ];
        for id in &ids {
            let graded = student.exercises.iter().find(|graded| graded.id == *id);
            row.push(graded.map_or("", |graded| graded.state.word()).to_owned());
        }
        for ranked in ranking.values() {
            let own = ranked.iter().find(|one| one.student == student.name);
            row.push(own.map_or_else(String::new, |own| format!("{:.3}", own.score.ratio())));
        }
        table.write_record(row)?;
    }
    table.into_inner().map_err(|error| anyhow::anyhow!("can't make the table: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use course::results::{Check, Line};

    fn graded(state: State, message: &str) -> Line {
        let checks = vec![Check {
            name: "devices::one".to_owned(),
            outcome: if message.is_empty() { Outcome::Passed } else { Outcome::Failed },
            message: message.to_owned(),
            seconds: Some(0.5),
        }];
        let id = "init/devices".to_owned();
        Line {
            id,
            state,
            reason: Some("why it is".to_owned()),
            checks,
            hints: 2,
            is_solution: None,
            sha256: None,
            score: None,
        }
    }

    fn class(exercises: &[(&str, Line)]) -> Class {
        let students = exercises.iter().map(|(name, graded)| Student {
            name: (*name).to_owned(),
            exercises: vec![graded.clone()],
            unused: Vec::new(),
        });
        super::class(Path::new("/"), "bubblewrap", students.collect())
    }

    #[test]
    fn the_table_has_a_row_for_each_student_and_a_line_for_each_refusal() {
        let class =
            class(&[("ann", graded(State::Right, "")), ("bartholomew", graded(State::Refused, "no"))]);
        let text = table(&class);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(
            lines,
            [
                "student        right    wrong   broken  unbegun  missing  refused  hints",
                "ann                1        0        0        0        0        0      2",
                "bartholomew        0        0        0        0        0        1      2",
                "  init/devices refused: why it is",
            ]
        );
    }

    /// Returns a right answer with a score.
    fn scored(microseconds: f64) -> Line {
        let times = "modeled for a node".to_owned();
        let score = Score { ranks: 4, microseconds, bound: 500.0, sent: Some(1000), memory: 2000, times };
        Line { score: Some(score), ..graded(State::Right, "") }
    }

    #[test]
    fn right_answers_with_a_score_are_ranked() {
        let class = class(&[
            ("ann", scored(1000.0)),
            ("bob", scored(600.0)),
            ("cy", graded(State::Wrong, "the sum is 3")),
        ]);
        let text = table(&class);
        let ranked = "\ninit/devices       step  of bound         sent       memory\n\
            1. bob         0.600 ms    1.20 ×       1.0 KB       2.0 KB\n\
            2. ann         1.000 ms    2.00 ×       1.0 KB       2.0 KB\n\
            Times are modeled for a node.\n";
        assert!(text.ends_with(ranked), "{text}");

        let course = Course::read(&course::syllabus::root().unwrap()).unwrap();
        let rows = String::from_utf8(csv(&course, &class).unwrap()).unwrap();
        let ends: Vec<&str> = rows.lines().filter_map(|row| row.rsplit(',').next()).collect();
        assert_eq!(ends, ["init/devices of bound", "2.000", "1.200", ""]);
        let page = pages::instructor(&course, &class, &[]);
        let place =
            |name: &str| page.find(&format!("student-{name}.html\">{name}</a></td><td class=\"number\">"));
        let scores = page.find("Scores: init/devices").expect("the page has the scores");
        let after = |name: &str| page[scores..].find(&format!(">{name}</a>"));
        assert!(after("bob") < after("ann") && after("cy").is_none(), "{page}");
        assert!(place("bob").is_some() && page.contains("Times are modeled for a node."), "{page}");
    }

    #[test]
    fn equal_failures_are_counted_together() {
        let class = class(&[
            ("ann", graded(State::Wrong, "the sum is 3\nelement 1")),
            ("bob", graded(State::Wrong, "the sum is 4")),
            ("cy", graded(State::Wrong, "the sum is 4\nelement 7")),
        ]);
        let common = common(&class, &[]);
        assert_eq!(common.len(), 2);
        assert_eq!(
            (common[0].message.as_str(), common[0].students.join(" ")),
            ("the sum is 4", "bob cy".to_owned())
        );
    }
}
