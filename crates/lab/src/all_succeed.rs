//! Lets all ranks succeed or fail together, and tells each rank why.

use anyhow::bail;
use cudarc::nccl::Comm;

use crate::explain::{Readable, error_text};

/// The most bytes of an error that other ranks receive, and one byte that marks a failure.
const ROOM: usize = 512;

/// Runs `work` on this rank, and waits until all ranks have run theirs. Returns this rank's result if all ranks
/// succeeded. Every rank must call it.
///
/// # Errors
/// Fails on every rank if `work` fails on any of them. The error is this rank's own or, if it has none, that of the
/// first rank that failed. Also fails if a call of NCCL or the driver fails.
pub fn all_succeed<T>(comm: &Comm, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let own = work();
    let mut message = [0_u8; ROOM];
    if let Err(error) = &own {
        message[0] = 1;
        message[1..].iter_mut().zip(error_text(error).bytes()).for_each(|(to, from)| *to = from);
    }
    let stream = comm.stream();
    let sent = stream.clone_htod(&message)?;
    let mut received = stream.alloc_zeros::<u8>(comm.world_size() * ROOM)?;
    comm.all_gather(&sent, &mut received).readable()?;
    let received = stream.clone_dtoh(&received)?;
    stream.synchronize()?;
    let own = own?;
    if let Some((rank, message)) = received.chunks(ROOM).enumerate().find(|(_, message)| message[0] == 1) {
        let text = message[1..].split(|&byte| byte == 0).next().unwrap_or_default();
        bail!("rank {rank} failed: {}", String::from_utf8_lossy(text));
    }
    Ok(own)
}
