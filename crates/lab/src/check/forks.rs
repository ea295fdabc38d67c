//! The process of a test program that forks itself for each check. A fork starts in a fraction of a millisecond, while a
//! new process has to be loaded and linked first. This process runs nothing of the answer, and has only one thread.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, ensure};

use super::connection::Message;
use super::order::RUN_CHECKS;
use crate::tier;

/// A fork that runs a check.
struct Fork {
    number: u32,
    process: libc::pid_t,
}

/// Forks this process for each check that the parent orders through standard input. Returns the check's connection in
/// each fork, and `None` in this process once the parent is gone.
///
/// # Errors
/// Fails if standard input is no connection, or if the process can't be forked.
pub(super) fn serve() -> anyhow::Result<Option<OwnedFd>> {
    let connection = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    connection.local_addr().with_context(|| {
        format!("`{RUN_CHECKS}` is reserved for processes that the test program starts; to run a check, pass its name")
    })?;
    // What the answer writes to standard input goes nowhere.
    let nowhere = File::open("/dev/null").context("can't open /dev/null")?;
    replace(&nowhere, libc::STDIN_FILENO)?;
    // No fork may look into this process.
    set_dumpable(false);
    tier::prepare();
    let signals = Signals::set();
    let mut forks: Vec<Fork> = Vec::new();
    loop {
        let mut is_gone = false;
        forks.retain(|fork| match ended(fork.process) {
            None => true,
            Some(status) => {
                is_gone |= Message::Ended(fork.number, status).send(&connection, &[]).is_err();
                false
            }
        });
        if !is_gone && !signals.wait_for(&connection)? {
            continue;
        }
        match Message::receive(&connection) {
            Ok(Some((Message::Start(number), descriptors))) => {
                // SAFETY: this process has one thread, so the fork may do whatever this process may do.
                let process = unsafe { libc::fork() };
                ensure!(process >= 0, "can't fork: {}", io::Error::last_os_error());
                if process == 0 {
                    signals.restore();
                    set_dumpable(true);
                    return begin(descriptors).map(Some);
                }
                // The fork does the same. Whoever comes first, the group exists when it is needed.
                // SAFETY: `setpgid` takes two numbers.
                unsafe { libc::setpgid(process, process) };
                forks.push(Fork { number, process });
            }
            Ok(Some((Message::End(number), _))) => {
                forks.iter().filter(|fork| fork.number == number).for_each(|fork| kill(fork.process));
            }
            Ok(Some((Message::Ended(..), _)) | None) | Err(_) => {
                forks.iter().for_each(|fork| kill(fork.process));
                return Ok(None);
            }
        }
    }
}

/// Begins a fork: it gets its own process group, so that everything that the check starts ends with it, and its own
/// output, if output is captured. Returns the check's connection.
fn begin(descriptors: Vec<OwnedFd>) -> anyhow::Result<OwnedFd> {
    // SAFETY: `setpgid` takes two numbers.
    unsafe { libc::setpgid(0, 0) };
    let mut descriptors = descriptors.into_iter();
    let connection = descriptors.next().context("a check without a connection")?;
    if let Some(output) = descriptors.next() {
        replace(&output, libc::STDOUT_FILENO)?;
        replace(&output, libc::STDERR_FILENO)?;
    }
    Ok(connection)
}

/// Makes a standard stream a copy of a descriptor.
fn replace(with: &impl AsRawFd, stream: i32) -> anyhow::Result<()> {
    // SAFETY: `dup2` takes two numbers, and the first is an open descriptor.
    let replaced = unsafe { libc::dup2(with.as_raw_fd(), stream) };
    ensure!(replaced == stream, "can't replace a standard stream: {}", io::Error::last_os_error());
    Ok(())
}

/// Sets whether other processes of the same user may look into this one.
fn set_dumpable(dumpable: bool) {
    // SAFETY: with this operation, `prctl` takes a number.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, libc::c_ulong::from(dumpable), 0, 0, 0) };
}

/// Returns the status of a fork that has ended, after ending all that it has started. Until the fork is reaped, no other
/// process has its number.
fn ended(process: libc::pid_t) -> Option<i32> {
    let id = process.cast_unsigned();
    // SAFETY: `info` is plain data, so zeros are a valid value, and both calls only write to their results.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        if libc::waitid(libc::P_PID, id, &raw mut info, options) != 0 || info.si_pid() == 0 {
            return None;
        }
        kill(process);
        let mut status = 0;
        libc::waitpid(process, &raw mut status, 0);
        Some(status)
    }
}

/// Ends a fork and its group.
fn kill(process: libc::pid_t) {
    // SAFETY: `kill` takes two numbers. The fork has not been reaped, so both are still its own.
    unsafe {
        libc::kill(-process, libc::SIGKILL);
        libc::kill(process, libc::SIGKILL);
    }
}

/// How this process hears that a fork has ended: the signal interrupts only its wait for a message.
struct Signals {
    before: libc::sigset_t,
}

impl Signals {
    fn set() -> Self {
        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: the handler does nothing, and all pointers are to values that outlive the calls.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
            libc::sigaction(libc::SIGCHLD, &raw const action, std::ptr::null_mut());
            let (mut child, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigemptyset(&raw mut child);
            libc::sigaddset(&raw mut child, libc::SIGCHLD);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const child, &raw mut before);
            Self { before }
        }
    }

    /// Waits until there is a message, or the other end is closed. Returns `false` if a fork has ended.
    ///
    /// # Errors
    /// Fails if the system can't wait.
    fn wait_for(&self, connection: &UnixStream) -> anyhow::Result<bool> {
        let mut watched = libc::pollfd { fd: connection.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the array has one element, like the count, and all pointers are to values that outlive the call.
        let ready = unsafe { libc::ppoll(&raw mut watched, 1, std::ptr::null(), &raw const self.before) };
        if ready >= 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        ensure!(error.kind() == io::ErrorKind::Interrupted, "can't wait for a message: {error}");
        Ok(false)
    }

    /// Gives a fork the signals that a new process has.
    fn restore(&self) {
        // SAFETY: the pointer is to a value that outlives the call.
        unsafe {
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut());
        }
    }
}
