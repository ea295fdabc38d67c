//! A line in the terminal that shows which check is running, and for how long.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Shows what is running, on standard error, until it is dropped. If standard error is not a terminal, prints one line
/// at the start.
pub(crate) struct UnderWay {
    line: Option<(Sender<String>, JoinHandle<()>)>,
}

impl UnderWay {
    /// Starts by showing that an exercise's checks are being built.
    pub(crate) fn new(id: &str) -> Self {
        if !std::io::stderr().is_terminal() {
            eprintln!("checking {id} …");
            return Self { line: None };
        }
        let (sender, what) = channel();
        let mut shown = format!("building {id}");
        let show = move || {
            let mut since = Instant::now();
            loop {
                eprint!("{}", line(&shown, since.elapsed()));
                let _ = std::io::stderr().flush();
                match what.recv_timeout(Duration::from_secs(1)) {
                    Ok(next) => (shown, since) = (next, Instant::now()),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            eprint!("\r\x1b[K");
        };
        Self { line: Some((sender, std::thread::spawn(show))) }
    }

    /// Shows that a check is running.
    pub(crate) fn running(&self, check: &str) {
        if let Some((sender, _)) = &self.line {
            // The thread that prints the line ends when this value is dropped.
            let _ = sender.send(format!("checking {check}"));
        }
    }
}

/// Formats what is running and, after a second, for how long. The text replaces the previous line.
fn line(what: &str, since: Duration) -> String {
    match since.as_secs() {
        0 => format!("\r\x1b[K{what} …"),
        seconds => format!("\r\x1b[K{what} … {seconds} s"),
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some((sender, line)) = self.line.take() {
            drop(sender);
            // The thread can't panic.
            let _ = line.join();
        }
    }
}
