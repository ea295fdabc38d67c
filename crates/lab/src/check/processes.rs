//! Runs ranks as separate processes, the way a launcher does.
//!
//! A check with [`Check::process`] starts this executable again, once for each rank. Each process runs that function
//! and prints its result on one line.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context, anyhow, bail, ensure};

use super::definition::Check;
use super::limits::TimeLimits;
use super::order::{OWN_CHECK, nonce};
use crate::explain::causes_text;
use crate::panics::panic_text;

/// The variable of a process that should run a check's process function: a token, and the check's number. The token
/// starts the line with the result, so that the answer can't print one; the variable is gone when the answer runs.
const PROCESS: &str = "LAB_RUN_ONE_PROCESS";
/// Stands for line ends within that line.
const LINE_END: &str = "\u{1e}";

/// The result of a process: the return value of its function, or its error as text.
pub type Said = Result<String, String>;

/// Starts one process of the calling check for each element of `variables`, and waits for all of them. The processes
/// run in parallel, each with its element's variables in its environment. The variables in `without` are removed first,
/// no matter where they were set.
///
/// For a process that ends without a result, such as one that was killed, the result is an error with its exit status.
///
/// # Errors
/// Fails if a process can't be started.
pub fn run(without: &[&str], variables: &[Vec<(&str, String)>]) -> anyhow::Result<Vec<Said>> {
    let token = token()?;
    let mut processes = Vec::new();
    for own in variables {
        let mut command = itself(&token)?;
        for name in without {
            command.env_remove(name);
        }
        command.envs(own.iter().map(|(name, value)| (name, value)));
        processes.push(command.stdout(Stdio::piped()).spawn().context("can't start a process for a rank")?);
    }
    // Each process has its own reader thread, so that a process that prints a lot does not have to wait until the
    // others have been read.
    let readers: Vec<_> =
        processes.into_iter().map(|process| thread::spawn(|| process.wait_with_output())).collect();
    let mut said = Vec::new();
    for reader in readers {
        let output = reader.join().map_err(|_| anyhow!("the thread reading a rank's process panicked"))??;
        let mut lines = said_in(&token, &output.stdout);
        let no_result = || Err(format!("a rank's process ended without a result, with {}", output.status));
        said.push(lines.pop().unwrap_or_else(no_result));
    }
    Ok(said)
}

/// A part of the error for a process that [`kill_this`] has ended.
pub const KILLED: &str = "with signal: 9";

/// Ends this process at once, as `kill -9` does. Nothing in it can clean up.
pub fn kill_this() -> ! {
    // SAFETY: the call has no requirements. It returns only if the signal can't be sent.
    unsafe { libc::raise(libc::SIGKILL) };
    std::process::abort()
}

/// Lets a launcher such as `mpirun` start the processes of the calling check. `launcher` runs with this executable as
/// its last argument and without the variables in `without`. Returns the processes' results in no particular order.
///
/// # Errors
/// Fails if the launcher can't be started, or none of its processes reports a result.
pub fn run_by(mut launcher: Command, without: &[&str]) -> anyhow::Result<Vec<Said>> {
    let token = token()?;
    let own = itself(&token)?;
    for name in without {
        launcher.env_remove(name);
    }
    launcher.arg(own.get_program());
    for (name, value) in own.get_envs() {
        match value {
            Some(value) => launcher.env(name, value),
            None => launcher.env_remove(name),
        };
    }
    let output =
        launcher.stdin(Stdio::null()).output().with_context(|| format!("can't start {launcher:?}"))?;
    let said = said_in(&token, &output.stdout);
    ensure!(
        !said.is_empty(),
        "{:?} ended with {}, and none of its processes reported a result:\n{}",
        launcher.get_program(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(said)
}

/// Returns a new token: a nonce as text.
fn token() -> anyhow::Result<String> {
    let nonce = nonce().context("can't get random bytes")?;
    Ok(nonce.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns a command that runs the current check's process function with this executable.
fn itself(token: &str) -> anyhow::Result<Command> {
    let check = OWN_CHECK.get().context("only a check can start processes")?;
    let mut command = Command::new(std::env::current_exe().context("can't find this executable")?);
    command.env(PROCESS, format!("{token} {check}")).stdin(Stdio::null());
    TimeLimits::set_for_process(&mut command);
    Ok(command)
}

/// Parses the processes' results, in the order of their lines.
fn said_in(token: &str, output: &[u8]) -> Vec<Said> {
    let text = String::from_utf8_lossy(output).into_owned();
    let lines = text.lines().filter_map(|line| line.strip_prefix(token)?.strip_prefix(' '));
    lines
        .map(|line| {
            let (kind, text) = line.split_once(' ').unwrap_or((line, ""));
            let text = text.replace(LINE_END, "\n");
            if kind == "ok" { Ok(text) } else { Err(text) }
        })
        .collect()
}

/// Runs the process function if this process was started for one.
pub(super) fn obey(checks: &[Check]) -> Option<ExitCode> {
    let order = std::env::var(PROCESS).ok()?;
    // SAFETY: no other thread is running yet.
    unsafe { std::env::remove_var(PROCESS) };
    let (token, number) = order.split_once(' ').unwrap_or_default();
    let panicked = Arc::new(Mutex::new(None));
    let first_panic = panicked.clone();
    std::panic::set_hook(Box::new(move |panic| {
        first_panic.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert_with(|| panic_text(panic));
    }));
    let result = catch_unwind(AssertUnwindSafe(|| {
        let check = number.parse().ok().and_then(|number: usize| checks.get(number));
        let Some((check, function)) = check.and_then(|check| Some((check, check.process_function()?))) else {
            bail!("{PROCESS} is reserved for processes that a check starts; unset it")
        };
        crate::tier::attach(check.ranks())?;
        function()
    }));
    let panicked = panicked.lock().unwrap_or_else(|e| e.into_inner()).take();
    let (kind, text) = match result {
        Ok(Ok(text)) => ("ok", text),
        Ok(Err(error)) => ("error", causes_text(&error)),
        Err(_) => ("error", panicked.unwrap_or_default()),
    };
    let line = format!("{token} {kind} {}\n", text.replace('\n', LINE_END));
    // A single write keeps the line intact, because a launcher may mix its processes' output.
    let written = std::io::stdout().lock().write_all(line.as_bytes());
    Some(if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
