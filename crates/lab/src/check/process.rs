//! The parent's side: runs a check in a process of its own, waits for it up to a timeout, and judges it.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context;

use super::failure::{describe, failure};
use super::function::with_function;
use super::order::Order;
use super::printed::printed_after;
use super::program::TestProgram;
use super::verdict::Record;
use crate::explain::without_substitutes;
use crate::score::Score;

/// What became of a check.
#[derive(Clone, Debug, PartialEq)]
pub enum Judged {
    /// It passed, and printed this. If it measures what the answer costs, it has a score.
    Passed(String, Option<Score>),
    /// It failed; the message explains why.
    Failed(String),
    /// It can't run here, for this reason.
    Ignored(String),
    /// It could not be run, for this reason. That says nothing about the answer.
    Unable(String),
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
/// process's exit status or output alone. After `timeout`, the process and all processes of its group are killed.
pub fn judge(program: &TestProgram, check: &str, timeout: Duration) -> Judged {
    let ended = match end(program, check, timeout) {
        Ok(ended) => ended,
        Err(error) => return Judged::Unable(format!("{error:#}")),
    };
    let (mut functions, mut score) = (Vec::new(), None);
    for record in &ended.records {
        match record {
            Record::Ignored(reason) => return Judged::Ignored(reason.clone()),
            Record::Unable(reason) => return Judged::Unable(reason.clone()),
            Record::Score(text) => score = serde_json::from_str(text).ok(),
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
        None => Judged::Passed(ended.output, score),
        Some(failure) => {
            let printed = printed_after(&failure, &ended.output);
            let failure = with_function(&functions, &failure, program.folder());
            Judged::Failed(without_substitutes(&failure) + &printed)
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
/// Fails if the process can't be started, or if the test program ends and another check may be the reason.
fn end(program: &TestProgram, check: &str, timeout: Duration) -> anyhow::Result<Ended> {
    let order = Order::new(check).context("can't make the order for a check")?;
    let (own, theirs) = UnixStream::pair().context("a pair of sockets")?;
    order.send(&own).context("can't send the order for a check")?;
    let (output, writer) = match program.captures() {
        true => {
            let (output, writer) = std::io::pipe().context("a pipe")?;
            (Some(collect(output)), Some(writer))
        }
        false => (None, None),
    };
    // The process ends itself when this end is closed, so `own` stays open until the process has ended.
    let verdict = collect(own.try_clone().context("a socket")?);
    let mut fork = program.fork(theirs.into(), writer.map(Into::into));
    let in_time = fork.has_ended(timeout);
    let (status, said) = fork.end()?;
    let records = Record::read_all(&order.nonce, &finish(&verdict));
    drop(own);
    let output = output.map_or_else(Vec::new, |output| finish(&output));
    Ok(Ended {
        failure: failure(&records, status, (!in_time).then_some(timeout)),
        how: describe(status),
        is_too_late: !in_time,
        records,
        output: String::from_utf8_lossy(&output).into_owned() + &said,
    })
}

/// The most bytes that are kept of what a check prints or reports. A check may print without end.
const MOST_BYTES: usize = 1 << 20;

/// Reads a pipe to its end in the background, and keeps the first part.
pub(super) fn collect(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
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
pub(super) fn finish(pipe: &Receiver<Vec<u8>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Ok(chunk) = pipe.recv_timeout(Duration::from_secs(1)) {
        bytes.extend(chunk);
    }
    bytes
}
