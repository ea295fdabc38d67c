//! The pages of a copy without solutions. They must not describe commands that need solutions, or link to files that
//! are not handed out.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

use super::is_handed_out;

/// The table of contents, and the folder of its pages.
const CONTENTS: &str = "site/book/src/SUMMARY.md";
const BOOK: &str = "site/book/src/";

/// The beginnings of a page's lines that are left out.
const LINES: [(&str, &[&str]); 1] = [(
    "site/book/src/commands.md",
    &["| `diff ID` |", "| `reset ID` |", "| `catch-up 04` |", "| `restore` |", "| `teach grade`"],
)];

/// The first line of the part that is left out, up to the page's end.
const PARTS: [(&str, &str); 1] = [("AGENTS.md", "## Help a contributor")];

/// Texts of a page, each up to an ending, and the text that replaces each.
const TEXTS: [(&str, &str, &str, &str); 9] = [
    (
        "AGENTS.md",
        "Before you help, find out who is asking:",
        "A student who asks",
        "You help a student. A student who asks",
    ),
    (
        "AGENTS.md",
        "3. **Don't open the answers.**",
        "4. **",
        "3. **Leave the checks in `tests/` closed.** A failed check prints everything that a student needs.\n4. **",
    ),
    ("AGENTS.md", " `cargo course reset` replaces", "runs it.", ""),
    ("site/book/src/commands.md", "`hint`, and `reset` use", "", "and `hint` use"),
    (
        "site/book/src/commands.md",
        "To see where the course leads, run",
        "it trains",
        "Once you have solved modules 01 to 04, run `cargo course demo 04 --gpus 4`: it trains",
    ),
    ("site/book/src/commands.md", " (and its solution", ")", ""),
    ("site/book/src/commands.md", "\n`cargo test --no-fail-fast -p", "solutions/01_init`.", ""),
    ("site/book/src/troubleshooting.md", "Nothing is lost:", ".course/backups/`. ", ""),
    ("crates/virtual-gpu/README.md", " [ARCHITECTURE.md]", ".\n", "\n"),
];

/// Changes the pages of a copy.
///
/// # Errors
/// Fails if a page no longer contains a text that has to be changed, or if a page can't be read or written.
pub(super) fn adapt(staging: &Path) -> anyhow::Result<()> {
    let contents = |text: &str| Ok(lines(text, |line| !leads_nowhere(line)));
    edit(staging, CONTENTS, contents)?;
    for (page, starts) in LINES {
        edit(staging, page, |text| {
            for start in starts {
                ensure!(text.lines().any(|line| line.starts_with(start)), "no line starts with `{start}`");
            }
            Ok(lines(text, |line| !starts.iter().any(|start| line.starts_with(start))))
        })?;
    }
    for (page, heading) in PARTS {
        edit(staging, page, |text| {
            let at =
                text.find(&format!("\n{heading}\n")).with_context(|| format!("it has no `{heading}`"))?;
            Ok(text[..at].to_owned())
        })?;
    }
    for (page, from, ending, to) in TEXTS {
        edit(staging, page, |text| {
            let start = text.find(from).with_context(|| format!("it has no `{from}`"))?;
            let rest = &text[start + from.len()..];
            let end = rest.find(ending).with_context(|| format!("no `{ending}` follows `{from}`"))?;
            Ok(format!("{}{to}{}", &text[..start], &rest[end + ending.len()..]))
        })?;
    }
    Ok(())
}

/// Returns the lines that are kept.
fn lines(text: &str, is_kept: impl Fn(&str) -> bool) -> String {
    text.lines().filter(|line| is_kept(line)).fold(String::new(), |text, line| text + line + "\n")
}

/// Returns whether a line of the table of contents links to a page that is not handed out.
fn leads_nowhere(line: &str) -> bool {
    let page = line.split_once("](").and_then(|(_, rest)| rest.split(')').next());
    page.is_some_and(|page| !is_handed_out(&format!("{BOOK}{page}")))
}

/// Changes a page. A small course may not have it.
fn edit(
    staging: &Path,
    page: &str,
    change: impl FnOnce(&str) -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let path = staging.join(page);
    if !path.exists() {
        return Ok(());
    }
    let text = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
    let text = change(&text).with_context(|| format!("{page} has changed, so update {}", file!()))?;
    fs::write(&path, text).with_context(|| format!("can't write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::has_solutions;
    use crate::replace::replace;

    #[test]
    fn pages_without_solutions_have_no_command_that_needs_them() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        if !has_solutions(&root) {
            // The pages of this copy are adapted already.
            return;
        }
        let staging = std::env::temp_dir().join(format!("course_pages_{}", std::process::id()));
        let pages = ["AGENTS.md", CONTENTS, "site/book/src/commands.md", "site/book/src/troubleshooting.md"];
        let pages = pages.into_iter().chain(["crates/virtual-gpu/README.md"]);
        for page in pages.clone() {
            replace(&staging.join(page), fs::read_to_string(root.join(page)).unwrap()).unwrap();
        }
        adapt(&staging).unwrap();
        for page in pages {
            let text = fs::read_to_string(staging.join(page)).unwrap();
            for absent in [
                "catch-up",
                "`diff",
                "course diff",
                "`reset",
                "course reset",
                "teach ",
                "solution`",
                "solutions/",
                "facilitator/",
                "instructors.md",
                "authors.md",
                "ARCHITECTURE",
                "contributor",
            ] {
                assert!(!text.contains(absent), "{page} contains {absent}: {text}");
            }
        }
        fs::remove_dir_all(staging).unwrap();
    }

    #[test]
    fn a_text_that_is_gone_is_named() {
        let staging = std::env::temp_dir().join(format!("course_pages_gone_{}", std::process::id()));
        replace(&staging.join("AGENTS.md"), "# For AI helpers\n").unwrap();
        let error = format!("{:#}", adapt(&staging).unwrap_err());
        assert!(error.starts_with("AGENTS.md has changed, so update"), "{error}");
        assert!(error.ends_with("it has no `## Help a contributor`"), "{error}");
        fs::remove_dir_all(staging).unwrap();
    }
}
