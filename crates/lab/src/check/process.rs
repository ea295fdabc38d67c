//! The parent's side: starts a check's process, waits for it up to a timeout, and reports its result.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context;

use super::failure::failure;
use super::order::{ORDER, Order};
use super::verdict::Record;

/// The result of a check's process.
pub(super) struct Ended {
    /// Why the check failed; `None` if it passed.
    pub(super) failure: Option<String>,
    /// The output on both streams, in order; empty if output isn't captured.
    pub(super) output: String,
}

/// Runs one check in a new process of this executable, and kills the process after `timeout`.
///
/// # Errors
/// Fails if the process can't be started.
pub(super) fn run(check: &str, timeout: Duration, capture: bool) -> anyhow::Result<Ended> {
    let mut command = Command::new(std::env::current_exe().context("can't find this executable")?);
    command.env(ORDER, Order::text(check));
    // The parent finds reports in the output by their first words, which color codes would break up.
    command.env_remove("CLICOLOR_FORCE");
    // With its own process group, everything that the check starts ends with it.
    command.process_group(0);
    let (verdict, verdict_writer) = std::io::pipe().context("a pipe")?;
    command.stdin(verdict_writer);
    let output = if capture {
        let (output, writer) = std::io::pipe().context("a pipe")?;
        command.stdout(writer.try_clone().context("a pipe")?).stderr(writer);
        Some(collect(output))
    } else {
        None
    };
    let verdict = collect(verdict);
    let mut child = command.spawn().context("can't start a process for the check")?;
    // The command holds this process's copies of the write ends, and the readers reach the end only once these copies
    // are closed.
    drop(command);

    let in_time = wait_in_background(&child).recv_timeout(timeout).is_ok();
    end_group(&child);
    let status = child.wait().context("the check's process")?;
    let records = Record::read_all(&finish(&verdict));
    let output = output.map_or_else(String::new, |output| {
        let bytes = finish(&output);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    Ok(Ended { failure: failure(&records, status, (!in_time).then_some(timeout)), output })
}

/// Reads a pipe to its end in the background.
fn collect(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut chunk = vec![0; 1 << 16];
        while let Ok(length @ 1..) = pipe.read(&mut chunk) {
            if sender.send(chunk[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Returns everything that a pipe delivered. A process that left the group may hold the pipe open forever; in that
/// case, the result ends after one second without data.
fn finish(pipe: &Receiver<Vec<u8>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Ok(chunk) = pipe.recv_timeout(Duration::from_secs(1)) {
        bytes.extend(chunk);
    }
    bytes
}

/// Reports that the process has ended, without reaping it. Until it is reaped, no other process can get its number, so
/// it can be killed without a race.
fn wait_in_background(child: &Child) -> Receiver<()> {
    let (sender, receiver) = channel();
    let pid = child.id();
    thread::spawn(move || {
        loop {
            // SAFETY: `info` is plain data, so zeros are a valid value, and `waitid` writes only into it.
            let result = unsafe {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                libc::waitid(libc::P_PID, pid, &mut info, libc::WEXITED | libc::WNOWAIT)
            };
            if result == 0 || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
                break;
            }
        }
        let _ = sender.send(());
    });
    receiver
}

/// Ends the check's process and the processes it started. The check's process hasn't been reaped yet, so no other
/// process has its number.
fn end_group(child: &Child) {
    if let Ok(group) = i32::try_from(child.id()) {
        // SAFETY: `kill` takes two numbers. `process_group(0)` created the group for this child.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
}
