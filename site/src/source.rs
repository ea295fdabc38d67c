//! The repository's files, and the parts between their anchors.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail, ensure};

/// Reads a file in the repository, given its path from the root.
///
/// # Errors
/// Fails if it can't be read.
pub(crate) fn read(root: &Path, path: &str) -> anyhow::Result<String> {
    fs::read_to_string(root.join(path)).with_context(|| format!("can't read {path}"))
}

/// Returns the lines between `// ANCHOR: name` and `// ANCHOR_END: name`, without their common indentation.
///
/// # Errors
/// Fails if there is no such anchor, or if it isn't closed.
pub(crate) fn region(text: &str, name: &str) -> anyhow::Result<String> {
    let is = |line: &str, mark: &str| line.trim().strip_prefix(mark).is_some_and(|rest| rest.trim() == name);
    let mut lines = text.lines();
    if !lines.any(|line| is(line, "// ANCHOR:")) {
        bail!("there is no anchor `{name}`; there are {}", anchors(text).join(", "));
    }
    let mut inside = Vec::new();
    for line in lines {
        if is(line, "// ANCHOR_END:") {
            return Ok(unindented(&inside));
        }
        inside.push(line);
    }
    bail!("the anchor `{name}` is never closed")
}

/// Returns the names of a file's anchors, in order.
pub(crate) fn anchors(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.trim().strip_prefix("// ANCHOR:")).map(str::trim).collect()
}

/// Returns the lines that no anchor encloses.
pub(crate) fn outside(text: &str) -> Vec<&str> {
    let mut open = 0_usize;
    let mut kept = Vec::new();
    for line in text.lines() {
        let word = line.trim();
        open += usize::from(word.starts_with("// ANCHOR:"));
        if open == 0 {
            kept.push(line);
        }
        open = open.saturating_sub(usize::from(word.starts_with("// ANCHOR_END:")));
    }
    kept
}

/// Returns a source without the lines that only mark anchors.
pub(crate) fn without_marks(text: &str) -> String {
    let kept = text.lines().filter(|line| {
        let line = line.trim();
        !line.starts_with("// ANCHOR:") && !line.starts_with("// ANCHOR_END:")
    });
    kept.fold(String::new(), |text, line| text + line + "\n")
}

fn unindented(lines: &[&str]) -> String {
    let indent = |line: &&str| line.len() - line.trim_start().len();
    let common = lines.iter().filter(|line| !line.trim().is_empty()).map(indent).min().unwrap_or(0);
    lines.iter().fold(String::new(), |text, line| text + line.get(common..).unwrap_or("") + "\n")
}

/// Resolves `path` relative to the folder that contains the file `from`. Returns a path from the root.
///
/// # Errors
/// Fails if the path leads outside the repository.
pub(crate) fn resolve(from: &str, path: &str) -> anyhow::Result<String> {
    let mut parts = PathBuf::from(from);
    parts.pop();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => ensure!(parts.pop(), "{path} leads outside the repository"),
            Component::Normal(name) => parts.push(name),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => bail!("{path} is not a relative path"),
        }
    }
    Ok(parts.to_str().context("a path in UTF-8")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "a\n    // ANCHOR: x\n    one\n\n        two\n    // ANCHOR_END: x\nb\n// ANCHOR: y\nc\n";

    #[test]
    fn a_region_is_the_text_between_its_marks() {
        assert_eq!(region(TEXT, "x").unwrap(), "one\n\n    two\n");
        assert_eq!(region(TEXT, "z").unwrap_err().to_string(), "there is no anchor `z`; there are x, y");
        assert_eq!(region(TEXT, "y").unwrap_err().to_string(), "the anchor `y` is never closed");
        assert_eq!(outside(TEXT), ["a", "b"]);
        assert_eq!(without_marks("a\n// ANCHOR: x\nb\n  // ANCHOR_END: x\n"), "a\nb\n");
    }

    #[test]
    fn a_path_is_relative_to_the_file_that_names_it() {
        assert_eq!(resolve("site/book/src/a.md", "../../../docs/x.md").unwrap(), "docs/x.md");
        assert_eq!(resolve("docs/seeds.md", "profiling.md").unwrap(), "docs/profiling.md");
        assert!(resolve("a.md", "../x.md").is_err());
    }
}
