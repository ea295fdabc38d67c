//! The events that the loop waits for: keys, saved files, and finished checks.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use anyhow::Context;
use course::checks::Verdict;
use crossterm::event::{self, KeyCode, KeyEventKind, KeyModifiers};
use notify::{RecursiveMode, Watcher};

/// An event that the loop waits for.
pub(super) enum Happened {
    Key(KeyCode),
    /// Ctrl-C or Ctrl-D was pressed.
    Quit,
    /// Ctrl-Z was pressed.
    Suspend,
    /// The terminal was resized.
    Resized,
    /// A file of a student's module was written.
    Saved(PathBuf),
    /// One of the checks of this number is running.
    Running(usize, String),
    /// The check of this number is finished.
    Checked(usize, anyhow::Result<Verdict>),
    /// The keyboard or the watcher is gone.
    Lost(anyhow::Error),
}

/// Watches the folders rather than the files, because many editors save by replacing the file with a new one.
pub(super) fn watcher(folder: &Path, happened: Sender<Happened>) -> anyhow::Result<impl Watcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let events = match event {
            Ok(event) if event.kind.is_access() => return,
            Ok(event) => {
                event.paths.into_iter().filter(|path| is_source(path)).map(Happened::Saved).collect()
            }
            Err(error) => vec![Happened::Lost(error.into())],
        };
        // The receiver is gone once the student has quit.
        let _ = events.into_iter().try_for_each(|event| happened.send(event));
    })?;
    watcher
        .watch(folder, RecursiveMode::Recursive)
        .with_context(|| format!("can't watch {}", folder.display()))?;
    Ok(watcher)
}

/// Returns whether this is a Rust source: editors also write their own files next to it, such as `.#devices.rs`.
fn is_source(path: &Path) -> bool {
    let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    !is_hidden && path.extension().is_some_and(|extension| extension == "rs")
}

/// Sends every key, until the receiver is gone.
pub(super) fn read_keys(happened: Sender<Happened>) {
    std::thread::spawn(move || {
        loop {
            let event = match event::read() {
                Ok(event::Event::Key(key)) if key.kind != KeyEventKind::Release => {
                    match (key.modifiers.contains(KeyModifiers::CONTROL), key.code) {
                        (true, KeyCode::Char('c' | 'd')) => Happened::Quit,
                        (true, KeyCode::Char('z')) => Happened::Suspend,
                        (true, _) => continue,
                        (false, code) => Happened::Key(code),
                    }
                }
                Ok(event::Event::Resize(..)) => Happened::Resized,
                Ok(_) => continue,
                Err(error) => Happened::Lost(error.into()),
            };
            let is_lost = matches!(event, Happened::Lost(_));
            if happened.send(event).is_err() || is_lost {
                return;
            }
        }
    });
}
