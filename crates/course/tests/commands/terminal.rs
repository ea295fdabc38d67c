//! Runs a program in a terminal: a Linux pseudo-terminal with the test at its other end.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The time limit for a wait, which may include a build.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// The columns and rows of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: NonZero<u16>,
    pub(crate) rows: NonZero<u16>,
}

impl Size {
    pub(crate) const SMALL: Self = Self::of(80, 24);

    pub(crate) const fn of(columns: u16, rows: u16) -> Self {
        Self { columns: NonZero::new(columns).unwrap(), rows: NonZero::new(rows).unwrap() }
    }
}

pub(crate) struct Terminal {
    pub(crate) keyboard: File,
    printed: Receiver<Vec<u8>>,
    /// Printed text that the test has not waited for yet.
    pub(crate) text: String,
    /// What a person sees on the screen.
    pub(crate) screen: vt100::Parser,
    child: Child,
}

impl Terminal {
    pub(crate) fn of_size(mut command: Command, size: Size) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let own =
            || OpenOptions::new().read(true).write(true).open(OsStr::from_bytes(name.to_bytes())).unwrap();
        let keyboard = File::from(master);
        set_size(&keyboard, size);
        let become_terminal = || {
            setsid()?;
            Ok(ioctl_tiocsctty(std::io::stdin())?)
        };
        // SAFETY: both are plain system calls, which are allowed after a fork.
        unsafe { command.pre_exec(become_terminal) };
        let child = command.stdin(own()).stdout(own()).stderr(own()).spawn().unwrap();
        let mut printer = keyboard.try_clone().unwrap();
        let (sender, printed) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = printer.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        let screen = vt100::Parser::new(size.rows, size.columns, 0);
        Self { keyboard, printed, text: String::new(), screen, child }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the words are printed, and discards everything before them.
    #[track_caller]
    pub(crate) fn shows(&mut self, words: &str) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let plain = anstream::adapter::strip_str(&self.text).to_string();
            if let Some((_, behind)) = plain.split_once(words) {
                self.text = behind.to_owned();
                return;
            }
            if let Err(error) = self.read(deadline.saturating_duration_since(Instant::now())) {
                panic!("no `{words}`, {error}:\n{plain}");
            }
        }
    }

    pub(crate) fn read(&mut self, timeout: Duration) -> Result<(), RecvTimeoutError> {
        let bytes = self.printed.recv_timeout(timeout)?;
        self.text.push_str(&String::from_utf8_lossy(&bytes));
        self.screen.process(&bytes);
        Ok(())
    }

    /// Returns whether the program ends by itself and succeeds.
    pub(crate) fn ends_well(&mut self) -> bool {
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn set_size(terminal: &File, Size { columns, rows }: Size) {
    let size = Winsize { ws_row: rows.get(), ws_col: columns.get(), ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}
