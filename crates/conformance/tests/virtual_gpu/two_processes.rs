//! Two processes, a check's own and a child, that exchange bytes.

use std::io::{Read, Write};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context, ensure};

/// The connection to the other process.
pub(crate) struct Link {
    socket: UnixStream,
    /// The id of the other process.
    pub(crate) other: i32,
}

impl Link {
    pub(crate) fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.socket.write_all(bytes)?)
    }

    pub(crate) fn receive<const N: usize>(&mut self) -> anyhow::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.socket.read_exact(&mut bytes).context("the other process has ended")?;
        Ok(bytes)
    }

    /// Sends a copy of an open file.
    pub(crate) fn send_file(&mut self, descriptor: i32) -> anyhow::Result<()> {
        let mut control = [0_u64; 8];
        let mut byte = *b"f";
        let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        // SAFETY: the structures are valid, and the control message has room for one descriptor.
        let sent = unsafe {
            let mut message: libc::msghdr = zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(4) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            ((*header).cmsg_level, (*header).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            (*header).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(header).cast::<i32>().write_unaligned(descriptor);
            libc::sendmsg(self.socket.as_raw_fd(), &raw const message, 0)
        };
        ensure!(sent == 1, "{}", std::io::Error::last_os_error());
        Ok(())
    }

    /// Receives an open file.
    pub(crate) fn receive_file(&mut self) -> anyhow::Result<OwnedFd> {
        let mut control = [0_u64; 8];
        let mut byte = [0];
        let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        // SAFETY: the structures are valid, and a received descriptor belongs to nothing else.
        unsafe {
            let mut message: libc::msghdr = zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control) as _;
            let received = libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, 0);
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            ensure!(received == 1 && !header.is_null(), "no file was received");
            Ok(OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<i32>().read_unaligned()))
        }
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

/// Starts a process that runs `child`. No process may have called the driver before.
pub(crate) fn start(child: impl FnOnce(Link) -> anyhow::Result<()>) -> (Child, Link) {
    let (own, theirs) = UnixStream::pair().unwrap();
    // SAFETY: no other thread in this process holds a lock: the driver has not been called yet.
    let id = unsafe { libc::fork() };
    if id == 0 {
        drop(own);
        // SAFETY: this only asks for the parent's id.
        let other = unsafe { libc::getppid() };
        let link = Link { socket: theirs, other };
        let done = catch_unwind(AssertUnwindSafe(|| child(link)));
        let is_well = matches!(done, Ok(Ok(())));
        if let Ok(Err(error)) = done {
            eprintln!("in the child: {error:#}");
        }
        // SAFETY: nothing has to be cleaned up, and the driver's exit handler would report what the child leaves
        // behind.
        unsafe { libc::_exit(i32::from(!is_well)) };
    }
    (Child { id }, Link { socket: own, other: id })
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
