//! Handwritten slides: a Markdown file in which `---` lines separate the slides.
//!
//! The text after `Note:` is for the speaker. A slide that begins with `<!-- exercise: ID -->` is shown with that
//! exercise, and only in paths that contain it.

use anyhow::{Context, ensure};
use pulldown_cmark::{CodeBlockKind, CowStr, Event, Options, Parser, Tag, TagEnd, html};

use super::code::{self, Block};

/// The source of one slide.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// The exercise that the slide is shown with.
    pub(super) exercise: Option<String>,
    pub(super) text: String,
    pub(super) notes: String,
}

impl Written {
    /// Returns its heading, to help authors find the slide.
    pub(super) fn heading(&self) -> &str {
        let heading = self.text.lines().find(|line| line.starts_with('#'));
        heading.map_or("no heading", |line| line.trim_start_matches('#').trim())
    }
}

/// Returns the slides in a file, in order.
pub(super) fn split(text: &str) -> Vec<Written> {
    let mut slides = vec![String::new()];
    let mut in_code = false;
    for line in text.lines() {
        in_code ^= line.starts_with("```");
        match slides.last_mut() {
            Some(slide) if in_code || line.trim_end() != "---" => *slide += &format!("{line}\n"),
            _ => slides.push(String::new()),
        }
    }
    slides.iter().map(|slide| written(slide.trim())).collect()
}

fn written(slide: &str) -> Written {
    let marked = slide.strip_prefix("<!-- exercise:").and_then(|rest| rest.split_once("-->"));
    let (exercise, slide) = marked.map_or((None, slide), |(id, rest)| (Some(id.trim().to_owned()), rest));
    let (text, notes) = slide.split_once("\nNote:").unwrap_or((slide, ""));
    Written { exercise, text: text.trim().to_owned(), notes: notes.trim().to_owned() }
}

/// Converts a slide's text to HTML.
///
/// # Errors
/// Fails if it does not begin with a heading, if a picture has no description for people who can't see it, or if its
/// code can't be formatted.
pub(super) fn to_html(text: &str) -> anyhow::Result<String> {
    ensure!(
        text.starts_with("# ") || text.starts_with("## "),
        "it doesn't begin with a heading, `# ` or `## `"
    );
    let events: Vec<Event<'_>> = Parser::new_ext(text, Options::ENABLE_TABLES).collect();
    ensure_alternatives(&events)?;
    let mut blocks = blocks(&events);
    for block in blocks.iter_mut().filter(|block| block.language == "rust") {
        // Drop a region's comment, which tells the student what to do, because another slide shows the task.
        let (_, code) = code::task_and_code(&block.text);
        block.text = code::narrow_statements(&code).context("its code")?.trim_end().to_owned() + "\n";
    }
    let mut blocks = blocks.into_iter();
    let mut inside = false;
    let shown = events.into_iter().filter_map(|event| match event {
        Event::Start(Tag::CodeBlock(_)) => {
            inside = true;
            None
        }
        Event::End(TagEnd::CodeBlock) => {
            inside = false;
            blocks.next().map(|block| Event::Html(CowStr::from(block.to_html())))
        }
        Event::Text(_) if inside => None,
        event => Some(event),
    });
    let mut made = String::new();
    html::push_html(&mut made, shown);
    Ok(made)
}

/// Converts the inline Markdown of one or more sentences.
pub(super) fn inline(text: &str) -> String {
    let mut made = String::new();
    html::push_html(&mut made, Parser::new_ext(text, Options::ENABLE_TABLES));
    made
}

fn blocks(events: &[Event<'_>]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut inside = false;
    for event in events {
        match event {
            Event::Start(Tag::CodeBlock(kind)) => {
                inside = true;
                let language = match kind {
                    // In `rust,noplayground`, only the language matters here; the rest is for the book.
                    CodeBlockKind::Fenced(language) => {
                        language.split(',').next().unwrap_or_default().to_owned()
                    }
                    CodeBlockKind::Indented => String::new(),
                };
                blocks.push(Block { language, text: String::new() });
            }
            Event::End(TagEnd::CodeBlock) => inside = false,
            Event::Text(text) if inside => {
                if let Some(block) = blocks.last_mut() {
                    block.text += text;
                }
            }
            _ => {}
        }
    }
    blocks
}

fn ensure_alternatives(events: &[Event<'_>]) -> anyhow::Result<()> {
    for (at, event) in events.iter().enumerate() {
        if let Event::Start(Tag::Image { dest_url, .. }) = event {
            let said = events[at..].iter().take_while(|event| !matches!(event, Event::End(TagEnd::Image)));
            let has_words =
                said.into_iter().any(|event| matches!(event, Event::Text(text) if !text.trim().is_empty()));
            ensure!(has_words, "the picture {dest_url} has no description for people who can't see it");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_separate_slides_and_a_word_begins_the_notes() {
        let text =
            "# A\na\n\nNote: say\nthis\n\n---\n\n<!-- exercise: init/devices -->\n## B\n```text\n---\n```\n";
        let slides = split(text);
        assert_eq!(
            slides,
            [
                Written { exercise: None, text: "# A\na".into(), notes: "say\nthis".into() },
                Written {
                    exercise: Some("init/devices".into()),
                    text: "## B\n```text\n---\n```".into(),
                    notes: String::new()
                },
            ]
        );
        assert_eq!(slides[1].heading(), "B");
    }

    #[test]
    fn a_slide_has_a_heading_and_each_picture_has_words() {
        assert!(to_html("## A\n\n![words](a.svg)").unwrap().contains("alt=\"words\""));
        assert_eq!(
            to_html("## A\n\n![](a.svg)").unwrap_err().to_string(),
            "the picture a.svg has no description for people who can't see it"
        );
        assert!(to_html("A").unwrap_err().to_string().contains("heading"));
    }

    #[test]
    fn code_has_its_language() {
        let made = to_html("## A\n\n```rust,noplayground\n// Do it.\nlet x = 1 < 2;\n```\n").unwrap();
        assert!(made.contains("<code class=\"language-rust\">let x = 1 &lt; 2;\n</code></pre>"), "{made}");
        let long = format!("## A\n\n```rust\nlet x = {};\n```\n", ["one_term(1)"; 9].join(" + "));
        assert!(to_html(&long).unwrap().contains(";\n</code></pre>"), "{long}");
    }
}
