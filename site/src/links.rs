//! Adapts the links in a text that is shown on a page in another location.

use std::ops::Range;

use anyhow::Context;
use pulldown_cmark::{Event, LinkType, Options, Parser, Tag};

/// Where a link leads on the pages.
pub(crate) enum Target {
    /// The link leads to this address.
    Page(String),
    /// The link leads to a file in the repository that no page shows. The link is removed, but its text is kept. A
    /// picture is left unchanged.
    Nowhere,
}

/// Replaces the target of each link and picture in a Markdown text according to `target`. Addresses with a scheme and
/// links within the page are left unchanged.
///
/// # Errors
/// Returns any error from `target`, with the link.
pub(crate) fn rewrite(
    text: &str,
    mut target: impl FnMut(&str) -> anyhow::Result<Target>,
) -> anyhow::Result<String> {
    let parser = Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES);
    let definitions = parser.reference_definitions();
    let mut changes: Vec<(Range<usize>, String)> = Vec::new();
    for (_, definition) in definitions.iter() {
        if is_elsewhere(&definition.dest) {
            continue;
        }
        let at = position(text, &definition.span, &definition.dest)?;
        // A link definition can't be removed while the text still uses it.
        if let Target::Page(page) = change(&mut target, &definition.dest)? {
            changes.push((at, page));
        }
    }
    for (event, span) in parser.into_offset_iter() {
        let (Event::Start(Tag::Link { link_type: LinkType::Inline, dest_url, .. })
        | Event::Start(Tag::Image { link_type: LinkType::Inline, dest_url, .. })) = &event
        else {
            continue;
        };
        if is_elsewhere(dest_url) {
            continue;
        }
        match change(&mut target, dest_url)? {
            Target::Page(page) => changes.push((position(text, &span, dest_url)?, page)),
            // A picture is next to its page and is copied with the page.
            Target::Nowhere if matches!(event, Event::Start(Tag::Image { .. })) => {}
            Target::Nowhere => {
                let words = text[span.clone()].rsplit_once("](").map_or("", |(words, _)| words);
                changes.push((span, words.trim_start_matches('[').to_owned()));
            }
        }
    }
    changes.sort_by_key(|(at, _)| std::cmp::Reverse(at.start));
    let mut rewritten = text.to_owned();
    for (at, new) in changes {
        rewritten.replace_range(at, &new);
    }
    Ok(rewritten)
}

/// Returns whether the link has a scheme or stays within its page.
fn is_elsewhere(dest: &str) -> bool {
    dest.starts_with('#') || dest.contains("://") || dest.starts_with("mailto:")
}

fn change(target: &mut impl FnMut(&str) -> anyhow::Result<Target>, dest: &str) -> anyhow::Result<Target> {
    target(dest).with_context(|| format!("in the link to {dest}"))
}

/// Returns the position of a link's target within the text.
fn position(text: &str, span: &Range<usize>, dest: &str) -> anyhow::Result<Range<usize>> {
    let at =
        text[span.clone()].rfind(dest).with_context(|| format!("the link to {dest} contains escapes"))?;
    Ok(span.start + at..span.start + at + dest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_link_gets_its_new_target() {
        let text = "A [one](a.md#x), [two][t], [far](https://x.org/a.md), [here](#h), [gone](b.rs) and ![a](p.svg).\n\n[t]: c.md\n";
        let made = rewrite(text, |link| {
            Ok(if link.ends_with(".rs") { Target::Nowhere } else { Target::Page(format!("new/{link}")) })
        });
        let expected = "A [one](new/a.md#x), [two][t], [far](https://x.org/a.md), [here](#h), gone and ![a](new/p.svg).\n\n[t]: new/c.md\n";
        assert_eq!(made.unwrap(), expected);
    }

    #[test]
    fn a_picture_that_no_page_shows_stays() {
        let text = "![a](p.svg) and [it](p.svg)";
        assert_eq!(rewrite(text, |_| Ok(Target::Nowhere)).unwrap(), "![a](p.svg) and it");
    }

    #[test]
    fn a_link_in_code_is_not_a_link() {
        let text = "```text\n[a](b.md)\n```\n`[a](b.md)`\n";
        assert_eq!(rewrite(text, |_| anyhow::bail!("no link")).unwrap(), text);
    }
}
