//! A command that another thread can stop.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};

use anyhow::{Context, anyhow, ensure};

/// Stops a build or a run of checks that another thread is waiting for.
#[derive(Default)]
pub struct Stop(Mutex<Stopping>);

#[derive(Default)]
struct Stopping {
    is_stopped: bool,
    child: Option<Child>,
}

/// What to do after a line of output.
pub(super) enum Then {
    GoOn,
    /// Kill the command, because nothing more is needed from it.
    End,
}

impl Stop {
    /// Kills the running command, and prevents this value from starting another.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.is_stopped = true;
        if let Some(child) = &mut state.child {
            // The command may have ended by itself.
            let _ = child.kill();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Stopping> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs a command, and passes each line of its output to `line`. Returns whether the command succeeded, and what it
    /// wrote to standard error.
    pub(super) fn run(
        &self,
        mut command: Command,
        mut line: impl FnMut(&str) -> Then,
    ) -> anyhow::Result<(bool, String)> {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (out, mut errors) = {
            let mut state = self.lock();
            ensure!(!state.is_stopped, "stopped");
            let child = state.child.insert(command.spawn().with_context(|| format!("can't run {name}"))?);
            (child.stdout.take().context("a pipe")?, child.stderr.take().context("a pipe")?)
        };
        let said = std::thread::spawn(move || {
            let mut said = Vec::new();
            errors.read_to_end(&mut said).map(|_| String::from_utf8_lossy(&said).into_owned())
        });
        for text in BufReader::new(out).split(b'\n') {
            if let Then::End = line(&String::from_utf8_lossy(&text?))
                && let Some(child) = &mut self.lock().child
            {
                // The command may have ended by itself.
                let _ = child.kill();
                break;
            }
        }
        let said = said.join().map_err(|_| anyhow!("can't read the output of {name}"))??;
        let mut state = self.lock();
        let status = state.child.take().context("a child")?.wait()?;
        ensure!(!state.is_stopped, "stopped");
        Ok((status.success(), said))
    }
}
