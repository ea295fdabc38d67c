//! A command that another thread can end.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};

use anyhow::{Context, anyhow, ensure};

/// Ends a build or a run of checks that another thread waits for.
#[derive(Default)]
pub struct Stop(Mutex<Stopping>);

#[derive(Default)]
struct Stopping {
    is_stopped: bool,
    child: Option<Child>,
}

/// What to do after a line.
pub(super) enum Then {
    GoOn,
    /// End the command: nothing more is needed of it.
    End,
}

impl Stop {
    /// Ends what runs, and whatever would be started with this from now on.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.is_stopped = true;
        if let Some(child) = &mut state.child {
            // It may have ended by itself.
            let _ = child.kill();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Stopping> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs a command, each line of whose output goes to `line`. Returns whether it succeeded, and what it wrote to its
    /// standard error.
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
                // It may have ended by itself.
                let _ = child.kill();
                break;
            }
        }
        let said = said.join().map_err(|_| anyhow!("what {name} says can't be read"))??;
        let mut state = self.lock();
        let status = state.child.take().context("a child")?.wait()?;
        ensure!(!state.is_stopped, "stopped");
        Ok((status.success(), said))
    }
}
