//! The output that lessons show for their programs.

use std::path::Path;
use std::process::Command;

use anstream::adapter::strip_str;
use anyhow::{Context, ensure};

use super::{Entry, difference, in_parallel, printed};
use crate::source;

/// Runs the programs that the lessons show, and compares their output. Returns the number of programs, and the
/// differences.
pub(super) fn check(root: &Path) -> anyhow::Result<(usize, String)> {
    let mut shown = Vec::new();
    for lesson in lessons(root)? {
        let examples = examples(&source::read(root, &lesson)?);
        shown.extend(examples.into_iter().map(|(command, text)| (lesson.clone(), command, text)));
    }
    let wrong = in_parallel(&shown, |(lesson, command, text)| {
        if command.starts_with(TESTS) {
            let listed = listed(root, command)?;
            let line = wrong_tests(text, &listed);
            return Ok(
                line.map(|line| format!("{lesson}: `{command}` does not print `{line}` in that place\n"))
            );
        }
        let entry = Entry { name: lesson.clone(), command: command.clone(), code: 0 };
        let now = strip_str(&printed(root, &entry)?).to_string();
        let difference = difference(&pattern(text), &now);
        Ok(difference.map(|difference| format!("{lesson}: `{command}` differs\n{difference}\n")))
    })?;
    Ok((shown.len(), wrong))
}

/// Converts output in a lesson to snapbox's pattern: `…` on its own line matches any lines, and, within a line, any
/// words. More output may follow.
fn pattern(shown: &str) -> String {
    let line = |line: &str| match line.trim_end() {
        "…" => "...\n".to_owned(),
        line => line.replace('…', "[..]") + "\n",
    };
    shown.lines().map(line).collect::<String>() + "...\n"
}

fn lessons(root: &Path) -> anyhow::Result<Vec<String>> {
    let course = course::syllabus::Course::read(root)?;
    Ok(course.modules.iter().map(|module| format!("modules/{}/README.md", module.folder)).collect())
}

/// How a command that runs a module's checks begins.
const TESTS: &str = "cargo test -p m";

/// Returns a lesson's commands that run a module's program or its checks, each with the output that the lesson shows.
fn examples(lesson: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut blocks = lesson.split("\n```").skip(1).step_by(2).peekable();
    while let Some(block) = blocks.next() {
        let Some(command) = block.strip_prefix("console\n$ ").map(str::trim_end) else { continue };
        let runs = ["cargo run -p m", "cargo course ", TESTS].iter().any(|start| command.starts_with(start));
        if let Some(text) = blocks.peek().and_then(|next| next.strip_prefix("text\n"))
            && runs
            && !command.contains('\n')
        {
            found.push((command.to_owned(), text.to_owned()));
        }
    }
    found
}

/// Returns the names of the checks that a command runs.
fn listed(root: &Path, command: &str) -> anyhow::Result<Vec<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(command.split_whitespace().skip(1))
        .args(["--quiet", "--", "--list"])
        .current_dir(root)
        .env("LAB_TIER", "virtual")
        .output()
        .with_context(|| format!("can't run `{command}`"))?;
    ensure!(output.status.success(), "`{command}`: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// Returns a wrong detail in the output of successful checks that a lesson shows: their number, or a name. The number
/// of ignored checks depends on the machine.
fn wrong_tests<'t>(shown: &'t str, listed: &[String]) -> Option<&'t str> {
    let is_wrong = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["running", number, "tests"] => number != listed.len().to_string(),
            ["test", "result:", "ok.", passed, "passed;", "0", "failed;", ignored, ..] => {
                let sum = passed.parse::<usize>().ok().zip(ignored.parse::<usize>().ok());
                sum.is_none_or(|(passed, ignored)| passed + ignored != listed.len())
            }
            ["test", name, "...", "ok"] => !listed.iter().any(|listed| listed == name),
            ["…"] | [] => false,
            _ => true,
        }
    };
    shown.lines().find(is_wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ellipsis_matches_any_lines_and_the_rest_of_a_line() {
        let printed = "tier: virtual\na\nb\nc\nthe end\n";
        let differs = |shown: &str| difference(&pattern(shown), printed).is_some();
        assert!(!differs("tier: …\na\n…\nthe end\n") && !differs("tier: …\na\n"));
        assert!(differs("tier: …\n…\nno end\n") && differs("a\n"));
        let figures = "GPU 0:  …, elements 0..25…";
        assert_eq!(difference(&pattern(figures), "GPU 0:  H100, elements 0..25000"), None);
    }

    #[test]
    fn an_example_is_a_command_and_its_output() {
        let lesson = "\n```console\n$ cargo run -p m01_init\n```\n```text\nx\ny\n```\n\n```console\n$ ls\n```\n```text\nz\n```\n";
        assert_eq!(examples(lesson), [("cargo run -p m01_init".to_owned(), "x\ny".to_owned())]);
    }

    #[test]
    fn a_wrong_number_or_name_of_checks_is_reported() {
        let listed = ["a::b", "a::c"].map(str::to_owned);
        let shown =
            "running 2 tests\ntest a::b ... ok\n…\n\ntest result: ok. 1 passed; 0 failed; 1 ignored\n";
        assert_eq!(wrong_tests(shown, &listed), None);
        assert_eq!(wrong_tests(shown, &listed[..1]), Some("running 2 tests"));
        assert_eq!(wrong_tests("test a::d ... ok", &listed), Some("test a::d ... ok"));
        let result = "test result: ok. 2 passed; 0 failed; 1 ignored";
        assert_eq!(wrong_tests(result, &listed), Some(result));
    }
}
