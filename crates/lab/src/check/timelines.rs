//! Saves checks' timelines for the program that shows the verdict, in one file per check in the `LAB_TIMELINES` folder.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::calls::VirtualDriver;
use crate::kernels::has_delayed;
use crate::tier::whose_times;
use crate::timeline::{Chart, Row, last_spans, recorded};

/// The variable with the folder.
const FOLDER: &str = "LAB_TIMELINES";

/// Checks' timelines.
#[derive(Debug)]
pub enum Timelines {}

impl Timelines {
    /// Makes a test program's checks save their timelines in `folder`, after emptying it.
    ///
    /// # Errors
    /// Fails if the folder can't be emptied.
    pub fn keep_in(folder: &Path, command: &mut Command) -> anyhow::Result<()> {
        let emptied = match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => std::fs::create_dir_all(folder),
        };
        emptied.with_context(|| format!("can't empty {}", folder.display()))?;
        command.env(FOLDER, folder);
        Ok(())
    }

    /// Returns a check's timeline from `folder`, if the check saved one.
    pub fn of(folder: &Path, check: &str) -> Option<Chart> {
        let text = std::fs::read_to_string(file(folder, check)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Makes the virtual GPU record what runs and when, if `LAB_TIMELINES` names a folder. The first long delay calls it:
    /// recording takes a tenth of the time of a check, and checks without a delay have no timeline to show.
    ///
    /// # Errors
    /// Fails if the virtual driver can't record operations.
    pub(crate) fn record() -> anyhow::Result<()> {
        if std::env::var_os(FOLDER).is_none() {
            return Ok(());
        }
        VirtualDriver::find()?.map_or(Ok(()), |driver| driver.record_operations())
    }

    /// Saves the timeline of this process's check, if `LAB_TIMELINES` names a folder: the spans that the check
    /// measured, or else what the virtual GPU recorded. Only checks that delay a stream have a recorded timeline.
    ///
    /// # Errors
    /// Fails if the file can't be written, or if a driver call fails.
    pub(super) fn keep(check: &str) -> anyhow::Result<()> {
        let Some(folder) = std::env::var_os(FOLDER) else { return Ok(()) };
        let (names, rows) = match (last_spans(), VirtualDriver::find()?) {
            (Some(spans), _) => (vec![], vec![Row { spans, uncertainty: 0.0 }]),
            (None, Some(driver)) if has_delayed() => match recorded(driver.operations()?) {
                Some(rows) => {
                    rows.into_iter().map(|(name, spans)| (name, Row { spans, uncertainty: 0.0 })).unzip()
                }
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        let note = format!("Times are {}.", whose_times()?);
        write(Path::new(&folder), check, &Chart { title: check.to_owned(), note, rows, names })
    }
}

fn file(folder: &Path, check: &str) -> PathBuf {
    folder.join(format!("{check}.json"))
}

fn write(folder: &Path, check: &str, chart: &Chart) -> anyhow::Result<()> {
    let path = file(folder, check);
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&path, serde_json::to_string(chart)?))
        .with_context(|| format!("can't write {}", path.display()))
}
