//! Checks for `init/rendezvous`.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;

use anyhow::bail;
use cudarc::driver::{CudaStream, result::ctx};
use lab::faults::each_call_of_all_threads_fails;
use lab::roll_call::{Answer, roll_call};
use lab::{Budget, Check, caught, ensure, without_panic};

use crate::init::rendezvous::rendezvous;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("rendezvous::rank_i_works_on_stream_i", rank_i_works_on_stream_i).calls(&["rendezvous"]),
        Check::new("rendezvous::every_rank_has_its_own_thread", every_rank_has_its_own_thread)
            .calls(&["rendezvous"]),
        Check::new("rendezvous::the_context_of_the_stream_is_bound", the_context_of_the_stream_is_bound)
            .calls(&["rendezvous"]),
        Check::new(
            "rendezvous::every_rank_learns_where_the_others_are",
            every_rank_learns_where_the_others_are,
        )
        .calls(&["rendezvous"])
        .min_ranks(2),
        Check::new("rendezvous::an_error_comes_back_with_its_rank", an_error_comes_back_with_its_rank)
            .calls(&["rendezvous"])
            .min_ranks(2),
        Check::new("rendezvous::a_panic_comes_back_with_its_rank", a_panic_comes_back_with_its_rank)
            .calls(&["rendezvous"])
            .min_ranks(2),
        Check::new("rendezvous::an_error_names_every_failed_rank", an_error_names_every_failed_rank)
            .calls(&["rendezvous"])
            .min_ranks(3),
        Check::new("rendezvous::groups_one_after_another_do_not_meet", groups_one_after_another_do_not_meet)
            .calls(&["rendezvous"]),
        Check::new("rendezvous::each_rank_makes_one_communicator", each_rank_makes_one_communicator),
        Check::new("rendezvous::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

/// Returns streams on GPUs in descending order, so that at most one rank equals its GPU's number.
fn streams(world_size: usize) -> anyhow::Result<Vec<Arc<CudaStream>>> {
    let mut streams = lab::streams(world_size)?;
    streams.reverse();
    Ok(streams)
}

fn rank_i_works_on_stream_i() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        let streams = streams(world_size)?;
        let ranks = rendezvous(&streams, |comm| {
            let (rank, got) = (comm.rank(), comm.world_size());
            ensure!(
                got == world_size,
                "rank {rank} has a communicator of world size {got}, expected {world_size}"
            );
            let gpu = |stream: &CudaStream| stream.context().ordinal();
            let (got, expected) = (gpu(&comm.stream()), gpu(&streams[rank]));
            ensure!(
                got == expected,
                "`work` received a communicator for rank {rank} with a stream on GPU {got}; expected streams[{rank}], \
                 which is on GPU {expected}"
            );
            ensure!(
                comm.stream() == streams[rank],
                "`work` received a communicator for rank {rank} with another stream of GPU {got}; expected streams[{rank}]"
            );
            Ok(rank)
        })?;
        let expected: Vec<usize> = (0..world_size).collect();
        ensure!(ranks == expected, "the results are from ranks {ranks:?}, expected {expected:?}");
    }
    Ok(())
}

fn every_rank_has_its_own_thread() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        let threads = rendezvous(&streams(world_size)?, |_| Ok(thread::current().id()))?;
        let different: HashSet<_> = threads.iter().collect();
        ensure!(
            different.len() == world_size && !different.contains(&thread::current().id()),
            "{world_size} ranks ran in {} threads, expected one thread per rank, none of them the caller's",
            different.len()
        );
    }
    Ok(())
}

fn the_context_of_the_stream_is_bound() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        let streams = streams(world_size)?;
        rendezvous(&streams, |comm| {
            let rank = comm.rank();
            let current = ctx::get_current()?;
            ensure!(
                current == Some(streams[rank].context().cu_ctx()),
                "in the thread of rank {rank}, the current context is not the context of streams[{rank}]"
            );
            Ok(())
        })?;
    }
    Ok(())
}

fn every_rank_learns_where_the_others_are() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        let streams = streams(world_size)?;
        let heard = rendezvous(&streams, |comm| roll_call(&comm))?;
        for (listener, heard) in heard.iter().enumerate() {
            for (rank, answer) in heard.iter().enumerate() {
                let expected = Answer { rank, world_size, gpu: streams[rank].context().ordinal() };
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

fn an_error_comes_back_with_its_rank() -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|&size| size >= 2) {
        let unlucky = world_size - 1;
        let streams = streams(world_size)?;
        let result = without_panic(&format!("rendezvous when rank {unlucky} fails"), || {
            rendezvous(&streams, |comm| {
                ensure!(comm.rank() != unlucky, "the disk is full");
                Ok(())
            })
        })?;
        let Err(error) = result else {
            bail!("rank {unlucky} failed, but `rendezvous` returned Ok; expected that rank's error")
        };
        let text = format!("{error:#}");
        ensure!(
            text.contains("the disk is full") && text.contains(&format!("rank {unlucky}")),
            "rank {unlucky} failed with `the disk is full`, so the error from `rendezvous` must contain both the rank \
             and that text; got: {text}"
        );
    }
    Ok(())
}

fn a_panic_comes_back_with_its_rank() -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|&size| size >= 2) {
        let unlucky = world_size - 1;
        let streams = streams(world_size)?;
        let situation = format!("`work` panicked on rank {unlucky}");
        let result = caught(|| {
            rendezvous(&streams, |comm| {
                assert!(comm.rank() != unlucky, "the index is out of range");
                Ok(())
            })
        });
        let Ok(result) = result else {
            bail!("{situation}, and so did `rendezvous`; expected an error that names the rank")
        };
        let Err(error) = result else {
            bail!("{situation}, but `rendezvous` returned Ok; expected an error that names the rank")
        };
        let text = format!("{error:#}");
        ensure!(
            text.contains(&format!("rank {unlucky}")),
            "{situation}: the error must contain `rank {unlucky}`; got: {text}"
        );
    }
    Ok(())
}

fn an_error_names_every_failed_rank() -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|&size| size >= 3) {
        let failed = [0, world_size - 1];
        let streams = streams(world_size)?;
        let result = without_panic(&format!("rendezvous when ranks {failed:?} fail"), || {
            rendezvous(&streams, |comm| {
                ensure!(!failed.contains(&comm.rank()), "the disk is full");
                Ok(())
            })
        })?;
        let Err(error) = result else {
            bail!(
                "ranks {failed:?} of {world_size} failed, but `rendezvous` returned Ok; expected their errors"
            )
        };
        let text = format!("{error:#}");
        let numbers: Vec<usize> =
            text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect();
        let missing: Vec<usize> = failed.into_iter().filter(|rank| !numbers.contains(rank)).collect();
        ensure!(
            missing.is_empty(),
            "ranks {failed:?} of {world_size} failed, so the error from `rendezvous` must name both of them, but \
             {missing:?} is missing from it: {text}"
        );
    }
    Ok(())
}

fn groups_one_after_another_do_not_meet() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        let streams = lab::streams(world_size)?;
        for round in 0..3 {
            let worlds = rendezvous(&streams, |comm| Ok(roll_call(&comm)?.len()))?;
            ensure!(
                worlds == vec![world_size; world_size],
                "call {round} of `rendezvous` created communicators of {worlds:?} ranks, expected {world_size} each"
            );
        }
    }
    Ok(())
}

fn each_rank_makes_one_communicator() -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|&size| size <= 3) {
        let streams = streams(world_size)?;
        let budget = Budget::of("rendezvous").of_all_threads().communicators(world_size as u64);
        let budget = budget.new_streams(0).allocations(0).copies(0).kernels(0).modules(0);
        budget.spend(|| rendezvous(&streams, |_| Ok(())))?;
    }
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_of_all_threads_fails("rendezvous", || {
        let streams = lab::streams(1)?;
        Ok(move || rendezvous(&streams, |_| Ok(())).map(drop))
    })
}
