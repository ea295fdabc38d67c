//! The connection between the parent and the process of a test program that forks itself for each check: messages of two
//! numbers, and the descriptors that come with them.

use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// The most descriptors of a message: the check's own connection, and where its output goes.
const MOST_DESCRIPTORS: usize = 2;
/// The bytes that the descriptors of a message take up.
const DESCRIPTOR_BYTES: u32 = (MOST_DESCRIPTORS * size_of::<RawFd>()) as u32;
/// The length of a message in bytes.
const LENGTH: usize = 8;

/// Room for a control message with [`MOST_DESCRIPTORS`] descriptors, aligned as its header must be.
type Control = [u64; 8];

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// To the process: fork, and run a check in the fork. The parent has chosen the number.
    Start(u32),
    /// To the process: end a fork and all that it has started.
    End(u32),
    /// To the parent: a fork has ended with this status, as `waitpid` returns it.
    Ended(u32, i32),
}

impl Message {
    fn to_bytes(self) -> [u8; LENGTH] {
        // A status that `waitpid` returns has 16 bits, so the upper bits tell the kinds of messages apart.
        let (number, what) = match self {
            Self::Start(number) => (number, 1 << 16),
            Self::End(number) => (number, 2 << 16),
            Self::Ended(number, status) => (number, status & 0xffff),
        };
        (u64::from(number) << 32 | u64::from(what.cast_unsigned())).to_le_bytes()
    }

    fn from_bytes(bytes: [u8; LENGTH]) -> Self {
        let word = u64::from_le_bytes(bytes);
        let (number, what) = ((word >> 32) as u32, word as u32);
        match what >> 16 {
            0 => Self::Ended(number, what.cast_signed()),
            1 => Self::Start(number),
            _ => Self::End(number),
        }
    }

    /// Sends the message. The receiver gets copies of the descriptors.
    ///
    /// # Errors
    /// Fails if the other end is closed.
    pub(super) fn send(self, to: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = self.to_bytes();
        let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let length = size_of_val(&raw[..]) as u32;
        assert!(length <= DESCRIPTOR_BYTES, "too many descriptors for one message");
        let mut control = Control::default();
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: LENGTH };
        // SAFETY: the message refers to `part` and `control`, which outlive the call. `control` has room for the header
        // and the descriptors, and is aligned for them.
        let sent = retried(|| unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            if !raw.is_empty() {
                message.msg_control = control.as_mut_ptr().cast();
                message.msg_controllen = libc::CMSG_SPACE(length) as _;
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(length) as _;
                std::ptr::copy_nonoverlapping(raw.as_ptr().cast(), libc::CMSG_DATA(header), length as usize);
            }
            libc::sendmsg(to.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
        })?;
        if sent == LENGTH { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
    }

    /// Receives the next message and its descriptors. Returns `None` if the other end is closed.
    ///
    /// # Errors
    /// Fails if the connection fails, or ends within a message.
    pub(super) fn receive(mut from: &UnixStream) -> io::Result<Option<(Self, Vec<OwnedFd>)>> {
        let mut bytes = [0; LENGTH];
        let mut control = Control::default();
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: LENGTH };
        let mut descriptors = Vec::new();
        // SAFETY: as in `send`. The kernel makes the descriptors for this process, and nothing else has them.
        let received = retried(|| unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(DESCRIPTOR_BYTES) as _;
            let received = libc::recvmsg(from.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            if received > 0 && !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS {
                let length = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data: *const RawFd = libc::CMSG_DATA(header).cast();
                for index in 0..length / size_of::<RawFd>() {
                    descriptors.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            received
        })?;
        if received == 0 {
            return Ok(None);
        }
        from.read_exact(&mut bytes[received..])?;
        Ok(Some((Self::from_bytes(bytes), descriptors)))
    }
}

/// Makes a system call until no signal interrupts it.
fn retried(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(count) => return Ok(count),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn messages_arrive_one_by_one_with_their_descriptors() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let (unread, _) = std::io::pipe().unwrap();
        Message::End(7).send(&one, &[]).unwrap();
        Message::Start(u32::MAX).send(&one, &[writer.as_fd(), unread.as_fd()]).unwrap();
        Message::Ended(3, 0x8b).send(&one, &[]).unwrap();
        drop((one, writer));

        let (message, descriptors) = Message::receive(&other).unwrap().unwrap();
        assert_eq!((message, descriptors.len()), (Message::End(7), 0));
        let (message, mut descriptors) = Message::receive(&other).unwrap().unwrap();
        assert_eq!((message, descriptors.len()), (Message::Start(u32::MAX), 2));
        let mut writer = std::io::PipeWriter::from(descriptors.remove(0));
        writer.write_all(b"through the copy").unwrap();
        drop((writer, descriptors));
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through the copy");
        assert_eq!(Message::receive(&other).unwrap().unwrap().0, Message::Ended(3, 0x8b));
        assert!(Message::receive(&other).unwrap().is_none());
    }
}
