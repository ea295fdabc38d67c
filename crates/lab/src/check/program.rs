//! A test program that has been started and forks itself for each check.

use std::collections::BTreeMap;
use std::iter;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::connection::Message;
use super::order::RUN_CHECKS;
use super::process::{collect, finish};

/// How long the program may take to end a fork. Then it is ended itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a test program is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// One check. If the program itself ends, that check is the reason.
    One,
    /// Several checks. If the program itself ends, no check can be judged.
    Several,
}

/// A test program that waits for orders, and forks itself for each check. It ends with this value, and all that it has
/// started ends with it.
pub struct TestProgram {
    process: Mutex<Process>,
    /// The number of its process.
    id: u32,
    /// The folder that it runs in.
    folder: PathBuf,
    serves: Serves,
    connection: UnixStream,
    forks: Arc<Mutex<Forks>>,
    /// What the program itself prints, if output is captured.
    output: Option<Mutex<Receiver<Vec<u8>>>>,
}

/// The process of a program.
struct Process {
    child: Child,
    /// Its status, once it has been reaped.
    status: Option<ExitStatus>,
}

/// The forks of a program.
#[derive(Default)]
struct Forks {
    /// How many have been ordered.
    ordered: u32,
    /// Who waits for the status of each that has not ended.
    waiting: BTreeMap<u32, Sender<ExitStatus>>,
    /// Whether the program has ended.
    is_over: bool,
}

impl TestProgram {
    /// Starts a test program for one check or several. It must run in its module's folder. If `capture` is set, the output
    /// of each check is collected; otherwise, it goes where this process's own output goes.
    ///
    /// # Errors
    /// Fails if the program can't be started.
    pub fn start(mut command: Command, serves: Serves, capture: bool) -> anyhow::Result<Self> {
        let folder = command.get_current_dir().map(PathBuf::from);
        let folder = folder.or_else(|| std::env::current_dir().ok()).unwrap_or_default();
        command.arg(RUN_CHECKS);
        // The parent finds reports in the output by their first words, which color codes would break up.
        command.env_remove("CLICOLOR_FORCE");
        // With its own process group, it doesn't get the signals of the terminal.
        command.process_group(0);
        let (connection, theirs) = UnixStream::pair().context("a pair of sockets")?;
        command.stdin(OwnedFd::from(theirs));
        let output = if capture {
            let (output, writer) = std::io::pipe().context("a pipe")?;
            command.stdout(writer.try_clone().context("a pipe")?).stderr(writer);
            Some(Mutex::new(collect(output)))
        } else {
            None
        };
        let messages = connection.try_clone().context("a socket")?;
        let child = command.spawn().context("can't start the test program")?;
        let forks = Arc::new(Mutex::new(Forks::default()));
        let of_reader = Arc::clone(&forks);
        thread::spawn(move || {
            while let Ok(Some((message, _))) = Message::receive(&messages) {
                if let Message::Ended(number, status) = message
                    && let Some(waiting) = lock(&of_reader).waiting.remove(&number)
                {
                    let _ = waiting.send(ExitStatus::from_raw(status));
                }
            }
            let mut forks = lock(&of_reader);
            forks.is_over = true;
            forks.waiting.clear();
        });
        let id = child.id();
        let process = Mutex::new(Process { child, status: None });
        Ok(Self { process, id, folder, serves, connection, forks, output })
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The folder that it runs in.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the output of each check is collected.
    pub(super) fn captures(&self) -> bool {
        self.output.is_some()
    }

    /// Makes the program fork itself. The fork gets the check's connection, and its output goes to `output`.
    pub(super) fn fork(&self, connection: OwnedFd, output: Option<OwnedFd>) -> Fork<'_> {
        let (sender, status) = channel();
        let number = {
            let mut forks = lock(&self.forks);
            forks.ordered += 1;
            let number = forks.ordered;
            // If the program has ended, the sender is dropped, and waiting for the status says so.
            if !forks.is_over {
                forks.waiting.insert(number, sender);
            }
            number
        };
        let descriptors: Vec<_> = iter::once(&connection).chain(&output).map(AsFd::as_fd).collect();
        // If that fails, the program has ended.
        let _ = Message::Start(number).send(&self.connection, &descriptors);
        Fork { program: self, number, status, ended: None }
    }

    /// Ends the program and its group. Returns its status, and what it has printed itself.
    fn end(&self) -> anyhow::Result<(ExitStatus, String)> {
        let mut process = lock(&self.process);
        let status = match process.status {
            Some(status) => status,
            None => {
                if let Ok(group) = i32::try_from(self.id) {
                    // SAFETY: `kill` takes two numbers. The process has not been reaped, and its group was created for it.
                    unsafe { libc::kill(-group, libc::SIGKILL) };
                }
                let status = process.child.wait().context("the test program's process")?;
                process.status = Some(status);
                status
            }
        };
        let output = self.output.as_ref().map_or_else(Vec::new, |output| finish(&lock(output)));
        Ok((status, String::from_utf8_lossy(&output).into_owned()))
    }
}

/// A fork that runs a check.
pub(super) struct Fork<'a> {
    program: &'a TestProgram,
    number: u32,
    status: Receiver<ExitStatus>,
    ended: Option<ExitStatus>,
}

impl Fork<'_> {
    /// Waits for the fork's end. Returns whether it has ended in time.
    pub(super) fn has_ended(&mut self, timeout: Duration) -> bool {
        match self.status.recv_timeout(timeout) {
            Ok(status) => {
                self.ended = Some(status);
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        }
    }

    /// Ends the fork and its group. Returns its status. If the whole program has ended, that is the program's, with what
    /// it has printed.
    ///
    /// # Errors
    /// Fails if the program has ended and another check may be the reason.
    pub(super) fn end(self) -> anyhow::Result<(ExitStatus, String)> {
        if let Some(status) = self.ended {
            return Ok((status, String::new()));
        }
        let _ = Message::End(self.number).send(&self.program.connection, &[]);
        if let Ok(status) = self.status.recv_timeout(PATIENCE) {
            return Ok((status, String::new()));
        }
        let ended = self.program.end()?;
        ensure!(
            self.program.serves == Serves::One,
            "the test program ended, and any of its checks may be the reason"
        );
        Ok(ended)
    }
}

impl Drop for TestProgram {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
