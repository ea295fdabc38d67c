//! The order that a check's process receives: which check to run, and the nonce that makes its answers genuine.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::Duration;

/// The argument that makes a test program run the checks that its parent orders. The orders come through connections, so
/// that neither the arguments nor the environment of an answer name the check.
pub(super) const RUN_CHECKS: &str = "run-checks";

/// The timeout for reading an order. The parent sends it before the process is forked.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Random bytes that only the parent and the harness of the check's process know.
pub(super) type Nonce = [u8; 16];

/// Returns a new nonce, made of the system's random bytes.
pub(super) fn nonce() -> io::Result<Nonce> {
    let mut nonce = Nonce::default();
    File::open("/dev/urandom")?.read_exact(&mut nonce)?;
    Ok(nonce)
}

/// The order that the parent gives to a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) check: String,
    pub(super) nonce: Nonce,
}

impl Order {
    /// Creates an order with a new nonce.
    pub(super) fn new(check: &str) -> io::Result<Self> {
        Ok(Self { check: check.to_owned(), nonce: nonce()? })
    }

    /// Sends the order: the nonce, the length of the check's name in one byte, and the name.
    pub(super) fn send(&self, mut to: impl Write) -> io::Result<()> {
        let length = u8::try_from(self.check.len())
            .map_err(|_| io::Error::new(ErrorKind::InvalidInput, "a check's name has at most 255 bytes"))?;
        to.write_all(&[&self.nonce[..], &[length], self.check.as_bytes()].concat())
    }

    /// Receives the order. The socket no longer has it afterward, so an answer can't read it.
    pub(super) fn receive(mut from: &UnixStream) -> io::Result<Self> {
        from.set_read_timeout(Some(TIMEOUT))?;
        let (mut nonce, mut length) = (Nonce::default(), [0]);
        from.read_exact(&mut nonce)?;
        from.read_exact(&mut length)?;
        let mut check = vec![0; length[0].into()];
        from.read_exact(&mut check)?;
        let check =
            String::from_utf8(check).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        Ok(Self { check, nonce })
    }
}

/// The number of the check that this process runs: its place in the test program's list.
pub(super) static OWN_CHECK: OnceLock<usize> = OnceLock::new();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_arrives_whole_and_once() {
        let (parent, child) = UnixStream::pair().unwrap();
        let order = Order::new("devices::a_name").unwrap();
        order.send(&parent).unwrap();
        assert_eq!(Order::receive(&child).unwrap(), order);
        drop(parent);
        assert_eq!(Order::receive(&child).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_ne!(order.nonce, Order::new("devices::a_name").unwrap().nonce);
    }

    #[test]
    fn a_name_that_is_too_long_is_refused() {
        let order = Order::new(&"x".repeat(256)).unwrap();
        assert_eq!(order.send(Vec::new()).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
