//! The terminal: single keys, Ctrl-Z, and redrawing the screen.

use std::io::Write;

use anyhow::Context;
use crossterm::terminal::{self, Clear, ClearType, disable_raw_mode, enable_raw_mode};
use crossterm::{cursor, queue};

/// Puts the terminal into a mode that reports single keys, until this value is dropped.
pub(super) struct RawMode;

impl RawMode {
    pub(super) fn new() -> anyhow::Result<Self> {
        enable_raw_mode().context("this terminal can't report single keys")?;
        Ok(Self)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing left to do.
        let _ = disable_raw_mode();
    }
}

/// Stops this process, as Ctrl-Z stops other programs, until the shell continues it.
pub(super) fn suspend() -> anyhow::Result<()> {
    disable_raw_mode()?;
    // SAFETY: `kill` takes two numbers. 0 means this process's own group, as when a shell's user presses Ctrl-Z.
    if unsafe { libc::kill(0, libc::SIGTSTP) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(enable_raw_mode()?)
}

/// Returns the columns and rows of the terminal, or 80 and 24 if they are unknown.
pub(super) fn size() -> (usize, usize) {
    match terminal::size() {
        Ok((columns @ 1.., rows @ 1..)) => (usize::from(columns), usize::from(rows)),
        _ => (80, 24),
    }
}

/// Replaces the content of the terminal. Each line is overwritten in place to prevent flicker.
pub(super) fn show(text: &str) -> anyhow::Result<()> {
    let is_dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    let mut out = anstream::stdout().lock();
    let mut screen = Vec::new();
    if !is_dumb {
        let rows = size().1;
        if text.lines().count() > rows {
            // Text that doesn't fit scrolls, and nothing from the previous screen may remain above it.
            queue!(screen, Clear(ClearType::Purge), Clear(ClearType::All))?;
        }
        queue!(screen, cursor::MoveTo(0, 0))?;
    }
    for (index, line) in text.split('\n').enumerate() {
        screen.extend_from_slice(if index == 0 { b"" } else { b"\r\n" });
        screen.extend_from_slice(line.as_bytes());
        if !is_dumb {
            queue!(screen, Clear(ClearType::UntilNewLine))?;
        }
    }
    if !is_dumb {
        queue!(screen, Clear(ClearType::FromCursorDown))?;
    }
    out.write_all(&screen)?;
    out.flush()?;
    Ok(())
}
