//! Saves how long each check takes, for the program that shows it. The test program's output doesn't say it: several
//! checks run at a time, and it announces each of them only when it has ended.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

/// The variable with the file.
const FILE: &str = "LAB_DURATIONS";

/// Checks' durations.
#[derive(Debug)]
pub enum Durations {}

impl Durations {
    /// Makes a test program save its checks' durations in `file`, after emptying it.
    ///
    /// # Errors
    /// Fails if the file can't be written.
    pub fn keep_in(file: &Path, command: &mut Command) -> anyhow::Result<()> {
        File::create(file).with_context(|| format!("can't write {}", file.display()))?;
        command.env(FILE, file);
        Ok(())
    }

    /// Returns each check's duration from `file`, in seconds.
    ///
    /// # Errors
    /// Fails if the file can't be read.
    pub fn read(file: &Path) -> anyhow::Result<BTreeMap<String, f64>> {
        let text = std::fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
        Ok(text.lines().filter_map(parsed).collect())
    }

    /// Saves a check's duration if `LAB_DURATIONS` names a file. One that can't be saved changes no verdict.
    pub(super) fn save(check: &str, took: Duration) {
        let Some(file) = std::env::var_os(FILE) else { return };
        // One write for each line, so that the lines of several checks can't mix.
        let line = format!("{:.3} {check}\n", took.as_secs_f64());
        let file = OpenOptions::new().append(true).open(file);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

fn parsed(line: &str) -> Option<(String, f64)> {
    let (seconds, check) = line.split_once(' ')?;
    Some((check.to_owned(), seconds.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::parsed;

    #[test]
    fn a_line_has_the_seconds_and_the_name() {
        assert_eq!(parsed("1.250 ring::forwards"), Some(("ring::forwards".to_owned(), 1.25)));
        assert_eq!(parsed("ring::forwards"), None);
    }
}
