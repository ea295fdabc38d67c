//! Turns a solved source into a starter, without side effects.
//!
//! A region is the text between `// ANCHOR: name` and `// ANCHOR_END: name`. It begins with a comment, the contract,
//! whose first sentence states the task. The answer follows the contract.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

const START: &str = "// ANCHOR: ";
const END: &str = "// ANCHOR_END: ";
/// The maximum line width of rustfmt.toml. rustfmt would break a longer `todo!` into three lines, so the starter would
/// not be formatted.
const MAX_WIDTH: usize = 110;

/// A region in a solved source.
#[derive(Debug)]
struct Region<'a> {
    name: &'a str,
    indent: &'a str,
    comment: Vec<&'a str>,
    has_answer: bool,
}

/// Returns a solved file as it appears in a student's module, with the name of the student's package.
pub fn renamed(folder: &str, solution: &str) -> String {
    solution.replace(&format!("s{folder}"), &format!("m{folder}"))
}

/// Replaces every answer with a `todo!`. Text outside the regions is unchanged.
///
/// # Errors
/// Fails if a region isn't closed, is inside another region, or has no comment or no answer; the error contains its
/// line number.
pub fn starter(source: &str) -> anyhow::Result<String> {
    let mut starter = String::new();
    let mut open: Option<Region<'_>> = None;
    for (index, line) in source.lines().enumerate() {
        let text = line.trim_start();
        let at = || format!("line {}", index + 1);
        if let Some(name) = text.strip_prefix(START) {
            if let Some(region) = &open {
                bail!("{}: region `{name}` starts inside region `{}`", at(), region.name);
            }
            let indent = &line[..line.len() - text.len()];
            open = Some(Region { name, indent, comment: Vec::new(), has_answer: false });
            push(&mut starter, line);
        } else if let Some(name) = text.strip_prefix(END) {
            let region = open.take().with_context(|| format!("{}: no region is open here", at()))?;
            ensure!(region.name == name, "{}: region `{}` is open here, not `{name}`", at(), region.name);
            let todo = region.todo().with_context(at)?;
            region.comment.iter().for_each(|line| push(&mut starter, line));
            push(&mut starter, &todo);
            push(&mut starter, line);
        } else if let Some(region) = &mut open {
            if text.starts_with("//") && !region.has_answer {
                region.comment.push(line);
            } else {
                // A blank line also ends the contract, so an answer may begin with its own comment.
                region.has_answer = true;
            }
        } else {
            push(&mut starter, line);
        }
    }
    if let Some(region) = open {
        bail!("region `{}` is never closed: write {END}{}", region.name, region.name);
    }
    Ok(starter)
}

/// Reads every file below a folder. The keys are paths relative to the folder.
///
/// # Errors
/// Fails if a folder or a file can't be read.
pub fn read_folder(folder: &Path) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        let entries = fs::read_dir(&next).with_context(|| format!("can't read {}", next.display()))?;
        for entry in entries {
            let path = entry.with_context(|| format!("can't read {}", next.display()))?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text =
                    fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
                files.insert(path.strip_prefix(folder)?.to_owned(), text);
            }
        }
    }
    Ok(files)
}

/// Returns the number of regions in a source.
pub fn regions(source: &str) -> usize {
    source.lines().filter(|line| line.trim_start().starts_with(START)).count()
}

/// Returns the answers in a solved source, by the names of their regions, without the comments that start the regions.
pub fn answers(source: &str) -> Vec<(String, String)> {
    let mut answers = Vec::new();
    let mut lines = source.lines().map(str::trim_start);
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix(START) {
            let region = lines.by_ref().take_while(|line| !line.starts_with(END));
            let answer = region.skip_while(|line| line.starts_with("//")).collect::<Vec<_>>();
            answers.push((name.to_owned(), answer.join("\n")));
        }
    }
    answers
}

/// Returns the manifest of a starter. It allows items that only the answer uses, makes an ignored result an error, and
/// lists the programs themselves, which the solution only includes.
///
/// # Errors
/// Fails if the solution doesn't use the workspace's lints.
pub fn manifest(solution: &str) -> anyhow::Result<String> {
    const STRICT: &str = "[lints]\nworkspace = true\n";
    const LENIENT: &str = "[lints.rust]\ndead_code = \"allow\"\nunused_imports = \"allow\"\nunused_must_use = \"deny\"\nunused_mut = \"allow\"\nunused_variables = \"allow\"\n";
    ensure!(solution.matches(STRICT).count() == 1, "it must contain these two lines exactly once:\n{STRICT}");
    // A starter's programs are in its own folder, where cargo-machete can see which crates they use. Their checks run
    // only on the solutions.
    let is_of_solution =
        |part: &str| ["[package.metadata.cargo-machete]", "[[test]]"].iter().any(|it| part.contains(it));
    let parts = solution.split("\n\n").filter(|part| !is_of_solution(part));
    let manifest = parts.collect::<Vec<_>>().join("\n\n");
    Ok(manifest.replace(STRICT, LENIENT).replace("path = \"programs/", "path = \"src/"))
}

fn push(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

impl Region<'_> {
    /// Returns the line that replaces the answer, which states the task in the words of the contract.
    fn todo(&self) -> anyhow::Result<String> {
        let name = self.name;
        ensure!(
            !name.is_empty() && !name.contains(char::is_whitespace),
            "`{name}` is not a valid name for a region"
        );
        ensure!(self.has_answer, "region `{name}` has no answer after its comment");
        let words: Vec<&str> =
            self.comment.iter().map(|line| line.trim_start().trim_start_matches('/').trim()).collect();
        let contract = words.join(" ");
        let task = first_sentence(&contract);
        ensure!(
            !task.is_empty(),
            "region `{name}` must start with a comment; its first sentence is the task in the starter"
        );
        let escaped = task.replace('\\', "\\\\").replace('"', "\\\"").replace('{', "{{").replace('}', "}}");
        let line = format!("{}todo!(\"{escaped}\")", self.indent);
        ensure!(
            line.chars().count() <= MAX_WIDTH,
            "region `{name}`: its first sentence is too long for one line of code; move part of it to a second sentence"
        );
        Ok(line)
    }
}

/// Returns a text up to its first period or colon at the end of a word. `Comm::new` and `lab.rs` do not end a sentence.
fn first_sentence(text: &str) -> &str {
    let ends = text.match_indices(['.', ':']).map(|(at, _)| at);
    let end = ends.into_iter().find(|at| text[at + 1..].chars().next().is_none_or(char::is_whitespace));
    text[..end.unwrap_or(text.len())].trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOLVED: &str = "\
pub fn two() -> u32 {
    // ANCHOR: two
    // Return \"two\" as {a} number. Not three.

    // 1 + 1 would do as well.
    2
    // ANCHOR_END: two
}
";

    #[test]
    fn the_answer_goes_and_the_contract_stays() {
        let expected = "\
pub fn two() -> u32 {
    // ANCHOR: two
    // Return \"two\" as {a} number. Not three.
    todo!(\"Return \\\"two\\\" as {{a}} number\")
    // ANCHOR_END: two
}
";
        assert_eq!(starter(SOLVED).unwrap(), expected);
        assert_eq!(regions(SOLVED), 1);
        assert_eq!(answers(SOLVED), [("two".to_owned(), "\n// 1 + 1 would do as well.\n2".to_owned())]);
        assert_eq!(starter("fn main() {}\n").unwrap(), "fn main() {}\n");
    }

    #[test]
    fn a_path_does_not_end_a_sentence() {
        assert_eq!(first_sentence("Call `Comm::new()`. Then go."), "Call `Comm::new()`");
        assert_eq!(first_sentence("Do one thing: this"), "Do one thing");
        assert_eq!(first_sentence("Do it."), "Do it");
    }

    #[test]
    fn a_broken_region_is_an_error_with_its_line() {
        for (from, to, words) in [
            ("    // ANCHOR_END: two\n", "", "never closed"),
            ("ANCHOR_END: two", "ANCHOR_END: three", "line 7: region `two` is open here, not `three`"),
            ("    // ANCHOR: two\n", "", "line 6: no region is open"),
            ("    // Return \"two\" as {a} number. Not three.\n", "", "must start with a comment"),
            ("Return", &format!("{}. Return", "so ".repeat(40)), "too long"),
            ("\n    // 1 + 1 would do as well.\n    2\n", "", "no answer"),
            ("    2\n", "    // ANCHOR: in\n", "inside region `two`"),
        ] {
            let error = format!("{:#}", starter(&SOLVED.replace(from, to)).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_manifest_changes_only_its_lints_and_programs() {
        let text = "[package]\n\n# why\n[package.metadata.cargo-machete]\nignored = []\n\n[lints]\nworkspace = true\n\n[[bin]]\npath = \"programs/main.rs\"\n";
        let expected = "[package]\n\n[lints.rust]\ndead_code = \"allow\"\nunused_imports = \"allow\"\nunused_must_use = \"deny\"\nunused_mut = \"allow\"\nunused_variables = \"allow\"\n\n[[bin]]\npath = \"src/main.rs\"\n";
        assert_eq!(manifest(text).unwrap(), expected);
        assert!(manifest("[package]\n").is_err());
    }
}
