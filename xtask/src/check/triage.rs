//! Checks that the messages that the triage page quotes are messages that students see.

use std::path::Path;

use anyhow::Context;
use course::mistakes::Mistake;

/// The page, from the root of the repository.
const PAGE: &str = "site/book/src/facilitator/triage.md";

/// The message of `todo!`, which no recorded mistake has.
const TODO: &str = "not yet implemented";

/// Returns the quoted messages that no recorded mistake earns.
pub(super) fn problems(root: &Path, mistakes: &[Mistake]) -> anyhow::Result<Vec<String>> {
    let page = std::fs::read_to_string(root.join(PAGE)).with_context(|| format!("can't read {PAGE}"))?;
    Ok(unknown(&page, mistakes.iter().flat_map(|mistake| &mistake.says).map(String::as_str)))
}

fn unknown<'a>(page: &str, says: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
    let quoted =
        page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(text, _)| text);
    quoted
        .filter(|text| *text != TODO && !says.clone().any(|says| says.contains(text)))
        .map(|text| format!("{PAGE}: no recorded mistake in tests/mistakes/ earns the message `{text}`"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_no_mistake_earns_is_named() {
        let page = "| the screen says | look at |\n|---|---|\n| `data race` | x |\n| `no such message` | x |\n| `not yet implemented` | x |\n";
        let problems = unknown(page, ["a data race on GPU 1"].into_iter());
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("`no such message`"), "{problems:?}");
    }
}
