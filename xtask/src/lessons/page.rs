//! Checks a page's form: the order of its headings, and its length.

use std::ops::RangeInclusive;

use course::syllabus::Exercise;

/// The required form of a page.
pub(super) struct Page {
    title: String,
    /// The first words after the title.
    start: String,
    headings: &'static [&'static str],
    words: RangeInclusive<usize>,
    /// The last line.
    end: Option<String>,
}

/// The maximum number of words on a module's page, not counting program output.
const MOST_WORDS_OF_MODULE: usize = 500;

impl Page {
    /// Returns the required form of the page before an exercise.
    pub(super) fn lesson(exercise: &Exercise) -> Self {
        Self {
            title: format!("# {}", exercise.title),
            start: format!("*{} minutes. You will ", exercise.minutes),
            headings: &["## Why", "## The idea", "## What you need", "## Your task", "## Predict"],
            words: 300..=700,
            end: Some(format!("Run `cargo course run {}`.", exercise.id)),
        }
    }

    /// Returns the form required for the page that follows an exercise.
    pub(super) fn after(exercise: &Exercise) -> Self {
        Self {
            title: format!("# After: {}", with_small_initial(&exercise.title)),
            start: String::new(),
            headings: &[
                "## Pitfalls",
                "## Two correct answers",
                "## Why the mistakes are tempting",
                "## Question",
                "## Stretch",
                "## Read on",
            ],
            words: 200..=700,
            end: None,
        }
    }

    /// Returns how a text differs from this form.
    pub(super) fn problems(&self, text: &str) -> Vec<String> {
        let mut problems = Vec::new();
        let mut lines = text.lines().filter(|line| !line.trim().is_empty());
        let (title, below) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        if title != self.title {
            problems
                .push(format!("its first line is `{title}`; it must be `{}`, as in course.toml", self.title));
        }
        if !below.starts_with(&self.start) {
            problems.push(format!("the text below the title must begin with `{}…`", self.start));
        }
        let mut rest = text;
        for heading in self.headings {
            match rest.split_once(&format!("\n{heading}\n")) {
                Some((_, after)) => rest = after,
                None => problems.push(format!(
                    "it has no `{heading}` in the right place; the order is {}",
                    self.headings.join(", ")
                )),
            }
        }
        let count = count(text);
        if !self.words.contains(&count) {
            let (least, most) = (self.words.start(), self.words.end());
            problems.push(format!("it has {count} words; write {least} to {most}"));
        }
        if let Some(end) = &self.end
            && text.trim_end().lines().last() != Some(end)
        {
            problems.push(format!("its last line must be: {end}"));
        }
        if text.matches("<details>").count() != text.matches("</details>").count() {
            problems.push("a <details> is never closed".to_owned());
        }
        problems
    }
}

/// Counts the words that a reader sees.
pub(super) fn count(text: &str) -> usize {
    // A comment names the picture that replaces a figure and describes it for screen readers.
    let shown = text.lines().filter(|line| !line.starts_with("<!-- "));
    shown.map(|line| line.split_whitespace().count()).sum()
}

/// Returns the problems with a module's page.
pub(super) fn module_problems(text: &str) -> Vec<String> {
    // Every other part is inside a code block.
    let count: usize = text.split("```").step_by(2).map(|part| part.split_whitespace().count()).sum();
    match count <= MOST_WORDS_OF_MODULE {
        true => vec![],
        false => vec![format!("it has {count} words, but at most {MOST_WORDS_OF_MODULE} are allowed")],
    }
}

/// Prepares a title for use within a sentence: `GPU` and `NCCL` keep their capitals.
fn with_small_initial(title: &str) -> String {
    let mut chars = title.chars();
    match (chars.next(), chars.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() || second == ' ' => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => title.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_its_headings_in_order() {
        let page = Page {
            title: "# Sum".into(),
            start: "*10 minutes".into(),
            headings: &["## Why", "## Predict"],
            words: 5..=20,
            end: Some("Run it.".into()),
        };
        let good = "# Sum\n\n*10 minutes.*\n\n## Why\n\nIt is so.\n\n## Predict\n\nWhat?\n\nRun it.\n";
        assert_eq!(page.problems(good), Vec::<String>::new());
        let bad = good.replace("Predict", "Guess").replace("Run", "Ran").replace("# Sum", "# Add");
        assert_eq!(page.problems(&bad).len(), 3, "{:?}", page.problems(&bad));
        assert_eq!(page.problems(&"word ".repeat(21)).len(), 6);
    }

    #[test]
    fn program_output_does_not_count() {
        let output = format!("```text\n{}\n```\n", "word ".repeat(600));
        assert_eq!(module_problems(&output), Vec::<String>::new());
        assert_eq!(module_problems(&"word ".repeat(501)).len(), 1);
    }

    #[test]
    fn an_abbreviation_keeps_its_capitals() {
        assert_eq!(with_small_initial("Sum on all ranks"), "sum on all ranks");
        assert_eq!(with_small_initial("A GPU"), "a GPU");
        assert_eq!(with_small_initial("NCCL's ring"), "NCCL's ring");
    }
}
