//! Runs calls in a process of their own, because only one driver and one NCCL fit into a process, and a call that crashes
//! must not end the comparison.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use libloading::Library;

use crate::{driver, nccl};

/// How long a probe may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A list of calls.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Probe {
    Nccl,
    /// Reads the log of a library that is not loaded.
    Log,
    Driver,
    Runtime,
    /// Looks for a driver and for NCCL as the course does.
    Survey,
}

/// What each call returned, by the call.
pub(crate) type Results = BTreeMap<String, String>;

impl Probe {
    /// Loads the libraries and makes the calls in the last of them.
    ///
    /// # Errors
    /// Fails if a library can't be loaded, or has no such function.
    pub(crate) fn run(self, libraries: &[PathBuf]) -> anyhow::Result<()> {
        let last = || libraries.last().context("a probe needs a library");
        let load = || {
            let loaded = libraries.iter().map(|path| open(path)).collect::<anyhow::Result<Vec<_>>>()?;
            loaded.last().copied().context("a probe needs a library")
        };
        match self {
            Self::Nccl => nccl::probe::calls(load()?),
            Self::Log => nccl::log::read(last()?),
            Self::Driver => driver::probe::calls(load()?),
            Self::Runtime => driver::probe::runtime_texts(load()?),
            Self::Survey => {
                driver::probe::survey();
                Ok(())
            }
        }
    }

    /// Makes the calls in another process, and returns what they returned.
    ///
    /// # Errors
    /// Fails if the process fails or takes too long.
    pub(crate) fn results(self, libraries: &[&Path], variables: &[(&str, &str)]) -> anyhow::Result<Results> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--probe").arg(self.to_possible_value().context("a probe has a name")?.get_name());
        for library in libraries {
            command.arg("--load").arg(library);
        }
        command.envs(variables.iter().copied());
        let text = output(command)?;
        let lines = text.lines().filter_map(|line| line.split_once('\t'));
        Ok(lines.map(|(call, result)| (call.to_owned(), result.to_owned())).collect())
    }
}

/// Loads a library for the rest of the process.
fn open(file: &Path) -> anyhow::Result<&'static Library> {
    // SAFETY: the constructors of CUDA's, NCCL's, and our own libraries have no preconditions.
    let library = unsafe { Library::new(file) };
    Ok(Box::leak(Box::new(library.with_context(|| file.display().to_string())?)))
}

/// Runs a command, and returns what it prints to standard output.
fn output(mut command: Command) -> anyhow::Result<String> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (stdout, stderr) = (child.stdout.take().context("a pipe")?, child.stderr.take().context("a pipe")?);
    let [stdout, stderr] = [reader(stdout), reader(stderr)];
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > TIMEOUT {
            child.kill()?;
            child.wait()?;
            bail!("no end after {TIMEOUT:?}; the last call before was `{}`", last_line(&text_of(stdout)));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let (text, said) = (text_of(stdout), text_of(stderr));
    ensure!(
        status.success(),
        "{status}: {}; the last call before was `{}`",
        last_line(&said),
        last_line(&text)
    );
    Ok(text)
}

/// Reads a pipe on a thread of its own, because a process blocks when it has filled one.
fn reader(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is enough for a message.
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

fn text_of(reader: JoinHandle<Vec<u8>>) -> String {
    String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned()
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or("")
}

/// Prints a call and what it returned.
pub(crate) fn print(call: &str, result: impl std::fmt::Display) {
    // The parent reports the error, if it can't be printed.
    let _ = writeln!(std::io::stdout().lock(), "{call}\t{result}");
}

/// Returns a library's text, or `null`.
///
/// # Safety
/// `text` is null or a C string.
pub(crate) unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return "null".to_owned();
    }
    // SAFETY: the caller promises this.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
