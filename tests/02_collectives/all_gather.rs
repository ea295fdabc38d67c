//! Checks for `collectives/all_gather`.

use anyhow::Context;
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::{
    Budget, Check, Expected, Guarded, each_call_fails, irregular, returns_at_once, without_panic,
    world_of_one,
};

use crate::collectives::all_gather::{all_gather, all_gather_in_place};
use crate::exercise::reference::{place, small_worlds};
use crate::exercise::refusal::refused;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("all_gather::every_rank_gets_all_shards_in_order", every_rank_gets_all_shards_in_order)
            .calls(&["all_gather"])
            .min_ranks(2),
        Check::new("all_gather::the_shards_meet_in_one_buffer", the_shards_meet_in_one_buffer)
            .calls(&["all_gather_in_place"])
            .min_ranks(2),
        Check::new("all_gather::one_rank_is_a_world_too", one_rank_is_a_world_too)
            .calls(&["all_gather", "all_gather_in_place"]),
        Check::new(
            "all_gather::a_buffer_of_another_length_is_an_error",
            a_buffer_of_another_length_is_an_error,
        )
        .calls(&["all_gather"]),
        Check::new("all_gather::an_uneven_length_is_an_error", an_uneven_length_is_an_error)
            .calls(&["all_gather_in_place"])
            .min_ranks(2),
        Check::new("all_gather::no_call_waits_on_the_host", no_call_waits_on_the_host)
            .calls(&["all_gather", "all_gather_in_place"])
            .min_ranks(2),
        Check::new("all_gather::each_function_is_one_collective", each_function_is_one_collective)
            .min_ranks(2),
        Check::new("all_gather::no_elements_are_not_an_error", no_elements_are_not_an_error).min_ranks(2),
        Check::new("all_gather::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

/// The lengths of a shard. With the first three, writing one extra shard stays within the guards.
const LENGTHS: [usize; 4] = [1, 3, 13, 1031];

fn all_shards(world_size: usize, len: usize) -> Vec<f32> {
    (0..world_size).flat_map(|rank| irregular::integers(rank, len)).collect()
}

/// Returns the values that `whole` should contain, and the results of known mistakes. `stale` contains the earlier
/// values of `whole`.
fn expected<'a>(comm: &Comm, len: usize, whole: &'a [f32], stale: &[f32]) -> Expected<'a, f32> {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let own = &whole[place(rank, len)];
    let mut without_own = whole.to_vec();
    without_own[place(rank, len)].copy_from_slice(&stale[place(rank, len)]);
    let mut only_own = stale.to_vec();
    only_own[place(rank, len)].copy_from_slice(own);
    let from_the_back: Vec<f32> = whole.rchunks(len).flatten().copied().collect();
    let own_first: Vec<f32> =
        (0..world_size).flat_map(|step| whole[place((rank + step) % world_size, len)].to_vec()).collect();
    let mut overlapping = stale.to_vec();
    for other in 0..world_size {
        overlapping[other..other + len].copy_from_slice(&whole[place(other, len)]);
    }
    Expected::new(rank, "`whole`", whole)
        .if_instead(&without_own, format!("rank {rank}'s own shard is missing: `whole` must contain it, too"))
        .if_instead(stale, "it holds its old values")
        .if_instead(&only_own, "no other rank's shard arrived")
        .if_instead(&own.repeat(world_size), "these are copies of the rank's own shard")
        .if_instead(&from_the_back, "the shards are in reverse order")
        .if_instead(
            &own_first,
            "the rank's own shard comes first: the shards must be in rank order on every rank",
        )
        .if_instead(
            &overlapping,
            "rank r's shard starts at element r, not at r times its length, so the next shard overwrites it",
        )
}

fn every_rank_gets_all_shards_in_order() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            // A rank that finds a mistake continues to the end, so that the other ranks do not wait for it.
            let mut verdict = Ok(());
            for len in LENGTHS {
                verdict = verdict.and(check_all_gather(&comm, len));
            }
            verdict
        })?;
    }
    Ok(())
}

fn check_all_gather(comm: &Comm, len: usize) -> anyhow::Result<()> {
    let (rank, world_size, stream) = (comm.rank(), comm.world_size(), comm.stream());
    let own = irregular::integers(rank, len);
    let stale = irregular::integers(100 + rank, world_size * len);
    let shard = Guarded::new(&stream, &own)?;
    let mut whole = Guarded::new(&stream, &stale)?;
    all_gather(comm, &shard.view(), &mut whole.view_mut())?;
    expected(comm, len, &all_shards(world_size, len), &stale).exactly(&whole.read()?)?;
    Expected::new(rank, "`shard`, which must only be read,", &own).exactly(&shard.read()?)
}

fn the_shards_meet_in_one_buffer() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let mut verdict = Ok(());
            for len in LENGTHS {
                verdict = verdict.and(check_in_place(&comm, len));
            }
            verdict
        })?;
    }
    Ok(())
}

fn check_in_place(comm: &Comm, len: usize) -> anyhow::Result<()> {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let shards = all_shards(world_size, len);
    let mut stale = irregular::integers(100 + rank, world_size * len);
    stale[place(rank, len)].copy_from_slice(&shards[place(rank, len)]);
    let mut whole = Guarded::new(&comm.stream(), &stale)?;
    all_gather_in_place(comm, &mut whole.view_mut())?;
    expected(comm, len, &shards, &stale).exactly(&whole.read()?)
}

fn one_rank_is_a_world_too() -> anyhow::Result<()> {
    rendezvous(&lab::streams(1)?, |comm| {
        check_all_gather(&comm, 37)?;
        check_in_place(&comm, 37)
    })?;
    Ok(())
}

fn a_buffer_of_another_length_is_an_error() -> anyhow::Result<()> {
    const SHARD: usize = 13;
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let (rank, stream, needed) = (comm.rank(), comm.stream(), SHARD * world_size);
            let shard = Guarded::new(&stream, &irregular::integers(rank, SHARD))?;
            for len in [needed - 1, needed + 1, needed + SHARD] {
                let stale = irregular::integers(100 + rank, len);
                let mut whole = Guarded::new(&stream, &stale)?;
                let call =
                    format!("gathering {SHARD} elements per rank, {needed} in all, into a buffer of {len}");
                let result =
                    without_panic(&call, || all_gather(&comm, &shard.view(), &mut whole.view_mut()))?;
                refused(rank, &call, result, &[needed, len])?;
                stream.synchronize()?;
                Expected::new(rank, "`whole` after a rejected call", &stale).exactly(&whole.read()?)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn an_uneven_length_is_an_error() -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|&size| size >= 2) {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let (rank, stream) = (comm.rank(), comm.stream());
            for len in [world_size - 1, 13 * world_size + 1] {
                let stale = irregular::integers(100 + rank, len);
                let mut whole = Guarded::new(&stream, &stale)?;
                let call = format!("gathering in place in a buffer of length {len} on {world_size} ranks");
                let result = without_panic(&call, || all_gather_in_place(&comm, &mut whole.view_mut()))?;
                refused(rank, &call, result, &[len, world_size])?;
                stream.synchronize()?;
                Expected::new(rank, "`whole` after a rejected call", &stale).exactly(&whole.read()?)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn no_call_waits_on_the_host() -> anyhow::Result<()> {
    const LEN: usize = 37;
    rendezvous(&lab::streams(2)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let shard = Guarded::new(&stream, &irregular::integers(rank, LEN))?;
        let mut whole = Guarded::new(&stream, &irregular::integers(10 + rank, 2 * LEN))?;
        let gathered = returns_at_once("all_gather", &stream, || {
            all_gather(&comm, &shard.view(), &mut whole.view_mut())
        });
        let in_place = returns_at_once("all_gather_in_place", &stream, || {
            all_gather_in_place(&comm, &mut whole.view_mut())
        });
        gathered.and(in_place)
    })?;
    Ok(())
}

fn each_function_is_one_collective() -> anyhow::Result<()> {
    const LEN: usize = 37;
    for world_size in small_worlds() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let stream = comm.stream();
            let shard = stream.clone_htod(&irregular::integers(comm.rank(), LEN))?;
            let mut whole = stream.alloc_zeros::<f32>(LEN * world_size)?;
            let budget = |function: &str| {
                let budget = Budget::of(function).collectives(&[("AllGather", LEN)]).messages(0).kernels(0);
                budget.copies(0).fills(0).allocations(0).host_waits(0).communicators(0).stream_of(&comm)
            };
            budget("all_gather").spend(|| all_gather(&comm, &shard.as_view(), &mut whole.as_view_mut()))?;
            budget("all_gather_in_place").spend(|| all_gather_in_place(&comm, &mut whole.as_view_mut()))?;
            Ok(stream.synchronize()?)
        })?;
    }
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("all_gather", || {
        let comm = world_of_one()?;
        let shard = comm.stream().alloc_zeros::<f32>(37)?;
        let mut whole = comm.stream().alloc_zeros::<f32>(37)?;
        Ok(move || {
            all_gather(&comm, &shard.as_view(), &mut whole.as_view_mut())?;
            Ok(comm.stream().synchronize()?)
        })
    })?;
    each_call_fails("all_gather_in_place", || {
        let comm = world_of_one()?;
        let mut whole = comm.stream().alloc_zeros::<f32>(37)?;
        Ok(move || {
            all_gather_in_place(&comm, &mut whole.as_view_mut())?;
            Ok(comm.stream().synchronize()?)
        })
    })
}

fn no_elements_are_not_an_error() -> anyhow::Result<()> {
    for world_size in small_worlds() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let stream = comm.stream();
            let (shard, mut whole) = (stream.alloc_zeros::<f32>(5)?, stream.alloc_zeros::<f32>(5)?);
            all_gather(&comm, &shard.slice(2..2), &mut whole.slice_mut(2..2))
                .context("`all_gather` with no elements")?;
            all_gather_in_place(&comm, &mut whole.slice_mut(2..2))
                .context("`all_gather_in_place` with no elements")?;
            Ok(stream.synchronize()?)
        })?;
    }
    Ok(())
}
