//! Runs `ptxas`.

use std::fmt::{Display, Formatter};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, ensure};

/// An architecture, such as `sm_90`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target(u32);

impl Target {
    pub(super) const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns the architecture in a module's `.target` line. All files of the repository run on any later one, too.
    pub(super) fn of(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix(".target sm_"))?;
        line.split(',').next()?.trim().parse().ok().map(Self)
    }
}

impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "sm_{}", self.0)
    }
}

/// The message if the assembler crashes.
pub(super) const CRASH: &str = "ptxas crashed";

/// A version of `ptxas`.
pub(super) struct Assembler {
    pub(super) version: &'static str,
    program: PathBuf,
    /// The architectures that it knows, in ascending order.
    pub(super) targets: Vec<Target>,
}

impl Assembler {
    pub(super) fn new(version: &'static str, program: &Path) -> anyhow::Result<Self> {
        let output = Command::new(program).arg("--help").output();
        let output = output.with_context(|| program.display().to_string())?;
        let help = String::from_utf8_lossy(&output.stdout).into_owned();
        // Architectures with a letter are for PTX that the repository doesn't have.
        let numbers = help.split("'sm_").skip(1).filter_map(|rest| rest.split('\'').next()?.parse().ok());
        let mut targets: Vec<Target> = numbers.map(Target).collect();
        targets.sort_unstable();
        targets.dedup();
        ensure!(!targets.is_empty(), "{} lists no architectures", program.display());
        Ok(Self { version, program: program.to_owned(), targets })
    }

    /// Assembles a module, and returns the messages about it.
    ///
    /// # Errors
    /// Fails if the assembler can't be run, or fails without a message.
    pub(super) fn messages(&self, text: &str, target: Target, level: u8) -> anyhow::Result<Vec<String>> {
        let mut child = Command::new(&self.program)
            .args([
                "--gpu-name",
                &target.to_string(),
                &format!("-O{level}"),
                "--output-file",
                "/dev/null",
                "-",
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("can't run ptxas")?;
        // It reads everything before it writes.
        child.stdin.take().context("a pipe")?.write_all(text.as_bytes())?;
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        let kinds = ["fatal", "error", "warning"];
        let lines = said.lines().filter(|line| kinds.iter().any(|kind| line.contains(kind)));
        let mut messages: Vec<String> = lines.map(str::to_owned).collect();
        if output.status.signal().is_some() {
            messages.push(CRASH.to_owned());
        }
        ensure!(output.status.success() || !messages.is_empty(), "ptxas: {}: {said}", output.status);
        Ok(messages)
    }
}

/// Calls a function for each item, on as many threads as there are cores, and returns the results in order.
pub(super) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    call: impl Fn(&T) -> anyhow::Result<R> + Sync,
) -> anyhow::Result<Vec<R>> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let (at, Some(item)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            (at, items.get(at))
        } {
            let result = call(item);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_unstable_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
