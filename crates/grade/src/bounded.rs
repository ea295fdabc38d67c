//! Runs a command to its end, within bounds.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

use crate::limits::Limits;

/// The most bytes that are kept of what a command prints.
const MOST_BYTES: u64 = 1 << 16;
/// How often it is looked whether the command has ended.
const PERIOD: Duration = Duration::from_millis(5);

/// How a command ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// What it printed on standard error, up to a bound.
    pub(crate) said: String,
    /// Why it was killed, if it was.
    pub(crate) excess: Option<String>,
}

/// Runs a command without input. It is killed, with all processes of its group, once it exceeds a bound.
///
/// # Errors
/// Fails if the command can't be started.
pub(crate) fn run(mut command: Command, timeout: Duration, limits: &Limits) -> anyhow::Result<Ended> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().with_context(|| format!("can't start {:?}", command.get_program()))?;
    limits.watch(child.id());
    let mut stderr = child.stderr.take().context("its output")?;
    let reader = thread::spawn(move || {
        let mut said = Vec::new();
        let read = (&mut stderr).take(MOST_BYTES).read_to_end(&mut said);
        // A full pipe would stop the command.
        read.and_then(|_| std::io::copy(&mut stderr, &mut std::io::sink())).map(|_| said)
    });
    let started = Instant::now();
    let mut excess = None;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() > timeout && excess.is_none() {
            excess = Some(format!("it took more than {} s", timeout.as_secs()));
            if let Ok(group) = i32::try_from(child.id()) {
                // SAFETY: `kill` takes two numbers. The child has not been reaped, so its number is still its own.
                unsafe { libc::kill(-group, libc::SIGKILL) };
            }
        }
        thread::sleep(PERIOD);
    };
    let excess = limits.forget(child.id()).or(excess);
    let said = reader.join().map_err(|_| anyhow!("the thread that reads its output panicked"))??;
    Ok(Ended { status, said: String::from_utf8_lossy(&said).into_owned(), excess })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, timeout: Duration) -> Ended {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, timeout, &Limits::start()).unwrap()
    }

    #[test]
    fn what_a_command_says_is_kept_up_to_a_bound() {
        let ended = shell("echo no >&2; exit 3", Duration::from_secs(10));
        assert_eq!((ended.status.code(), ended.said.as_str(), ended.excess), (Some(3), "no\n", None));
        let ended = shell("head -c 1000000 /dev/zero >&2", Duration::from_secs(10));
        assert_eq!((ended.status.code(), ended.said.len()), (Some(0), 1 << 16));
    }

    #[test]
    fn a_command_that_takes_too_long_ends() {
        let ended = shell("sleep 100", Duration::from_millis(100));
        assert!(!ended.status.success() && ended.excess.unwrap().contains("more than 0 s"));
    }
}
