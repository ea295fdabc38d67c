//! The pages for an exercise. The first page contains the lesson, the starter, and the collapsed hints and solution.
//! The second page is for after the exercise and also lists the known mistakes.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use course::answers;
use course::mistakes::Mistake;
use course::syllabus::{Course, Exercise};

use crate::page::{Pages, fenced, up};
use crate::source;

/// Returns the path to the exercise's page within the book.
pub(crate) fn path(exercise: &Exercise) -> String {
    let name = Path::new(&exercise.file).file_stem().unwrap_or_default().to_string_lossy();
    format!("{}/{name}.md", exercise.folder())
}

/// Returns the path, within the book, to the page for after the exercise.
pub(crate) fn path_after(exercise: &Exercise) -> String {
    path(exercise).replace(".md", ".after.md")
}

/// Creates the page for before the exercise.
///
/// # Errors
/// Fails if its lesson or solution can't be read, or if the solution has no regions to remove.
pub(crate) fn text(pages: &Pages<'_>, exercise: &Exercise) -> anyhow::Result<String> {
    let page = path(exercise);
    let solution = answers::solution(pages.root, exercise)?;
    let starter = answers::starter(pages.root, exercise)?;
    let mut text = lesson(pages, &exercise.lesson(Path::new("")), &page)?;
    let _ = writeln!(text, "\n{}\n", facts(pages.course, exercise, &pages.shown, &page));
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
    let _ = writeln!(text, "## Solution\n");
    folded(
        &mut text,
        &format!("<code>solutions/{}</code>", exercise.file),
        &fenced("rust,noplayground,whole", &source::without_marks(&solution)),
    );
    let after = path_after(exercise);
    let _ = writeln!(
        text,
        "Once your answer is right, read [pitfalls, other answers, and a question]({}{after}).",
        up(&page)
    );
    Ok(text)
}

/// Creates the page for after the exercise, with the mistakes that its checks are known to catch.
///
/// # Errors
/// Fails if the page can't be read, or if it refers to something that doesn't exist.
pub(crate) fn text_after(
    pages: &Pages<'_>,
    exercise: &Exercise,
    mistakes: &[Mistake],
) -> anyhow::Result<String> {
    let mut text = lesson(pages, &exercise.after(Path::new("")), &path_after(exercise))?;
    let of_it: Vec<&Mistake> =
        mistakes.iter().filter(|mistake| mistake.patch.exercise == exercise.id).collect();
    if !of_it.is_empty() {
        let _ = writeln!(
            text,
            "\n## Mistakes that the checks catch\n\nWhat does the check report for each mistake?\n"
        );
        for mistake in of_it {
            let said = mistake
                .says
                .iter()
                .fold(format!("{}\n", mistake.fails), |said, says| said + "  … " + says + "\n");
            folded(&mut text, &sentence(&mistake.what), &fenced("text", &said));
        }
    }
    Ok(text)
}

/// Converts a lesson for the book, replacing text figures with pictures.
fn lesson(pages: &Pages<'_>, file: &Path, page: &str) -> anyhow::Result<String> {
    let text = pages.text(&file.display().to_string(), page)?;
    drawn(&text, up(page).as_str()).with_context(|| file.display().to_string())
}

/// The start of a comment in front of a text figure that the book shows as a picture:
/// `<!-- picture: FILE.svg: what it shows -->`.
const PICTURE: &str = "<!-- picture: ";

/// Replaces text figures with pictures.
fn drawn(text: &str, up: &str) -> anyhow::Result<String> {
    let mut parts = text.split(PICTURE);
    let mut drawn = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (picture, rest) = part.split_once(" -->").context("a picture's comment is never closed")?;
        let (file, shows) =
            picture.split_once(": ").context("a picture's comment must be `FILE.svg: what it shows`")?;
        let block = rest
            .trim_start()
            .strip_prefix("```text\n")
            .context("a text block must follow a picture's comment")?;
        let (_, rest) = block.split_once("\n```").context("a block is never closed")?;
        let _ = write!(
            drawn,
            "![{}]({up}pictures/{file}){rest}",
            shows.split_whitespace().collect::<Vec<_>>().join(" ")
        );
    }
    Ok(drawn)
}

/// Describes what to do before the exercise and what the exercise runs on.
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
    let mut facts = Vec::new();
    if !needs.is_empty() {
        facts.push(format!("Do {} first.", needs.join(", ")));
    }
    if exercise.min_ranks > 1 {
        facts.push(format!("The checks need at least {} GPUs, real or virtual.", exercise.min_ranks));
    }
    facts.join(" ")
}

/// Capitalizes the first letter of a text, and converts the text to HTML.
fn sentence(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
    let mut parts = escaped.splitn(3, '`');
    let mut letters = parts.next().unwrap_or_default().chars();
    let first: String = letters.next().map(|letter| letter.to_uppercase().collect()).unwrap_or_default();
    let head = first + letters.as_str();
    let rest: Vec<&str> = escaped.split('`').skip(1).collect();
    // Markdown is not processed inside a summary.
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
    fn the_book_has_a_picture_where_a_terminal_has_characters() {
        let text = "a\n\n<!-- picture: b.svg: two\nboxes -->\n```text\n[] []\n```\n\nc\n";
        assert_eq!(drawn(text, "../").unwrap(), "a\n\n![two boxes](../pictures/b.svg)\n\nc\n");
        assert!(drawn("<!-- picture: b.svg: c -->\nd\n", "").is_err());
    }

    #[test]
    fn a_summary_is_a_sentence_in_html() {
        assert_eq!(
            sentence("the `Vec<T>` is `a` & b"),
            "The <code>Vec&lt;T></code> is <code>a</code> &amp; b"
        );
        assert_eq!(sentence("plain"), "Plain");
    }
}
