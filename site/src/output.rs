//! What programs print, kept as a terminal shows it, with its colours: a page shows what they really said, and a check runs them
//! again.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anstream::adapter::strip_str;
use anyhow::{Context, bail, ensure};
use serde::Deserialize;

use crate::source;

/// Which programs are run.
const LIST: &str = "site/book/output.toml";
/// Where it is kept what they print.
const KEPT: &str = "site/book/output";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    output: Vec<Entry>,
}

/// A command, and what it is called by pages.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    command: String,
    /// Its exit code.
    #[serde(default)]
    code: i32,
}

/// A command with what it prints.
pub(crate) struct Output {
    pub(crate) name: String,
    pub(crate) command: String,
    /// With its colours, as ANSI escape codes.
    pub(crate) styled: String,
}

impl Output {
    /// Without colours.
    pub(crate) fn text(&self) -> String {
        strip_str(&self.styled).to_string()
    }
}

/// All of them, by name.
pub(crate) struct Outputs(BTreeMap<String, Output>);

impl Outputs {
    /// What is kept.
    ///
    /// # Errors
    /// One isn't there.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let read = |entry: Entry| {
            let path = file(root, &entry.name);
            let styled = fs::read_to_string(&path)
                .with_context(|| format!("can't read {}; `cargo xtask output` writes it", path.display()))?;
            Ok((entry.name.clone(), Output { name: entry.name, command: entry.command, styled }))
        };
        Ok(Self(entries(root)?.into_iter().map(read).collect::<anyhow::Result<_>>()?))
    }

    /// One of them.
    ///
    /// # Errors
    /// It isn't in the list.
    pub(crate) fn get(&self, name: &str) -> anyhow::Result<&Output> {
        let known = || self.0.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        self.0.get(name).with_context(|| format!("{LIST} has no output `{name}`; it has {}", known()))
    }

    /// All of them, in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Output> {
        self.0.values()
    }

    /// What a command prints; some of its arguments may be left out at its end.
    ///
    /// # Errors
    /// It isn't in the list.
    pub(crate) fn of_command(&self, command: &str) -> anyhow::Result<&Output> {
        let starts = |output: &&Output| {
            output.command.strip_prefix(command).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        self.0.values().find(starts).with_context(|| format!("{LIST} has no output of `{command}`"))
    }
}

fn entries(root: &Path) -> anyhow::Result<Vec<Entry>> {
    let text = fs::read_to_string(root.join(LIST)).with_context(|| format!("can't read {LIST}"))?;
    Ok(toml::from_str::<List>(&text).with_context(|| LIST.to_owned())?.output)
}

fn file(root: &Path, name: &str) -> PathBuf {
    root.join(KEPT).join(format!("{name}.ansi"))
}

/// Runs all, and keeps what they print.
///
/// # Errors
/// One fails, or its file can't be written.
pub(crate) fn write(root: &Path) -> anyhow::Result<String> {
    let entries = entries(root)?;
    fs::create_dir_all(root.join(KEPT)).with_context(|| format!("can't make {KEPT}"))?;
    for entry in &entries {
        let path = file(root, &entry.name);
        fs::write(&path, printed(root, entry)?).with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(format!("{} outputs are in {KEPT}", entries.len()))
}

/// Runs all again, and what the lessons say is printed.
///
/// # Errors
/// One prints something else than is kept, or than its lesson shows.
pub(crate) fn check(root: &Path) -> anyhow::Result<String> {
    let entries = entries(root)?;
    let mut stale = String::new();
    for entry in &entries {
        let path = file(root, &entry.name);
        let kept = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
        let now = printed(root, entry)?;
        if let Some(line) = first_difference(&kept, &now) {
            let _ = writeln!(
                stale,
                "{KEPT}/{}.ansi: `{}` prints something else now, from line {line}",
                entry.name, entry.command
            );
        }
    }
    let mut shown = 0;
    for lesson in lessons(root)? {
        for (command, text) in examples(&source::read(root, &lesson)?) {
            shown += 1;
            if command.starts_with(TESTS) {
                if let Some(wrong) = wrong_tests(&text, &listed(root, &command)?) {
                    let _ = writeln!(stale, "{lesson}: `{command}` does not print `{wrong}` there");
                }
                continue;
            }
            let entry = Entry { name: lesson.clone(), command, code: 0 };
            let now = strip_str(&printed(root, &entry)?).to_string();
            if let Err(line) = matches(&text, &now) {
                let _ = writeln!(stale, "{lesson}: `{}` does not print `{line}` there", entry.command);
            }
        }
    }
    ensure!(
        stale.is_empty(),
        "{stale}`cargo xtask output` keeps anew what is printed; a lesson is mended by hand"
    );
    Ok(format!("{} outputs, and {shown} of the lessons, are what the programs print", entries.len()))
}

fn lessons(root: &Path) -> anyhow::Result<Vec<String>> {
    let course = course::syllabus::Course::read(root)?;
    Ok(course.modules.iter().map(|module| format!("modules/{}/README.md", module.folder)).collect())
}

/// How a command starts that runs a module's checks.
const TESTS: &str = "cargo test -p m";

/// A lesson's commands that run a module's program or its checks, each with what it is said to print.
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

/// The checks that a command runs.
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

/// What is shown of checks that are all right, and isn't so: their number, or a name. What is ignored depends on the machine.
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

/// What a command prints, on both of its outputs one behind the other, in a terminal's colours. A module's program is the solved one. Times are those of the
/// virtual GPU, which are the same on every run.
fn printed(root: &Path, entry: &Entry) -> anyhow::Result<String> {
    let mut words = entry.command.split_whitespace().map(|word| match word.strip_prefix('m') {
        Some(rest) if rest.starts_with("0") => format!("s{rest}"),
        _ => word.to_owned(),
    });
    ensure!(words.next().as_deref() == Some("cargo"), "`{}` is no command of cargo", entry.command);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    match words.next().as_deref() {
        Some("run") => command.args(["run", "--quiet"]),
        Some("course") => command.args(["run", "--quiet", "--package", "course", "--"]),
        _ => bail!("`{}` is neither `cargo run` nor `cargo course`", entry.command),
    };
    let output = command
        .args(words)
        .current_dir(root)
        .envs([("CLICOLOR_FORCE", "1"), ("LAB_TIER", "virtual"), ("RUST_BACKTRACE", "0")])
        .output()
        .with_context(|| format!("can't run `{}`", entry.command))?;
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(entry.code),
        "`{}` ended with {}, not with exit code {}:\n{said}",
        entry.command,
        output.status,
        entry.code
    );
    Ok(without_addresses(&said))
}

/// `0x7f…` without its digits: addresses differ on each run.
fn without_addresses(text: &str) -> String {
    let mut parts = text.split("0x");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + "0x…" + part.trim_start_matches(|char: char| char.is_ascii_hexdigit())
    })
}

/// The first line, from 1, in which two texts differ.
fn first_difference(one: &str, other: &str) -> Option<usize> {
    let (mut one, mut other) = (one.lines(), other.lines());
    (1..).find_map(|line| match (one.next(), other.next()) {
        (None, None) => Some(None),
        (a, b) if a.map(str::trim_end) != b.map(str::trim_end) => Some(Some(line)),
        _ => None,
    })?
}

/// Whether a program printed what a lesson shows: `…` alone stands for any lines, and within a line for any words.
///
/// # Errors
/// The line that wasn't printed.
fn matches(shown: &str, printed: &str) -> Result<(), String> {
    let mut printed = printed.lines().map(str::trim_end);
    let mut any = false;
    for line in shown.lines().map(str::trim_end) {
        if line == "…" {
            any = true;
            continue;
        }
        let is_it = |said: &str| is_like(line, said);
        let found = if any { printed.any(is_it) } else { printed.next().is_some_and(is_it) };
        if !found {
            return Err(line.to_owned());
        }
        any = false;
    }
    Ok(())
}

/// Whether a line is as shown, where each `…` stands for anything.
fn is_like(shown: &str, line: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(part) = last.replace(part) {
            let Some((_, behind)) = rest.split_once(part) else { return false };
            rest = behind;
        }
    }
    last.map_or(rest.is_empty(), |last| rest.ends_with(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ellipsis_stands_for_any_lines_and_for_the_rest_of_one() {
        let printed = "tier: virtual\na\nb\nc\nthe end\n";
        assert_eq!(matches("tier: …\na\n…\nthe end\n", printed), Ok(()));
        assert_eq!(matches("tier: …\n…\nno end\n", printed), Err("no end".to_owned()));
        assert_eq!(matches("a\n", printed), Err("a".to_owned()));
        assert!(is_like("GPU 0:  …, elements 0..25…", "GPU 0:  H100, elements 0..25000"));
        assert!(is_like("a … c … e", "a b c d e") && !is_like("a … c", "a b d") && !is_like("a", "ab"));
    }

    #[test]
    fn an_example_is_a_command_with_what_stands_below() {
        let lesson = "\n```console\n$ cargo run -p m01_init\n```\n```text\nx\ny\n```\n\n```console\n$ ls\n```\n```text\nz\n```\n";
        assert_eq!(examples(lesson), [("cargo run -p m01_init".to_owned(), "x\ny".to_owned())]);
    }

    #[test]
    fn a_number_or_a_name_of_checks_that_is_wrong_is_told() {
        let listed = ["a::b", "a::c"].map(str::to_owned);
        let shown =
            "running 2 tests\ntest a::b ... ok\n…\n\ntest result: ok. 1 passed; 0 failed; 1 ignored\n";
        assert_eq!(wrong_tests(shown, &listed), None);
        assert_eq!(wrong_tests(shown, &listed[..1]), Some("running 2 tests"));
        assert_eq!(wrong_tests("test a::d ... ok", &listed), Some("test a::d ... ok"));
        let result = "test result: ok. 2 passed; 0 failed; 1 ignored";
        assert_eq!(wrong_tests(result, &listed), Some(result));
    }

    #[test]
    fn the_first_line_that_differs_is_told() {
        assert_eq!(first_difference("a\nb \n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\n", "a\n"), Some(2));
    }
}
