//! Sends an id from rank 0 to all other processes, over TCP.
//!
//! Rank 0 creates the id and listens. The other ranks connect, send their rank, and read the id's bytes.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use cudarc::nccl::Id;
use lab::Readable;

/// The length of an id in bytes.
pub const ID_BYTES: usize = 128;
/// The time to wait before the next attempt.
pub const PAUSE: Duration = Duration::from_millis(20);
/// How long a process may take to send its rank after connecting.
const TIME_TO_SPEAK: Duration = Duration::from_secs(1);

/// Returns the id as bytes.
pub fn to_bytes(id: &Id) -> [u8; ID_BYTES] {
    id.internal().map(|byte| byte as u8)
}

/// Returns the id that consists of these bytes.
pub fn from_bytes(bytes: [u8; ID_BYTES]) -> Id {
    Id::uninit(bytes.map(|byte| byte as _))
}

/// Waits for the next connection that sends a rank, as four big-endian bytes. Ignores connections that send nothing.
///
/// # Errors
/// Fails if no rank connects before the deadline, or if a system call fails.
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
    bail!("no connection came in time")
}

/// Sends the id to each of the other ranks once. Only rank 0 calls it. `timeout` limits the entire call.
///
/// # Errors
/// Fails if ranks are still missing at the deadline, if a rank asks twice or is not in this world, or if a system call fails.
pub fn hand_out(listener: &TcpListener, id: &Id, world_size: usize, timeout: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + timeout;
    let mut missing: BTreeSet<usize> = (1..world_size).collect();
    // ANCHOR: hand_out
    // Give the id to every other rank:
    // 1. the ranks may connect in any order, but all of them by `deadline`; send each the id as soon as it asks;
    // 2. `missing` holds the ranks that have not asked yet;
    // 3. at the deadline, return an error that names the missing ranks, and no others;
    // 4. if a rank asks twice, or is not in this world, return an error that names it, such as `rank 1 asked twice`.
    todo!("Give the id to every other rank")
    // ANCHOR_END: hand_out
}

/// Gets the id from rank 0. All other ranks call it. Rank 0 may start up to `timeout` later than this rank.
///
/// # Errors
/// Fails if rank 0 can't be reached in time, sends nothing for `timeout`, or leaves before the id is complete.
pub fn fetch(address: SocketAddr, rank: usize, timeout: Duration) -> anyhow::Result<Id> {
    let deadline = Instant::now() + timeout;
    // ANCHOR: fetch
    // Get the whole id from rank 0:
    // 1. while rank 0 isn't listening, `fetch` keeps trying, and does not give up before `deadline`;
    // 2. the rank is sent in the format that `next_rank` reads;
    // 3. no single wait takes longer than `timeout`, even if a machine or a process doesn't respond;
    // 4. the id may arrive in pieces, and an incomplete id is an error;
    // 5. if rank 0 can't be reached, or the id is incomplete, the error contains rank 0's address.
    todo!("Get the whole id from rank 0")
    // ANCHOR_END: fetch
}

/// Returns the id that all ranks share. Every rank must call it, with rank 0's address. It returns once this rank has
/// the id; on rank 0, it returns once all ranks have it.
///
/// # Errors
/// Fails like [`hand_out`] and [`fetch`], or if an NCCL call fails.
pub fn exchange(
    rank: usize,
    world_size: usize,
    address: SocketAddr,
    timeout: Duration,
) -> anyhow::Result<Id> {
    // ANCHOR: exchange
    // Give all ranks the same id:
    // 1. rank 0 creates it, and listens only at `address`, and no longer than until all ranks have it;
    // 2. all other ranks fetch it from there;
    // 3. if rank 0 can't listen there, return an error that contains the address.
    todo!("Give all ranks the same id")
    // ANCHOR_END: exchange
}
