//! A program in a terminal: a pseudo-terminal of Linux, with a test at its other end.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// A build may be in between.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Terminal {
    keyboard: File,
    printed: Receiver<Vec<u8>>,
    /// What was printed and not asked for yet, without escape sequences.
    screen: String,
    child: Child,
}

impl Terminal {
    pub(crate) fn run(mut command: Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let own =
            || OpenOptions::new().read(true).write(true).open(OsStr::from_bytes(name.to_bytes())).unwrap();
        let child = command.stdin(own()).stdout(own()).stderr(own()).spawn().unwrap();
        let keyboard = File::from(master);
        let mut screen = keyboard.try_clone().unwrap();
        let (sender, printed) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { keyboard, printed, screen: String::new(), child }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the words are printed, and forgets what came before them.
    #[track_caller]
    pub(crate) fn shows(&mut self, words: &str) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let plain = anstream::adapter::strip_str(&self.screen).to_string();
            if let Some((_, behind)) = plain.split_once(words) {
                self.screen = behind.to_owned();
                return;
            }
            match self.printed.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.screen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout) => panic!("no `{words}` in:\n{plain}"),
                Err(error) => panic!("no `{words}`, {error}:\n{plain}"),
            }
        }
    }

    /// Whether the program ends by itself, and well.
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
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
