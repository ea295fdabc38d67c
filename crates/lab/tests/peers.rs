//! Tests memory that other GPUs can access, and windows that other ranks can write to.

use std::process::ExitCode;

use anyhow::{Context, ensure};
use cudarc::nccl::Id;
use lab::{Check, OneSidedComm, PeerMemory, Readable, each_rank, enable_peer_access, streams};

fn main() -> ExitCode {
    lab::check::run(vec![
        Check::new("peers::memory_is_zero_and_can_be_read", memory_is_zero).reads_peer_memory().min_ranks(2),
        Check::new("peers::access_can_be_enabled_again", access_can_be_enabled_again)
            .reads_peer_memory()
            .min_ranks(2),
        Check::new("peers::a_put_arrives_before_its_signal", a_put_arrives).puts_into_windows().min_ranks(2),
        Check::new("peers::puts_outside_of_a_window_are_refused", refusals).puts_into_windows(),
    ])
}

fn memory_is_zero() -> anyhow::Result<()> {
    let memories =
        streams(2)?.iter().map(|stream| PeerMemory::zeroed(stream, 7)).collect::<Result<Vec<_>, _>>()?;
    ensure!(memories[0].address() != memories[1].address(), "both have one address");
    for memory in &memories {
        let words = memory.read()?;
        ensure!(words == [0; 7], "{words:?}");
    }
    Ok(())
}

fn access_can_be_enabled_again() -> anyhow::Result<()> {
    let streams = streams(2)?;
    for peer in [1, 1, 0] {
        enable_peer_access(streams[0].context(), peer)?;
    }
    let error = enable_peer_access(streams[0].context(), 1000).err().context("there is a GPU 1000")?;
    ensure!(error.to_string().contains("GPU 1000"), "{error}");
    Ok(())
}

fn a_put_arrives() -> anyhow::Result<()> {
    let (streams, id) = (streams(2)?, Id::new().readable()?);
    each_rank(2, |rank| {
        let (comm, peer) = (OneSidedComm::from_rank(streams[rank].clone(), rank, 2, id)?, 1 - rank);
        let (stream, mut window) = (comm.stream(), comm.window(5)?);
        let value = rank as f32 + 1.0;
        stream.memcpy_htod(&[value, -value], &mut window.slice_mut(..2))?;
        comm.put(&window, 0..2, peer, 3)?;
        comm.signal(peer)?;
        comm.wait(&[peer, peer])?;
        let got = stream.clone_dtoh(&*window)?;
        stream.synchronize()?;
        let other = peer as f32 + 1.0;
        ensure!(got == [value, -value, 0.0, other, -other], "rank {rank}: {got:?}");
        comm.wait(&[])
    })?;
    Ok(())
}

fn refusals() -> anyhow::Result<()> {
    let comm = OneSidedComm::from_rank(streams(1)?.remove(0), 0, 1, Id::new().readable()?)?;
    let window = comm.window(4)?;
    let refused = |result: anyhow::Result<()>, words: &str| {
        let error = result.err().with_context(|| format!("it passes: {words}"))?.to_string();
        ensure!(error.contains(words), "{words:?} is not in {error}");
        Ok(())
    };
    refused(
        comm.put(&window, 2..5, 0, 0),
        "a put of the elements 2..5 to element 0 of a window with 4 elements",
    )?;
    refused(comm.put(&window, 0..2, 0, 3), "a put of the elements 0..2 to element 3")?;
    refused(comm.put(&window, 0..2, 1, 0), "the peer is rank 1, but the communicator has 1 ranks")?;
    refused(comm.signal(7), "the peer is rank 7")?;
    refused(comm.wait(&[7]), "the peer is rank 7")
}
