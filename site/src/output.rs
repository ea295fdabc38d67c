//! Recorded program output, with terminal colors. Pages show what the programs really print, and a check runs the
//! programs again.

mod lesson;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anstream::adapter::strip_str;
use anyhow::{Context, bail, ensure};
use course::answers::{Change, compare};
use rayon::prelude::*;
use serde::Deserialize;
use snapbox::Data;
use snapbox::filter::NormalizeToExpected;

/// The list of programs to run.
const LIST: &str = "site/book/output.toml";
/// The folder for the programs' recorded output.
const KEPT: &str = "site/book/output";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    output: Vec<Entry>,
}

/// A command, and the name that pages use for it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    command: String,
    /// The expected exit code.
    #[serde(default)]
    code: i32,
}

/// A command and its output.
pub(crate) struct Output {
    pub(crate) name: String,
    pub(crate) command: String,
    /// The output with its colors, as ANSI escape codes.
    pub(crate) styled: String,
}

impl Output {
    /// Returns the output without colors.
    pub(crate) fn text(&self) -> String {
        strip_str(&self.styled).to_string()
    }
}

/// All outputs, keyed by name.
pub(crate) struct Outputs(BTreeMap<String, Output>);

impl Outputs {
    /// Reads the recorded outputs.
    ///
    /// # Errors
    /// Fails if one of them is missing.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let read = |entry: Entry| {
            let path = file(root, &entry.name);
            let styled = fs::read_to_string(&path)
                .with_context(|| format!("can't read {}; `cargo xtask output` writes it", path.display()))?;
            Ok((entry.name.clone(), Output { name: entry.name, command: entry.command, styled }))
        };
        Ok(Self(entries(root)?.into_iter().map(read).collect::<anyhow::Result<_>>()?))
    }

    /// Returns the output with that name.
    ///
    /// # Errors
    /// Fails if the name isn't in the list.
    pub(crate) fn get(&self, name: &str) -> anyhow::Result<&Output> {
        let known = || self.0.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        self.0.get(name).with_context(|| format!("{LIST} has no output `{name}`; it has {}", known()))
    }

    /// Iterates over all outputs, sorted by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Output> {
        self.0.values()
    }

    /// Returns a command's output. Arguments at the end of the command may be omitted.
    ///
    /// # Errors
    /// Fails if the command isn't in the list.
    pub(crate) fn of_command(&self, command: &str) -> anyhow::Result<&Output> {
        let starts = |output: &&Output| {
            output.command.strip_prefix(command).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        self.0.values().find(starts).with_context(|| format!("{LIST} has no output for `{command}`"))
    }
}

fn entries(root: &Path) -> anyhow::Result<Vec<Entry>> {
    let text = fs::read_to_string(root.join(LIST)).with_context(|| format!("can't read {LIST}"))?;
    Ok(toml::from_str::<List>(&text).with_context(|| LIST.to_owned())?.output)
}

fn file(root: &Path, name: &str) -> PathBuf {
    root.join(KEPT).join(format!("{name}.ansi"))
}

/// Runs all commands, and records their output.
///
/// # Errors
/// Fails if a command fails, or if its file can't be written.
pub(crate) fn write(root: &Path) -> anyhow::Result<String> {
    let entries = entries(root)?;
    fs::create_dir_all(root.join(KEPT)).with_context(|| format!("can't make {KEPT}"))?;
    for entry in &entries {
        let path = file(root, &entry.name);
        fs::write(&path, printed(root, entry)?).with_context(|| format!("can't write {}", path.display()))?;
    }
    Ok(format!("wrote {} outputs to {KEPT}", entries.len()))
}

/// Runs all commands again, as well as the commands in the lessons.
///
/// # Errors
/// Fails if a command's output differs from the record or from what its lesson shows; the error contains the
/// difference.
pub(crate) fn check(root: &Path) -> anyhow::Result<String> {
    let entries = entries(root)?;
    let stale = |entry: &Entry| -> anyhow::Result<Option<String>> {
        let path = file(root, &entry.name);
        let kept = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
        let difference = difference(&kept, &printed(root, entry)?);
        let Entry { name, command, .. } = entry;
        Ok(difference.map(|difference| format!("{KEPT}/{name}.ansi: `{command}` differs\n{difference}\n")))
    };
    let (stale, lessons) = rayon::join(|| in_parallel(&entries, stale), || lesson::check(root));
    let (shown, wrong) = lessons?;
    let stale = stale? + &wrong;
    ensure!(
        stale.is_empty(),
        "{stale}`cargo xtask output` updates the recorded output; edit lessons by hand"
    );
    Ok(format!(
        "{} recorded outputs and {shown} outputs in lessons match what the programs print",
        entries.len()
    ))
}

/// Runs `check` for each item, on all cores, and returns the texts in the order of the items. Each item runs a program that
/// waits much of the time.
fn in_parallel<T: Sync>(
    items: &[T],
    check: impl Fn(&T) -> anyhow::Result<Option<String>> + Send + Sync,
) -> anyhow::Result<String> {
    Ok(items.par_iter().map(check).collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Returns how a text differs from the expected text, in which a line `...` matches any lines, and `[..]` matches
/// anything within a line.
fn difference(expected: &str, actual: &str) -> Option<String> {
    let trimmed = |text: &str| text.lines().map(|line| line.trim_end().to_owned() + "\n").collect::<String>();
    let expected = trimmed(expected);
    let actual = Data::text(trimmed(actual));
    let actual = NormalizeToExpected::new().redact().normalize(actual, &Data::text(&expected)).to_string();
    let sign = |change| match change {
        Change::Removed => "  - ",
        Change::Added => "  + ",
        Change::Same | Change::Gap => "    ",
    };
    let lines =
        compare(&expected, &actual).into_iter().map(|(change, line)| format!("{}{line}\n", sign(change)));
    Some(lines.collect()).filter(|lines: &String| !lines.is_empty())
}

/// Returns what a command prints to standard output and then to standard error, in a terminal's colors. A module's
/// program runs in its solved version. Its times come from the virtual GPU, so they are the same on every run.
fn printed(root: &Path, entry: &Entry) -> anyhow::Result<String> {
    let mut words = entry.command.split_whitespace().map(|word| match word.strip_prefix('m') {
        Some(rest) if rest.starts_with("0") => format!("s{rest}"),
        _ => word.to_owned(),
    });
    ensure!(words.next().as_deref() == Some("cargo"), "`{}` is not a cargo command", entry.command);
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

/// Replaces the digits of each `0x…`, because addresses differ between runs.
fn without_addresses(text: &str) -> String {
    let mut parts = text.split("0x");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + "0x…" + part.trim_start_matches(|char: char| char.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_shown() {
        assert_eq!(difference("a\nb \n", "a\nb\n"), None);
        assert_eq!(difference("a\nb\n", "a\n").unwrap(), "    a\n  - b\n");
        assert_eq!(difference("a [..] c\n...\ne\n", "a b c\nd\nd\ne\n"), None);
        assert_eq!(difference("a [..] c\n...\n", "a b d\n").unwrap(), "  - a [..] c\n  + a b d\n    ...\n");
    }
}
