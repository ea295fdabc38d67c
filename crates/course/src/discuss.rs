//! `cargo course discuss`: shows the page to read after an exercise.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, ensure};
use course::progress::State;
use course::syllabus::Exercise;

use crate::session::{DIM, STRONG, Session};

/// Returns the page to read after an exercise. The page's answers are folded unless `answers` is set.
///
/// # Errors
/// Fails if the page gives away answers and the exercise isn't right yet, or if the page's file can't be read.
pub(crate) fn show(session: &Session, exercise: &Exercise, answers: bool) -> anyhow::Result<String> {
    ensure!(
        session.state(exercise)? == State::Right,
        "{} is not right yet, and its discussion shows answers; get it right first: cargo course run {}",
        exercise.id,
        exercise.id
    );
    let path = exercise.after(session.root);
    let page = std::fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
    let mut text = format!("{}\n", for_terminal(&page, answers).trim_end());
    if !answers && page.contains(FOLD) {
        let _ = writeln!(
            text,
            "\n{DIM}to show the answers: cargo course discuss --answers {}{DIM:#}",
            exercise.id
        );
    }
    let shown = exercise.after(Path::new(""));
    let _ = writeln!(text, "{DIM}this page: {}{DIM:#}", shown.display());
    Ok(text)
}

/// The line that begins a folded answer.
const FOLD: &str = "<details>";

/// Converts Markdown for a terminal: each paragraph becomes one line, and headings become bold.
fn for_terminal(page: &str, answers: bool) -> String {
    let mut text = String::new();
    let (mut is_block, mut is_folded) = (false, false);
    for line in page.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_block ^= is_fence;
        let starts_fold = !is_block && line.trim_start().starts_with(FOLD);
        is_folded = (is_folded || starts_fold) && !line.trim_start().starts_with("</details>");
        if is_fence || (is_folded && (starts_fold || !answers)) || line.trim_start().starts_with("</details>")
        {
            continue;
        }
        if let Some(heading) = line.strip_prefix('#').filter(|_| !is_block) {
            let _ = writeln!(text, "{STRONG}{}{STRONG:#}", heading.trim_start_matches('#').trim_start());
        } else if is_block {
            let _ = writeln!(text, "    {line}");
        } else if !line.is_empty() && goes_on(&text, line) {
            text.truncate(text.trim_end().len());
            let _ = writeln!(text, " {}", line.trim_start());
        } else if !(line.is_empty() && text.ends_with("\n\n")) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// Returns whether a line of Markdown continues the paragraph or list item at the end of the text.
fn goes_on(text: &str, line: &str) -> bool {
    let last = text.lines().last().unwrap_or_default();
    let begins = |line: &str| {
        let line = line.trim_start();
        let is_number = line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        is_number || ["- ", "* ", "|", "> "].iter().any(|start| line.starts_with(start))
    };
    !last.is_empty() && !last.starts_with("    ") && !last.starts_with('\u{1b}') && !begins(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# After: sum\n\nYou summed\nvalues.\n\n- one\n  item\n- two\n\n```rust\nf();\n```\n\n## Question\n\nWhy?\n\n<details><summary>Answer</summary>\n\nBecause.\n</details>\n\nEnd.\n";

    #[test]
    fn paragraphs_are_joined_and_answers_are_folded() {
        let shown = |answers| anstream::adapter::strip_str(&for_terminal(PAGE, answers)).to_string();
        let before =
            "After: sum\n\nYou summed values.\n\n- one item\n- two\n\n    f();\n\nQuestion\n\nWhy?\n\n";
        assert_eq!(shown(false), format!("{before}End.\n"));
        assert_eq!(shown(true), format!("{before}Because.\n\nEnd.\n"));
    }
}
