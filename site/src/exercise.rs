//! The page of an exercise: what to do, the starter, hints, what tempts, and the solution, folded.

use std::fmt::Write as _;
use std::path::Path;

use course::answers;
use course::mistakes::Mistake;
use course::syllabus::{Course, Exercise};

use crate::page::{Pages, fenced, up};
use crate::source;

/// Where the page lies in the book.
pub(crate) fn path(exercise: &Exercise) -> String {
    let name = Path::new(&exercise.file).file_stem().unwrap_or_default().to_string_lossy();
    format!("{}/{name}.md", exercise.folder())
}

/// The whole page.
///
/// # Errors
/// Its solution can't be read, or has no regions to take out.
pub(crate) fn text(pages: &Pages<'_>, exercise: &Exercise, mistakes: &[Mistake]) -> anyhow::Result<String> {
    let page = path(exercise);
    let solution = answers::solution(pages.root, exercise)?;
    let starter = answers::starter(pages.root, exercise)?;
    let mut text = format!("# {}\n\n{}\n\n", exercise.title, exercise.objective);
    let _ = writeln!(text, "{}\n", facts(pages.course, exercise, &pages.shown, &page));
    let _ = writeln!(text, "{}", fenced("console", &format!("$ cargo course run {}\n", exercise.id)));
    let _ = writeln!(
        text,
        "## Your file\n\n`modules/{}`:\n\n{}",
        exercise.file,
        fenced("rust,noplayground,whole", &source::without_marks(&starter))
    );
    let _ = writeln!(text, "## Hints\n");
    for (number, hint) in (1..).zip(&exercise.hints) {
        folded(&mut text, &format!("Hint {number}"), hint);
    }
    let of_it: Vec<&Mistake> = mistakes.iter().filter(|mistake| mistake.exercise == exercise.id).collect();
    if !of_it.is_empty() {
        let _ = writeln!(text, "## What tempts\n\nEach of these is caught. What does the check say?\n");
        for mistake in of_it {
            let said = mistake
                .says
                .iter()
                .fold(format!("{}\n", mistake.fails), |said, says| said + "  … " + says + "\n");
            folded(&mut text, &sentence(&mistake.what), &fenced("text", &said));
        }
    }
    let _ = writeln!(text, "## Solution\n");
    folded(
        &mut text,
        &format!("<code>solutions/{}</code>", exercise.file),
        &fenced("rust,noplayground,whole", &source::without_marks(&solution)),
    );
    Ok(text)
}

/// How long it takes, what comes before, and what it runs on.
fn facts(
    course: &Course,
    exercise: &Exercise,
    shown: &std::collections::BTreeMap<String, String>,
    page: &str,
) -> String {
    let needs = exercise.needs.iter().filter_map(|id| course.exercise(id).ok()).map(|needed| {
        format!("[`{}`]({}{})", needed.id, up(page), shown[&format!("modules/{}", needed.file)])
    });
    let needs: Vec<String> = needs.collect();
    let mut facts = format!("{} minutes", exercise.minutes);
    if !needs.is_empty() {
        let _ = write!(facts, " · after {}", needs.join(", "));
    }
    if exercise.min_ranks > 1 {
        let _ = write!(facts, " · from {} GPUs, real or virtual", exercise.min_ranks);
    }
    let lesson = &shown[&format!("modules/{}/README.md", exercise.folder())];
    let _ = write!(facts, " · [the lesson]({}{lesson})", up(page));
    facts
}

/// A first letter as at the start of a sentence, for HTML.
fn sentence(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
    let mut parts = escaped.splitn(3, '`');
    let mut letters = parts.next().unwrap_or_default().chars();
    let first: String = letters.next().map(|letter| letter.to_uppercase().collect()).unwrap_or_default();
    let head = first + letters.as_str();
    let rest: Vec<&str> = escaped.split('`').skip(1).collect();
    // Markdown isn't read in a summary.
    rest.iter().enumerate().fold(head, |text, (index, part)| match index % 2 {
        0 => text + "<code>" + part + "</code>",
        _ => text + part,
    })
}

fn folded(text: &mut String, summary: &str, inside: &str) {
    let _ =
        writeln!(text, "<details>\n<summary>{summary}</summary>\n\n{}\n\n</details>\n", inside.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_a_sentence_in_html() {
        assert_eq!(
            sentence("the `Vec<T>` is `a` & b"),
            "The <code>Vec&lt;T></code> is <code>a</code> &amp; b"
        );
        assert_eq!(sentence("plain"), "Plain");
    }
}
