//! Keeps the timelines of checks for the program that shows the verdict, in one file per check in the `LAB_TIMELINES`
//! folder.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::tier::whose_times;
use crate::timeline::{Chart, Row, chart_of_trace, last_spans};

/// The variable with the folder.
const FOLDER: &str = "LAB_TIMELINES";
/// The variable with the file to which the virtual GPU writes its trace.
const TRACE: &str = "VIRTUAL_GPU_TRACE";

/// The timelines of checks.
#[derive(Debug)]
pub enum Timelines {}

/// A check whose process writes a trace as it ends.
pub(super) struct Traced {
    check: String,
    folder: PathBuf,
    trace: PathBuf,
}

impl Timelines {
    /// Makes the checks of a test program keep their timelines in `folder`, after emptying it.
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

    /// Returns the timeline of a check in `folder`, if the check kept one.
    pub fn of(folder: &Path, check: &str) -> Option<Chart> {
        let text = std::fs::read_to_string(file(folder, check)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Keeps the spans that this process's check measured, if it measured any and `LAB_TIMELINES` names a folder.
    ///
    /// # Errors
    /// Fails if the file can't be written, or with the driver's error.
    pub(super) fn keep(check: &str) -> anyhow::Result<()> {
        let (Some(folder), Some(spans)) = (std::env::var_os(FOLDER), last_spans()) else { return Ok(()) };
        let chart = Chart {
            title: check.to_owned(),
            note: format!("Times are {}.", whose_times()?),
            rows: vec![Row { spans, uncertainty: 0.0 }],
            names: vec![],
        };
        write(Path::new(&folder), check, &chart)
    }

    /// Makes a check's process trace its virtual GPUs, unless `VIRTUAL_GPU_TRACE` already names another file.
    pub(super) fn trace(check: &str, command: &mut Command) -> Option<Traced> {
        let folder = PathBuf::from(std::env::var_os(FOLDER)?);
        if std::env::var_os(TRACE).is_some() {
            return None;
        }
        // Without the folder, the driver would refuse to start.
        std::fs::create_dir_all(&folder).ok()?;
        let trace = folder.join(format!("{check}.trace"));
        command.env(TRACE, &trace);
        Some(Traced { check: check.to_owned(), folder, trace })
    }

    /// Stops the processes that a check starts from writing to the check's own trace.
    pub(super) fn untraced(command: &mut Command) {
        let is_own = |trace: PathBuf, folder: PathBuf| trace.parent() == Some(&folder);
        let [trace, folder] = [TRACE, FOLDER].map(|name| std::env::var_os(name).map(PathBuf::from));
        if trace.zip(folder).is_some_and(|(trace, folder)| is_own(trace, folder)) {
            command.env_remove(TRACE);
        }
    }
}

impl Traced {
    /// Keeps the traced timeline, unless the check kept a timeline that it measured itself. Deletes the trace.
    pub(super) fn keep(self) {
        let Self { check, folder, trace } = self;
        // On a real GPU, or when a process was killed, there is no trace.
        if !file(&folder, &check).exists()
            && let Ok(Some(chart)) = chart_of_trace(&trace, &check)
        {
            // The verdict stands even if its timeline can't be written.
            let _ = write(&folder, &check, &chart);
        }
        let _ = std::fs::remove_file(&trace);
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
