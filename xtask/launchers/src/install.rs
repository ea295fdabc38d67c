//! Finds installed programs and their versions.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context;

/// Where Debian installs daemons. Only root has these folders in `PATH`.
const DAEMONS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Returns the path of an installed program.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(DAEMONS.map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// Returns the path of a program that must be installed.
///
/// # Errors
/// Fails if it is not installed.
pub(crate) fn installed(name: &str) -> anyhow::Result<PathBuf> {
    find(name).with_context(|| format!("{name} is not installed"))
}

/// Returns the first of these programs whose text about its version contains `words`, and its version.
pub(crate) fn find_version(names: &[&str], option: &str, words: &[&str]) -> Option<(PathBuf, String)> {
    names.iter().filter_map(|name| find(name)).find_map(|program| {
        let output = Command::new(&program).arg(option).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_it = words.iter().any(|words| text.contains(words));
        let version = text.split_whitespace().find(|word| {
            word.contains('.') && word.split('.').next().is_some_and(|major| major.parse::<u32>().is_ok())
        });
        is_it.then(|| Some((program.clone(), version?.to_owned())))?
    })
}
