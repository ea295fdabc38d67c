//! What the streams of a check did, kept for whoever shows the verdict: a file for each check, in the folder of `LAB_TIMELINES`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::tier::whose_times;
use crate::timeline::{Chart, Row, chart_of_trace, last_spans};

/// Names the folder.
const FOLDER: &str = "LAB_TIMELINES";
/// Names the file to which the virtual GPU writes what ran when.
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
    /// Lets the checks of a test program keep their timelines in `folder`, and deletes what is in it.
    ///
    /// # Errors
    /// The folder can't be emptied.
    pub fn keep_in(folder: &Path, command: &mut Command) -> anyhow::Result<()> {
        let emptied = match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => std::fs::create_dir_all(folder),
        };
        emptied.with_context(|| format!("can't empty {}", folder.display()))?;
        command.env(FOLDER, folder);
        Ok(())
    }

    /// The timeline that a check kept in `folder`, if it kept one.
    pub fn of(folder: &Path, check: &str) -> Option<Chart> {
        let text = std::fs::read_to_string(file(folder, check)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Keeps the spans that the check of this process measured, if it measured any and `LAB_TIMELINES` names a folder.
    ///
    /// # Errors
    /// The file can't be written, or what the driver answers.
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

    /// Lets a check's process trace its virtual GPUs, unless the caller traces them to a file of their own.
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

    /// Keeps the processes that a check starts from writing to the check's own trace.
    pub(super) fn untraced(command: &mut Command) {
        let is_own = |trace: PathBuf, folder: PathBuf| trace.parent() == Some(&folder);
        let [trace, folder] = [TRACE, FOLDER].map(|name| std::env::var_os(name).map(PathBuf::from));
        if trace.zip(folder).is_some_and(|(trace, folder)| is_own(trace, folder)) {
            command.env_remove(TRACE);
        }
    }
}

impl Traced {
    /// Keeps what the streams did, unless the check kept what it measured itself. The trace is deleted.
    pub(super) fn keep(self) {
        let Self { check, folder, trace } = self;
        // No trace is written on a real GPU, or by a process that was ended.
        if !file(&folder, &check).exists()
            && let Ok(Some(chart)) = chart_of_trace(&trace, &check)
        {
            // Without a picture of it, the verdict is still the verdict.
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
