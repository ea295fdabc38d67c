//! The terminal: single keys, Ctrl-Z, and a screen that is redrawn.

use std::io::Write;

use anyhow::Context;
use crossterm::terminal::{self, Clear, ClearType, disable_raw_mode, enable_raw_mode};
use crossterm::{cursor, execute};

/// A terminal that gives single keys, until this goes.
pub(super) struct RawMode;

impl RawMode {
    pub(super) fn new() -> anyhow::Result<Self> {
        enable_raw_mode().context("this terminal gives no single keys")?;
        Ok(Self)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // There is nothing else to do for a terminal that is gone.
        let _ = disable_raw_mode();
    }
}

/// Stops, as Ctrl-Z stops other programs, until the shell goes on with it.
pub(super) fn suspend() -> anyhow::Result<()> {
    disable_raw_mode()?;
    rustix::process::kill_current_process_group(rustix::process::Signal::TSTP)?;
    Ok(enable_raw_mode()?)
}

/// Columns of the terminal; 80 where it doesn't say.
pub(super) fn columns() -> usize {
    match terminal::size() {
        Ok((columns @ 1.., _)) => usize::from(columns),
        _ => 80,
    }
}

/// Replaces what the terminal shows.
pub(super) fn show(text: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    if std::env::var_os("TERM").is_none_or(|name| name != "dumb") {
        execute!(std::io::stdout(), Clear(ClearType::Purge), Clear(ClearType::All), cursor::MoveTo(0, 0))?;
    }
    out.write_all(text.replace('\n', "\r\n").as_bytes())?;
    out.flush()?;
    Ok(())
}
