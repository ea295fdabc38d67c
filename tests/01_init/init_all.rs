//! Checks for `init/init_all`.

use std::sync::Arc;

use anyhow::bail;
use cudarc::driver::CudaStream;
use cudarc::nccl::Comm;
use lab::roll_call::{Answer, roll_call_on_one_thread};
use lab::{Budget, Check, each_call_fails, ensure, without_panic};

use crate::init::init_all::{Identity, communicators, identity};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("init_all::communicator_i_works_on_stream_i", communicator_i_works_on_stream_i)
            .calls(&["communicators"]),
        Check::new("init_all::all_are_members_of_one_group", all_are_members_of_one_group)
            .calls(&["communicators"])
            .min_ranks(2),
        Check::new(
            "init_all::an_identity_is_rank_world_size_and_gpu",
            an_identity_is_rank_world_size_and_gpu,
        )
        .calls(&["identity"]),
        Check::new(
            "init_all::every_rank_learns_where_the_others_are",
            every_rank_learns_where_the_others_are,
        )
        .calls(&["communicators"])
        .min_ranks(2),
        Check::new("init_all::an_error_of_nccl_is_returned", an_error_of_nccl_is_returned)
            .calls(&["communicators"])
            .needs_a_gpu_for_each_rank(),
        Check::new("init_all::nothing_but_the_group_is_made", nothing_but_the_group_is_made).min_ranks(2),
        Check::new("init_all::a_failed_call_is_an_error", a_failed_call_is_an_error).min_ranks(2),
    ]
}

/// Returns streams on GPUs in descending order, so that at most one rank equals its GPU's number.
fn streams(world_size: usize) -> anyhow::Result<Vec<Arc<CudaStream>>> {
    let mut streams = lab::streams(world_size)?;
    streams.reverse();
    Ok(streams)
}

fn gpu(stream: &CudaStream) -> usize {
    stream.context().ordinal()
}

fn made(streams: &[Arc<CudaStream>]) -> anyhow::Result<Vec<Comm>> {
    let comms = communicators(streams)?;
    let (made, asked) = (comms.len(), streams.len());
    ensure!(
        made == asked,
        "communicators(…) returned {made} communicators for {asked} streams, expected one per stream"
    );
    Ok(comms)
}

fn communicator_i_works_on_stream_i() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        let streams = streams(world_size)?;
        for (index, (comm, stream)) in made(&streams)?.iter().zip(&streams).enumerate() {
            let (got, expected) = (gpu(&comm.stream()), gpu(stream));
            ensure!(
                got == expected,
                "communicator {index} of {world_size} uses a stream on GPU {got}, expected streams[{index}], which is on \
                 GPU {expected}"
            );
            ensure!(
                comm.stream() == *stream,
                "communicator {index} of {world_size} uses another stream of GPU {got}, expected streams[{index}]"
            );
        }
    }
    Ok(())
}

fn all_are_members_of_one_group() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        for (index, comm) in made(&streams(world_size)?)?.iter().enumerate() {
            let got = comm.world_size();
            ensure!(
                got == world_size,
                "communicator {index} has world size {got}, expected {world_size}: a single call creates the entire \
                 group"
            );
        }
    }
    Ok(())
}

fn an_identity_is_rank_world_size_and_gpu() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        let streams = streams(world_size)?;
        // Created with cudarc directly, because this check covers only `identity`.
        let comms = lab::Readable::readable(Comm::from_devices(streams.clone()))?;
        for (rank, comm) in comms.iter().enumerate() {
            let expected = Identity { rank, world_size, gpu: gpu(&streams[rank]) };
            let got = identity(comm);
            ensure!(
                got == expected,
                "rank {rank} has the wrong identity\n  expected {expected:?}\n  got {got:?}"
            );
        }
    }
    Ok(())
}

fn every_rank_learns_where_the_others_are() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        let streams = streams(world_size)?;
        let comms = made(&streams)?;
        ensure!(
            comms.iter().all(|comm| comm.world_size() == world_size),
            "at least one communicator's world size is not {world_size}"
        );
        for (listener, heard) in roll_call_on_one_thread(&comms)?.iter().enumerate() {
            for (rank, answer) in heard.iter().enumerate() {
                let expected = Answer { rank, world_size, gpu: gpu(&streams[rank]) };
                ensure!(
                    *answer == expected,
                    "rank {listener} received the wrong answer in a broadcast from rank {rank}\n  expected {expected}, \
                     got {answer}"
                );
            }
        }
    }
    Ok(())
}

fn nothing_but_the_group_is_made() -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|&size| size <= 3) {
        let streams = streams(world_size)?;
        let budget = Budget::of("communicators").communicators(world_size as u64).new_streams(0);
        budget.allocations(0).copies(0).kernels(0).modules(0).spend(|| communicators(&streams))?;
    }
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("communicators", || {
        let streams = streams(2)?;
        Ok(move || communicators(&streams).map(drop))
    })
}

fn an_error_of_nccl_is_returned() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    let streams = [stream.context().new_stream()?, stream];
    let call = "communicators(…) for two streams on one GPU, which NCCL rejects";
    let Err(error) = without_panic(call, || communicators(&streams))? else {
        bail!("{call}: expected NCCL's error, but got Ok")
    };
    let text = format!("{error:#}");
    // The codes that NCCL may return for it.
    let is_readable = ["ncclInvalidUsage", "ncclInvalidArgument"].iter().any(|code| text.contains(code));
    ensure!(is_readable, "{call}: the error must contain NCCL's error code; got: {text}");
    Ok(())
}
