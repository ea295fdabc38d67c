//! Commands that end in time: at their own end, at a time limit, or at the latest with this program.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::interrupt;

/// How often a wait looks again.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a process may take to clean up before it is killed.
const TIME_TO_CLEAN_UP: Duration = Duration::from_secs(3);

/// A running command. Dropping it ends the command and everything in its process group.
pub(crate) struct Running {
    child: Child,
    ended: Option<ExitStatus>,
    what: String,
    log: PathBuf,
}

impl Running {
    /// Starts a command, whose output on both streams goes to the file `log`.
    pub(crate) fn start(mut command: Command, log: PathBuf) -> anyhow::Result<Self> {
        let what = Path::new(command.get_program()).file_name().unwrap_or_default().display().to_string();
        let output = File::create(&log).with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).process_group(0);
        // SAFETY: `prctl` is async-signal-safe, and the closure neither allocates nor locks.
        unsafe {
            command.pre_exec(|| {
                // Even if this program is killed, a launcher or a daemon doesn't outlive it.
                match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let child = command.spawn().with_context(|| format!("can't start {what}"))?;
        Ok(Self { child, ended: None, what, log })
    }

    /// Returns the process's number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns what the command has printed so far.
    pub(crate) fn output(&self) -> String {
        fs::read(&self.log)
            .map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the exit status if the command has ended.
    pub(crate) fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        if self.ended.is_none() && self.has_ended() {
            // The leader has not been reaped yet, so no other process has its number.
            self.signal_group(libc::SIGKILL);
            self.ended = Some(self.child.wait().with_context(|| self.what.clone())?);
        }
        Ok(self.ended)
    }

    /// Waits until the command has ended, and returns its output.
    ///
    /// # Errors
    /// Fails if the command fails, or does not end before `deadline`. The error contains the output.
    pub(crate) fn finish(mut self, deadline: Instant) -> anyhow::Result<String> {
        let mut status = None;
        let in_time = until(deadline, || {
            status = self.ended()?;
            Ok(status.is_some())
        })?;
        let output = self.output();
        ensure!(in_time, "{} did not end in time:\n{output}", self.what);
        match status {
            Some(status) if status.success() => Ok(output),
            Some(status) => bail!("{} ended with {status}:\n{output}", self.what),
            None => bail!("{} has no exit status", self.what),
        }
    }

    /// Waits until `is_ready` returns true while the command runs in the background.
    ///
    /// # Errors
    /// Fails if the command ends, or is not ready before `deadline`. The error contains the output.
    pub(crate) fn wait_until(
        &mut self,
        deadline: Instant,
        mut is_ready: impl FnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let in_time = until(deadline, || {
            self.check()?;
            is_ready()
        })?;
        ensure!(in_time, "{} was not ready in time:\n{}", self.what, self.output());
        Ok(())
    }

    /// Fails if the command, which runs in the background, has ended. The error contains the output.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.ended()? {
            bail!("{} ended with {status}:\n{}", self.what, self.output());
        }
        Ok(())
    }

    /// Returns whether the process has ended, without reaping it.
    fn has_ended(&self) -> bool {
        // SAFETY: `info` is plain data, so zeros are a valid value, and `waitid` writes only into it.
        let info = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            (libc::waitid(libc::P_PID, self.child.id(), &mut info, options) == 0).then_some(info)
        };
        // SAFETY: after `waitid`, the structure contains a process's number, or 0 if it has not ended.
        info.is_some_and(|info| unsafe { info.si_pid() } != 0)
    }

    fn signal_group(&self, signal: libc::c_int) {
        if let Ok(group) = i32::try_from(self.child.id()) {
            // SAFETY: `kill` takes two numbers. `process_group(0)` created the group for this child.
            unsafe { libc::kill(-group, signal) };
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended.is_some() {
            return;
        }
        self.signal_group(libc::SIGTERM);
        let deadline = Instant::now() + TIME_TO_CLEAN_UP;
        while Instant::now() < deadline && !self.has_ended() {
            thread::sleep(PAUSE);
        }
        self.signal_group(libc::SIGKILL);
        let _ = self.child.wait();
    }
}

/// Waits until `is_done` returns true, or until the deadline. Returns whether it was in time.
pub(crate) fn until(
    deadline: Instant,
    mut is_done: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<bool> {
    loop {
        interrupt::check()?;
        if is_done()? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        thread::sleep(PAUSE);
    }
}
