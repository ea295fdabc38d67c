//! One process for each GPU: how all of them get the same id.
//!
//! Threads share an id by borrowing it. Processes have to send it: rank 0 makes it and listens; the others know rank 0's address
//! from their launcher, connect, say who they are, and read 128 bytes.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use cudarc::nccl::Id;
use lab::Readable;

/// Bytes of an id.
pub const ID_BYTES: usize = 128;
/// How long to wait before the next attempt.
pub const PAUSE: Duration = Duration::from_millis(20);
/// How long somebody who has connected may take to say which rank it is.
const TIME_TO_SPEAK: Duration = Duration::from_secs(1);

/// The id as it travels.
pub fn to_bytes(id: &Id) -> [u8; ID_BYTES] {
    id.internal().map(|byte| byte as u8)
}

/// The id that travelled.
pub fn from_bytes(bytes: [u8; ID_BYTES]) -> Id {
    Id::uninit(bytes.map(|byte| byte as _))
}

/// The next connection, and the rank that it says it is, in four bytes, the highest first. Who says nothing is no rank, and is
/// passed over.
///
/// # Errors
/// Nobody came before the deadline, or what the system answers.
pub fn next_rank(listener: &TcpListener, deadline: Instant) -> anyhow::Result<(TcpStream, usize)> {
    listener.set_nonblocking(true)?;
    while Instant::now() < deadline {
        let mut peer = match listener.accept() {
            Ok((peer, _)) => peer,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::sleep(PAUSE);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        peer.set_nonblocking(false)?;
        peer.set_read_timeout(Some(TIME_TO_SPEAK))?;
        let mut rank = [0; 4];
        if peer.read_exact(&mut rank).is_ok() {
            return Ok((peer, usize::try_from(u32::from_be_bytes(rank))?));
        }
    }
    bail!("nobody came in time")
}

/// Rank 0's part: gives the id to each of the other ranks once. `timeout` is for all of them together.
///
/// # Errors
/// Ranks that never came (the error names them), a rank that comes twice or is none of this world (with its number), or what the
/// system answers.
pub fn hand_out(listener: &TcpListener, id: &Id, world_size: usize, timeout: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + timeout;
    let mut missing: BTreeSet<usize> = (1..world_size).collect();
    // ANCHOR: hand_out
    // Write the id to every other rank, and keep `missing` up to date.
    // `next_rank` waits for one of them until the deadline, in whatever order they come.
    todo!("Write the id to every other rank, and keep `missing` up to date")
    // ANCHOR_END: hand_out
}

/// The part of all others: asks rank 0 for the id. Rank 0 may start later than this one, by `timeout` at most, and takes no
/// longer than that to answer.
///
/// # Errors
/// Rank 0 can't be reached in time, says nothing for so long, or leaves before the id is whole: with its address.
pub fn fetch(address: SocketAddr, rank: usize, timeout: Duration) -> anyhow::Result<Id> {
    let deadline = Instant::now() + timeout;
    // ANCHOR: fetch
    // Connect by the deadline, say the rank as `next_rank` reads it, and get the whole id.
    // Every call that waits needs an end, also where a machine says nothing at all. TCP keeps the order of bytes, and not what was
    // written together: one read may bring any part.
    todo!("Connect by the deadline, say the rank as `next_rank` reads it, and get the whole id")
    // ANCHOR_END: fetch
}

/// The id that all ranks share. Every rank must call it, with rank 0's address, and it returns when this rank has the id; on
/// rank 0, when all have it.
///
/// # Errors
/// Those of [`hand_out`] and [`fetch`], or what NCCL answers.
pub fn exchange(
    rank: usize,
    world_size: usize,
    address: SocketAddr,
    timeout: Duration,
) -> anyhow::Result<Id> {
    // ANCHOR: exchange
    // Make the id on one rank, listen there, and fetch it on all others.
    todo!("Make the id on one rank, listen there, and fetch it on all others")
    // ANCHOR_END: exchange
}
