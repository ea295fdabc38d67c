//! Garbage on connections to the root's port, and from a process that isn't a root.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::{SHORT, free_port, reported};
use crate::rank_processes::spawn;

/// Strangers connect to the root's port before, while, and after the other processes connect. They must not disturb
/// them.
pub(super) fn garbage_on_the_port() -> anyhow::Result<()> {
    let address = format!("127.0.0.1:{}", free_port()?);
    let env = [("NCCL_COMM_ID", address.as_str())];
    let root = spawn("sums 0 1 2 0", &env)?;
    root.line("ids: ")?;
    let mut greeting = b"vgpunccl".to_vec();
    greeting.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    let mut other_version = greeting.clone();
    other_version[8] = 99;
    let mut wrong_id = greeting.clone();
    wrong_id.extend([0xa5; 132]);
    let garbage: [&[u8]; 6] =
        [b"", b"GET / HTTP/1.1\r\n\r\n", &[0xff; 5000], &greeting, &other_version, &wrong_id];
    let mut kept = Vec::new();
    for bytes in garbage {
        let mut stream = connect(&address)?;
        // The process may already have closed the connection.
        let _ = stream.write_all(bytes);
        kept.push(stream);
    }
    let mut member = spawn("sums 1 1 2 0", &env)?;
    member.give("")?;
    for process in [root, member] {
        process.said()?.map_err(anyhow::Error::msg)?;
    }
    // A process without the id must receive either an error about the missing id or no answer.
    let mut answer = [0; 16];
    kept[5].set_read_timeout(Some(Duration::from_secs(1)))?;
    kept[5].read_exact(&mut answer)?;
    ensure!(answer[12] == 1, "a stranger was accepted: {answer:?}");
    Ok(())
}

fn connect(address: &str) -> anyhow::Result<TcpStream> {
    let since = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return Ok(stream),
            Err(error) if since.elapsed() > Duration::from_secs(10) => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Another program is listening at the root's address: it sends garbage, closes the connection, or never answers.
pub(super) fn garbage_instead_of_the_root() -> anyhow::Result<()> {
    let cases: [(Option<&[u8]>, &str); 4] = [
        (Some(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "does not use the virtual GPU"),
        (Some(b""), "does not use the virtual GPU"),
        (Some(b"vgpunccl\x63\0\0\0\x02\0\0\0"), "another version of the virtual GPU"),
        (None, "does not answer"),
    ];
    for (bytes, words) in cases {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let env = [SHORT[0], ("NCCL_COMM_ID", address.as_str())];
        let mut member = spawn("joins 1 1 2 0", &env)?;
        member.give("")?;
        let (mut stream, _) = listener.accept()?;
        if let Some(bytes) = bytes {
            // The other process closes the connection as soon as it has read enough.
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
        }
        reported("rank 1", member.said()?, &[words])?;
    }
    Ok(())
}
