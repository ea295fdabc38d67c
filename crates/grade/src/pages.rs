//! The pages of a class: one for the instructor, and one for each student.

use course::results::{Class, Line, Outcome, State, Student};
use course::scores::figures;
use course::syllabus::Course;
use maud::{DOCTYPE, Markup, html};

use crate::output::Common;
use crate::ranking::ranking;

const STYLE: &str = "\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid #ccc; padding: .25rem .6rem; text-align: left; vertical-align: top; }
td.number { text-align: right; }
pre { background: #f5f5f5; padding: .8rem; overflow-x: auto; font-size: 14px; }
.right { color: #116329; } .wrong, .broken, .refused { color: #a40e26; } .unbegun, .missing, .ignored { color: #666; }
";

/// The name of a student's page.
pub(crate) fn file(name: &str) -> String {
    format!("student-{name}.html")
}

fn page(title: &str, class: &Class, body: &Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (maud::PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                (body)
                hr;
                p {
                    "ncclings " (class.course) ", graded on the " (class.tier) " tier, sandbox: " (class.sandbox)
                    ". Hints are counted by the student's own copy of the course."
                }
            }
        }
    }
    .into_string()
}

fn state(state: State) -> Markup {
    let class = if state == State::Unable { "wrong" } else { state.word() };
    html! { span class=(class) { (state.word()) } }
}

/// The instructor's page.
pub(crate) fn instructor(course: &Course, class: &Class, common: &[Common]) -> String {
    let body = html! {
        h2 { "Students" }
        table {
            tr {
                th { "student" } th { "right" } th { "of" } th { "hints" }
                @for module in &course.modules { th { (module.folder) } }
                th { "refused or not judged" }
            }
            @for student in &class.students {
                tr {
                    td { a href=(file(&student.name)) { (student.name) } }
                    td.number { (student.count(State::Right)) }
                    td.number { (student.exercises.len()) }
                    td.number { (student.exercises.iter().map(|exercise| exercise.hints).sum::<usize>()) }
                    @for module in &course.modules { td.number { (share(course, &module.folder, student)) } }
                    td {
                        @for exercise in &student.exercises {
                            @if let (State::Refused | State::Unable, Some(why)) = (exercise.state, &exercise.reason) {
                                (exercise.id) ": " (why.lines().next().unwrap_or_default()) br;
                            }
                        }
                    }
                }
            }
        }
        @for (id, ranked) in ranking(class) {
            h2 { "Scores: " (id) }
            @if let Some(first) = ranked.first() { p { "On " (first.score.ranks) " GPUs. Times are " (first.score.times) "." } }
            table {
                tr {
                    th { "place" } th { "student" } th { "time of a step" } th { "of the bound" } th { "sent per rank" }
                    th { "memory of a GPU" }
                }
                @for one in &ranked {
                    tr {
                        td.number { (one.place) }
                        td { a href=(file(one.student)) { (one.student) } @if one.is_solution { " (the course's own solution)" } }
                        @for figure in figures(one.score) { td.number { (figure) } }
                    }
                }
            }
        }
        h2 { "Common mistakes" }
        p { "For each answer, the first check that failed. Where the course knows the mistake, its name follows." }
        table {
            tr { th { "students" } th { "exercise" } th { "the check, and what it says" } }
            @for common in common {
                tr {
                    td { (common.students.len()) ": " (common.students.join(", ")) }
                    td { (common.exercise) }
                    td {
                        code { (common.check) } br;
                        (common.message)
                        @if let Some(known) = &common.known { br; em { "Known: " (known) } }
                    }
                }
            }
        }
        h2 { "Exercises" }
        p { "Where many are wrong or took hints, the exercise is hard. Where the checks take long, answers wait." }
        table {
            tr { th { "exercise" } th { "right" } th { "begun" } th { "hints" } th { "seconds, median" } }
            @for exercise in &course.exercises {
                @let all = of(class, &exercise.id);
                @if !all.is_empty() {
                    tr {
                        td { (exercise.id) }
                        td.number { (all.iter().filter(|graded| graded.state == State::Right).count()) }
                        td.number { (all.iter().filter(|graded| is_begun(graded)).count()) }
                        td.number { (all.iter().map(|graded| graded.hints).sum::<usize>()) }
                        td.number { (format!("{:.1}", median(&all))) }
                    }
                }
            }
        }
    };
    page("Grades", class, &body)
}

/// Formats how many of a module's exercises are right, such as `2/7`.
fn share(course: &Course, folder: &str, student: &Student) -> String {
    let of: Vec<&Line> = student
        .exercises
        .iter()
        .filter(|graded| {
            course.exercises.iter().any(|exercise| exercise.id == graded.id && exercise.folder() == folder)
        })
        .collect();
    format!("{}/{}", of.iter().filter(|graded| graded.state == State::Right).count(), of.len())
}

fn of<'a>(class: &'a Class, id: &str) -> Vec<&'a Line> {
    class.students.iter().flat_map(|student| &student.exercises).filter(|graded| graded.id == id).collect()
}

fn is_begun(graded: &Line) -> bool {
    !matches!(graded.state, State::Unbegun | State::Missing)
}

fn median(all: &[&Line]) -> f64 {
    let mut seconds: Vec<f64> =
        all.iter().filter(|graded| !graded.checks.is_empty()).map(|graded| graded.seconds()).collect();
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(0.0)
}

/// A student's page.
pub(crate) fn student(course: &Course, class: &Class, student: &Student) -> String {
    let body = html! {
        p { (student.count(State::Right)) " of " (student.exercises.len()) " exercises are right." }
        @if !student.unused.is_empty() {
            p { "These files differ from the course's. They were not used; the course's own were:" }
            ul { @for file in &student.unused { li { code { (file) } } } }
        }
        table {
            tr { th { "exercise" } th { "result" } th { "checks passed" } th { "hints" } }
            @for exercise in &student.exercises {
                tr {
                    td {
                        @if is_explained(exercise) { a href={ "#" (exercise.id) } { (exercise.id) } }
                        @else { (exercise.id) }
                    }
                    td { (state(exercise.state)) @if exercise.is_solution == Some(true) { " (the course's own solution)" } }
                    td.number {
                        @if !exercise.checks.is_empty() {
                            (exercise.count(Outcome::Passed)) " of " (exercise.checks.len())
                        }
                    }
                    td.number { (exercise.hints) }
                }
            }
        }
        @for graded in student.exercises.iter().filter(|graded| is_explained(graded)) {
            h2 id=(graded.id) { (graded.id) ": " (state(graded.state)) }
            @if let Some(exercise) = course.exercises.iter().find(|exercise| exercise.id == graded.id) {
                p { (exercise.title) " (" code { "modules/" (exercise.file) } ")" }
            }
            @if let Some(reason) = &graded.reason { pre { (reason.trim_end()) } }
            @for check in graded.checks.iter().filter(|check| check.outcome != Outcome::Passed) {
                h3 { code { (check.name) } }
                pre { (check.message.trim_end()) }
            }
        }
    };
    page(&student.name, class, &body)
}

/// Returns whether there is more to say about an exercise than its state.
fn is_explained(graded: &Line) -> bool {
    graded.reason.is_some() || graded.checks.iter().any(|check| check.outcome != Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use course::results::Check;

    #[test]
    fn a_page_escapes_what_answers_say() {
        let graded = Line {
            id: "init/devices".to_owned(),
            state: State::Wrong,
            reason: None,
            checks: vec![Check {
                name: "devices::one".to_owned(),
                outcome: Outcome::Failed,
                message: "<script>alert(1)</script>".to_owned(),
                seconds: Some(0.1),
            }],
            hints: 0,
            is_solution: None,
            sha256: None,
            score: None,
        };
        let student = Student {
            name: "ann".to_owned(),
            exercises: vec![graded],
            unused: vec!["tests/mod.rs".to_owned()],
        };
        let course = Course { modules: Vec::new(), exercises: Vec::new(), paths: Vec::new() };
        let class = Class {
            course: "1".to_owned(),
            tier: "virtual".to_owned(),
            sandbox: "x".to_owned(),
            students: Vec::new(),
        };
        let page = super::student(&course, &class, &student);
        assert!(page.contains("&lt;script&gt;alert(1)") && !page.contains("<script>"), "{page}");
        assert!(page.contains("<code>tests/mod.rs</code>"), "{page}");
    }
}
