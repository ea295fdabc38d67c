//! The parent's side: starts a check's process, waits for it up to a timeout, and judges it.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context;

use super::failure::{describe, failure};
use super::function::with_function;
use super::order::{ONE_CHECK, Order};
use super::printed::printed_after;
use super::verdict::Record;
use crate::explain::without_substitutes;

/// What became of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    /// It passed, and printed this.
    Passed(String),
    /// It failed; the message explains why.
    Failed(String),
    /// It can't run here, for this reason.
    Ignored(String),
    /// It could not be run, for this reason. That says nothing about the answer.
    Unable(String),
}

/// How to run a check's process.
pub struct Run<'a> {
    /// Starts the test program; the judge adds the argument. The program must run in its module's folder.
    pub command: Command,
    /// The check's name.
    pub check: &'a str,
    /// How long it may take, until it and all processes of its group are killed.
    pub timeout: Duration,
    /// Whether its output is collected, rather than let through.
    pub capture: bool,
    /// The function to call with the process's number when the process has started.
    pub started: &'a dyn Fn(u32),
}

/// The result of a check's process.
struct Ended {
    records: Vec<Record>,
    /// Why the check failed; `None` if it passed.
    failure: Option<String>,
    /// How the process ended.
    how: String,
    /// Whether the process was killed because its time was up.
    is_too_late: bool,
    /// The output on both streams, in order; empty if output isn't captured.
    output: String,
}

/// Runs one check of a test program in a process of its own, and judges it by what its harness reports, never by the
/// process's exit status or output alone.
pub fn judge(run: Run<'_>) -> Judged {
    let folder = run.command.get_current_dir().map(PathBuf::from);
    let folder = folder.or_else(|| std::env::current_dir().ok()).unwrap_or_default();
    let ended = match end(run) {
        Ok(ended) => ended,
        Err(error) => return Judged::Unable(format!("{error:#}")),
    };
    let mut functions = Vec::new();
    for record in &ended.records {
        match record {
            Record::Ignored(reason) => return Judged::Ignored(reason.clone()),
            Record::Unable(reason) => return Judged::Unable(reason.clone()),
            Record::Calls(names) => functions.extend(names.split(',').filter(|name| !name.is_empty())),
            _ => {}
        }
    }
    if ended.records.is_empty() && !ended.is_too_late {
        let said = ended.output.trim();
        let said = if said.is_empty() { String::new() } else { format!(":\n{said}") };
        return Judged::Unable(format!("its process ended with {} before the check began{said}", ended.how));
    }
    match ended.failure {
        None => Judged::Passed(ended.output),
        Some(failure) => {
            let printed = printed_after(&failure, &ended.output);
            Judged::Failed(without_substitutes(&with_function(&functions, &failure, &folder)) + &printed)
        }
    }
}

/// How long to wait before each further attempt at what the machine failed to do. Linking a library takes about a second.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];

/// Does something up to three times, until the machine doesn't fail to do it. Returns the last result.
pub fn try_again<T>(attempt: impl Fn() -> T, has_failed: impl Fn(&T) -> bool) -> T {
    for pause in PAUSES {
        let result = attempt();
        if !has_failed(&result) {
            return result;
        }
        thread::sleep(pause);
    }
    attempt()
}

/// Runs a check's process to its end.
///
/// # Errors
/// Fails if the process can't be started.
fn end(run: Run<'_>) -> anyhow::Result<Ended> {
    let Run { mut command, check, timeout, capture, started } = run;
    let order = Order::new(check).context("can't make the order for a check")?;
    command.arg(ONE_CHECK);
    // The parent finds reports in the output by their first words, which color codes would break up.
    command.env_remove("CLICOLOR_FORCE");
    // With its own process group, everything that the check starts ends with it.
    command.process_group(0);
    let (own, theirs) = UnixStream::pair().context("a pair of sockets")?;
    order.send(&own).context("can't send the order for a check")?;
    command.stdin(OwnedFd::from(theirs));
    let output = if capture {
        let (output, writer) = std::io::pipe().context("a pipe")?;
        command.stdout(writer.try_clone().context("a pipe")?).stderr(writer);
        Some(collect(output))
    } else {
        None
    };
    // The process ends itself when this end is closed, so `own` stays open until the process has ended.
    let verdict = collect(own.try_clone().context("a socket")?);
    let mut child = command.spawn().context("can't start a process for the check")?;
    // The command holds this process's copies of the write ends, and the readers reach the end only once these copies
    // are closed.
    drop(command);
    started(child.id());

    let in_time = wait_in_background(&child).recv_timeout(timeout).is_ok();
    end_group(&child);
    let status = child.wait().context("the check's process")?;
    let records = Record::read_all(&order.nonce, &finish(&verdict));
    drop(own);
    let output = output.map_or_else(String::new, |output| {
        let bytes = finish(&output);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    Ok(Ended {
        failure: failure(&records, status, (!in_time).then_some(timeout)),
        how: describe(status),
        is_too_late: !in_time,
        records,
        output,
    })
}

/// The most bytes that are kept of what a check prints or reports. A check may print without end.
const MOST_BYTES: usize = 1 << 20;

/// Reads a pipe to its end in the background, and keeps the first part.
fn collect(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut chunk = vec![0; 1 << 16];
        let mut room = MOST_BYTES;
        while let Ok(length @ 1..) = pipe.read(&mut chunk) {
            let kept = length.min(room);
            room -= kept;
            if kept > 0 && sender.send(chunk[..kept].to_vec()).is_err() {
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
