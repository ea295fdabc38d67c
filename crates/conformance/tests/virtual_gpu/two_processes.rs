//! Two processes, a check's own and a child, that exchange bytes.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context, ensure};

/// The connection to the other process.
pub(crate) struct Link {
    read: File,
    write: File,
    /// The id of the other process.
    pub(crate) other: i32,
}

impl Link {
    pub(crate) fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.write.write_all(bytes)?)
    }

    pub(crate) fn receive<const N: usize>(&mut self) -> anyhow::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read.read_exact(&mut bytes).context("the other process has ended")?;
        Ok(bytes)
    }

    /// Waits until the other process has got as far, too.
    pub(crate) fn meet(&mut self) -> anyhow::Result<()> {
        self.send(b"here")?;
        self.receive::<4>().map(drop)
    }
}

/// A child process.
pub(crate) struct Child {
    pub(crate) id: i32,
}

impl Child {
    /// Ends the process in an instant.
    pub(crate) fn kill(&self) {
        // SAFETY: the process is a child that has not been waited for.
        unsafe { libc::kill(self.id, libc::SIGKILL) };
        self.wait();
    }

    fn wait(&self) -> i32 {
        let mut status = 0;
        // SAFETY: the result is writable.
        unsafe { libc::waitpid(self.id, &raw mut status, 0) };
        status
    }
}

fn pipe() -> [File; 2] {
    let mut ends = [0; 2];
    // SAFETY: the array has space for both ends.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: the descriptors are new, and nothing else uses them.
    ends.map(|end| unsafe { File::from_raw_fd(end) })
}

/// Starts a process that runs `child`. No process may have called the driver before.
pub(crate) fn start(child: impl FnOnce(Link) -> anyhow::Result<()>) -> (Child, Link) {
    let [[own_read, their_write], [their_read, own_write]] = [pipe(), pipe()];
    // SAFETY: no other thread in this process holds a lock: the driver has not been called yet.
    let id = unsafe { libc::fork() };
    if id == 0 {
        drop((own_read, own_write));
        // SAFETY: this only asks for the parent's id.
        let other = unsafe { libc::getppid() };
        let link = Link { read: their_read, write: their_write, other };
        let done = catch_unwind(AssertUnwindSafe(|| child(link)));
        let is_well = matches!(done, Ok(Ok(())));
        if let Ok(Err(error)) = done {
            eprintln!("in the child: {error:#}");
        }
        // SAFETY: nothing has to be cleaned up, and the driver's exit handler would report what the child leaves behind.
        unsafe { libc::_exit(i32::from(!is_well)) };
    }
    (Child { id }, Link { read: own_read, write: own_write, other: id })
}

/// Runs both processes to their ends.
pub(crate) fn run(
    child: impl FnOnce(Link) -> anyhow::Result<()>,
    parent: impl FnOnce(Link) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (process, link) = start(child);
    let done = parent(link);
    let status = process.wait();
    done?;
    ensure!(status == 0, "the child ended with status {status:#x}");
    Ok(())
}
