//! Runs a program in a terminal: a Linux pseudo-terminal with the test at its other end.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

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
        let (keyboard, name) = open_pseudo_terminal().unwrap();
        let own = || OpenOptions::new().read(true).write(true).open(&name).unwrap();
        set_size(&keyboard, size);
        let become_terminal = || {
            // SAFETY: both take only numbers.
            match unsafe { libc::setsid() >= 0 && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0 } {
                true => Ok(()),
                false => Err(std::io::Error::last_os_error()),
            }
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

/// Returns the end of a new terminal at which a person would sit, and the path of the other end.
fn open_pseudo_terminal() -> std::io::Result<(File, String)> {
    let failed = |result: libc::c_int| result != 0;
    let mut name = [0; 64];
    // SAFETY: the first call takes a number. The others take what it returned, and `ptsname_r` writes at most as many
    // bytes as `name` has.
    unsafe {
        let descriptor = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        if descriptor < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let keyboard = File::from_raw_fd(descriptor);
        if failed(libc::grantpt(descriptor))
            || failed(libc::unlockpt(descriptor))
            || failed(libc::ptsname_r(descriptor, name.as_mut_ptr(), name.len()))
        {
            return Err(std::io::Error::last_os_error());
        }
        Ok((keyboard, CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()))
    }
}

pub(crate) fn set_size(terminal: &File, Size { columns, rows }: Size) {
    let size = libc::winsize { ws_row: rows.get(), ws_col: columns.get(), ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the request reads a `winsize`.
    assert_eq!(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &size) }, 0);
}
