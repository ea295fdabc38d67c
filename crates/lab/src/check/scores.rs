//! Saves the scores of checks for the program that shows them, in one file per check in the `LAB_SCORES` folder.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::Context;

use crate::score::Score;

/// The variable with the folder.
const FOLDER: &str = "LAB_SCORES";

/// Checks' scores.
#[derive(Debug)]
pub enum Scores {}

impl Scores {
    /// Makes a test program save the scores of its checks in `folder`, after emptying it.
    ///
    /// # Errors
    /// Fails if the folder can't be emptied.
    pub fn keep_in(folder: &Path, command: &mut Command) -> anyhow::Result<()> {
        let emptied = match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => fs::create_dir_all(folder),
        };
        emptied.with_context(|| format!("can't empty {}", folder.display()))?;
        command.env(FOLDER, folder);
        Ok(())
    }

    /// Returns a check's score from `folder`, if the check passed and has one.
    pub fn of(folder: &Path, check: &str) -> Option<Score> {
        let text = fs::read_to_string(folder.join(format!("{check}.json"))).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Saves a check's score, if `LAB_SCORES` names a folder.
    ///
    /// # Errors
    /// Fails if the file can't be written.
    pub(super) fn keep(check: &str, score: &Score) -> anyhow::Result<()> {
        let Some(folder) = std::env::var_os(FOLDER) else { return Ok(()) };
        let path = Path::new(&folder).join(format!("{check}.json"));
        fs::write(&path, serde_json::to_string(score)?)
            .with_context(|| format!("can't write {}", path.display()))
    }
}
