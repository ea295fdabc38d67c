// mistake: the attempts to connect have no end
// fails: id_exchange::waiting_ends_at_the_timeout
// says: fetch still waits
// says: what waits needs an end

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use cudarc::nccl::Id;
use lab::Readable;

pub const ID_BYTES: usize = 128;
pub const PAUSE: Duration = Duration::from_millis(20);
const TIME_TO_SPEAK: Duration = Duration::from_secs(1);

pub fn to_bytes(id: &Id) -> [u8; ID_BYTES] {
    id.internal().map(|byte| byte as u8)
}

pub fn from_bytes(bytes: [u8; ID_BYTES]) -> Id {
    Id::uninit(bytes.map(|byte| byte as _))
}

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

pub fn hand_out(
    listener: &TcpListener,
    id: &Id,
    world_size: usize,
    timeout: Duration,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + timeout;
    let mut missing: BTreeSet<usize> = (1..world_size).collect();
    while !missing.is_empty() {
        let (mut peer, rank) = next_rank(listener, deadline)
            .with_context(|| format!("ranks {missing:?} didn't ask for the id"))?;
        ensure!(missing.remove(&rank), "rank {rank} came twice, or is no rank of {world_size}");
        peer.write_all(&to_bytes(id)).with_context(|| format!("the id for rank {rank}"))?;
    }
    Ok(())
}

pub fn fetch(address: SocketAddr, rank: usize, timeout: Duration) -> anyhow::Result<Id> {
    let mut rank_0 = loop {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => break stream,
            Err(_) => thread::sleep(PAUSE),
        }
    };
    rank_0.set_read_timeout(Some(timeout))?;
    rank_0.write_all(&u32::try_from(rank)?.to_be_bytes())?;
    let mut bytes = [0; ID_BYTES];
    rank_0.read_exact(&mut bytes).with_context(|| format!("no id from rank 0 at {address}"))?;
    Ok(from_bytes(bytes))
}

pub fn exchange(
    rank: usize,
    world_size: usize,
    address: SocketAddr,
    timeout: Duration,
) -> anyhow::Result<Id> {
    if rank != 0 {
        return fetch(address, rank, timeout);
    }
    let listener = TcpListener::bind(address).with_context(|| format!("rank 0 can't listen at {address}"))?;
    let id = Id::new().readable()?;
    hand_out(&listener, &id, world_size, timeout)?;
    Ok(id)
}
