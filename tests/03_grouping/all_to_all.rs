//! Checks for `grouping/all_to_all`.

use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::CudaStream;
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::{
    Budget, Check, Expected, Guarded, each_call_fails, ensure, irregular, returns_at_once, without_panic,
    world_of_one,
};

use crate::exercise::foreign::beside_another_gpu;
use crate::exercise::open_group;
use crate::grouping::all_to_all::{all_to_all, gather, scatter};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("all_to_all::scatter_gives_each_rank_its_part", || for_each_root(2, check_scatter))
            .calls(&["scatter"])
            .min_ranks(2),
        Check::new("all_to_all::gather_brings_the_parts_in_rank_order", || for_each_root(2, check_gather))
            .calls(&["gather"])
            .min_ranks(2),
        Check::new("all_to_all::every_rank_receives_from_every_rank", every_rank_receives_from_every_rank)
            .calls(&["all_to_all"])
            .min_ranks(2),
        Check::new("all_to_all::a_single_rank_keeps_its_values", a_single_rank_keeps_its_values).calls(&[
            "scatter",
            "gather",
            "all_to_all",
        ]),
        Check::new("all_to_all::after_an_error_no_group_is_open", after_an_error_no_group_is_open)
            .calls(&["scatter", "gather", "all_to_all"])
            .min_ranks(2),
        Check::new("all_to_all::gather_undoes_scatter", || for_each_root(2, scattered_and_gathered))
            .calls(&["scatter", "gather"])
            .min_ranks(2),
        Check::new("all_to_all::no_call_waits_on_the_host", no_call_waits_on_the_host)
            .calls(&["scatter", "gather", "all_to_all"])
            .min_ranks(2),
        Check::new("all_to_all::each_part_is_one_message", each_part_is_one_message)
            .calls(&["scatter", "gather", "all_to_all"])
            .min_ranks(3),
        Check::new("all_to_all::a_failed_call_is_an_error", a_failed_call_is_an_error).calls(&[
            "scatter",
            "gather",
            "all_to_all",
        ]),
    ]
}

/// The lengths of a part: a single element, and odd lengths larger than a warp and a block.
const PARTS: [usize; 3] = [1, 37, 1031];

type CheckOfRoot = fn(&Comm, usize, usize) -> anyhow::Result<()>;

/// Runs a check for each length and each root, in each world with at least `least` ranks.
fn for_each_root(least: usize, check: CheckOfRoot) -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|&size| size >= least) {
        for_each_root_of(world_size, check)?;
    }
    Ok(())
}

fn for_each_root_of(world_size: usize, check: CheckOfRoot) -> anyhow::Result<()> {
    rendezvous(&lab::streams(world_size)?, |comm| {
        // A rank that finds a mistake continues to the end, so that the other ranks do not wait for it.
        let mut verdict = Ok(());
        for root in (0..world_size).rev() {
            for len in PARTS {
                verdict = verdict.and(check(&comm, len, root));
            }
        }
        verdict
    })?;
    Ok(())
}

/// Returns the values that a rank has for all ranks together.
fn whole(rank: usize, world_size: usize, len: usize) -> Vec<f32> {
    irregular::integers(rank, world_size * len)
}

/// Returns part `of` of the values that `rank` has for all ranks together.
fn part(rank: usize, world_size: usize, len: usize, of: usize) -> Vec<f32> {
    whole(rank, world_size, len)[of * len..(of + 1) * len].to_vec()
}

/// Returns the initial values of a rank's buffer.
fn stale(rank: usize, len: usize) -> Vec<f32> {
    irregular::integers(1000 + rank, len)
}

fn check_scatter(comm: &Comm, len: usize, root: usize) -> anyhow::Result<()> {
    let (rank, world_size, stream) = (comm.rank(), comm.world_size(), comm.stream());
    let send = Guarded::new(&stream, &whole(rank, world_size, len))?;
    let mut recv = Guarded::new(&stream, &stale(rank, len))?;
    let view = send.view();
    // The other ranks pass data that differs from the root's.
    scatter(comm, Some(&view), &mut recv.view_mut(), root)?;
    Expected::new(rank, &format!("the part received from root {root}"), &part(root, world_size, len, rank))
        .if_instead(&stale(rank, len), "it holds its old values: nothing was received")
        .if_instead(
            &part(root, world_size, len, 0),
            "it is part 0 of the root's buffer, not this rank's part",
        )
        .if_instead(&part(root, world_size, len, root), "it is the root's own part, not this rank's")
        .if_instead(
            &part(rank, world_size, len, rank),
            "it is a part of this rank's buffer, not of the root's",
        )
        .exactly(&recv.read()?)
}

fn check_gather(comm: &Comm, len: usize, root: usize) -> anyhow::Result<()> {
    let (rank, world_size, stream) = (comm.rank(), comm.world_size(), comm.stream());
    let own = |rank| irregular::integers(rank, len);
    let before = stale(rank, world_size * len);
    let send = Guarded::new(&stream, &own(rank))?;
    let mut recv = Guarded::new(&stream, &before)?;
    // The other ranks also pass a buffer, which must not change.
    gather(comm, &send.view(), Some(&mut recv.view_mut()), root)?;
    let got = recv.read()?;
    if rank != root {
        return Expected::new(rank, &format!("the receive buffer, when rank {root} is the root,"), &before)
            .exactly(&got);
    }
    let expected: Vec<f32> = (0..world_size).flat_map(own).collect();
    let without_its_own: Vec<f32> = (0..world_size)
        .flat_map(|of| if of == rank { before[of * len..(of + 1) * len].to_vec() } else { own(of) })
        .collect();
    let reversed: Vec<f32> = (0..world_size).rev().flat_map(own).collect();
    Expected::new(rank, "what the root gathered", &expected)
        .if_instead(&before, "it holds its old values: nothing was received")
        .if_instead(&without_its_own, "the root's own part is missing: it belongs in `whole`, too")
        .if_instead(&reversed, "the parts are in reverse order")
        .exactly(&got)
}

fn every_rank_receives_from_every_rank() -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|&size| size >= 2) {
        exchanges(world_size)?;
    }
    Ok(())
}

fn exchanges(world_size: usize) -> anyhow::Result<()> {
    rendezvous(&lab::streams(world_size)?, |comm| {
        let mut verdict = Ok(());
        for len in PARTS {
            verdict = verdict.and(check_all_to_all(&comm, len));
        }
        verdict
    })?;
    Ok(())
}

fn check_all_to_all(comm: &Comm, len: usize) -> anyhow::Result<()> {
    let (rank, world_size, stream) = (comm.rank(), comm.world_size(), comm.stream());
    let own = whole(rank, world_size, len);
    let before = stale(rank, world_size * len);
    let outgoing = Guarded::new(&stream, &own)?;
    let mut incoming = Guarded::new(&stream, &before)?;
    all_to_all(comm, &outgoing.view(), &mut incoming.view_mut())?;
    let got = incoming.read()?;
    let of_each =
        |which: &dyn Fn(usize) -> Vec<f32>| -> Vec<f32> { (0..world_size).flat_map(which).collect() };
    // The ranks that the parts in `got` came from, if all are from different ranks.
    let sender = |got: &[f32]| (0..world_size).find(|&from| part(from, world_size, len, rank) == got);
    let senders: Option<Vec<usize>> = got.chunks_exact(len).map(sender).collect();
    let senders = senders.filter(|senders| (0..world_size).all(|rank| senders.contains(&rank)));
    let moved = senders.map(|senders| {
        format!(
            "all parts arrived, but in the order of ranks {senders:?} instead of the order of rank numbers"
        )
    });
    let name = format!("what `all_to_all` received from {world_size} ranks");
    let right = of_each(&|from| part(from, world_size, len, rank));
    let mut expected = Expected::new(rank, &name, &right);
    if let Some(moved) = moved {
        expected = expected.if_instead(&got, moved);
    }
    expected
    .if_instead(&before, "it holds its old values: nothing was received")
    .if_instead(&own, "these are the rank's own values")
    .if_instead(
        &of_each(&|from| match from == rank {
            true => before[rank * len..(rank + 1) * len].to_vec(),
            false => part(from, world_size, len, rank),
        }),
        "the rank's own part is missing: a rank also sends a part to itself",
    )
    .if_instead(
        &of_each(&|from| part(from, world_size, len, from)),
        "every rank sent the part with its own number to all ranks: send each rank the part with the receiver's number",
    )
    .if_instead(&of_each(&|from| part(from, world_size, len, 0)), "every rank sent its part 0 to all ranks")
    .exactly(&got)?;
    Expected::new(rank, "the buffer that is sent", &own).exactly(&outgoing.read()?)
}

fn a_single_rank_keeps_its_values() -> anyhow::Result<()> {
    for_each_root_of(1, check_scatter)?;
    for_each_root_of(1, check_gather)?;
    exchanges(1)
}

/// Checks calls with a receive or send buffer on another rank's GPU. On the root of a scatter or gather, both buffers
/// are on that GPU.
fn after_an_error_no_group_is_open() -> anyhow::Result<()> {
    const LEN: usize = 37;
    let check = |comm: &Comm, other: &Arc<CudaStream>| {
        let (rank, world_size, stream) = (comm.rank(), comm.world_size(), comm.stream());
        let root = world_size - 1;
        let mut foreign = Guarded::new(other, &stale(rank, LEN))?;
        let mut foreign_whole = Guarded::new(other, &stale(rank, world_size * LEN))?;
        let own_whole = Guarded::new(&stream, &whole(rank, world_size, LEN))?;
        // A rank that copies its own part uses the communicator's stream.
        other.synchronize()?;
        stream.context().bind_to_thread()?;
        let judged = |call: &str, result: anyhow::Result<()>, next: anyhow::Result<()>| {
            ensure!(
                result.is_err(),
                "rank {rank}: a buffer is on another GPU, but `{call}` returned Ok; expected NCCL's error"
            );
            next.with_context(|| {
                let refused = format!("the rejected `{call}`");
                let failed = open_group::after(&refused, &format!("the next `{call}` failed"));
                format!("rank {rank} of {world_size}: {failed}")
            })
        };
        let refused = |call: &str| format!("`{call}` with a buffer on another GPU");
        let result = without_panic(&refused("scatter"), || {
            scatter(comm, Some(&foreign_whole.view()), &mut foreign.view_mut(), root)
        })?;
        judged("scatter", result, check_scatter(comm, LEN, root))?;
        let result = without_panic(&refused("gather"), || {
            gather(comm, &foreign.view(), Some(&mut foreign_whole.view_mut()), root)
        })?;
        judged("gather", result, check_gather(comm, LEN, root))?;
        let result = without_panic(&refused("all_to_all"), || {
            all_to_all(comm, &own_whole.view(), &mut foreign_whole.view_mut())
        })?;
        judged("all_to_all", result, check_all_to_all(comm, LEN))
    };
    // SAFETY: the check has not started any other threads yet.
    unsafe { beside_another_gpu(check) }
}

/// Checks a scatter and a gather for which only the root has a `whole` buffer.
fn scattered_and_gathered(comm: &Comm, len: usize, root: usize) -> anyhow::Result<()> {
    let (rank, world_size, stream) = (comm.rank(), comm.world_size(), comm.stream());
    let mut part = Guarded::new(&stream, &stale(rank, len))?;
    if rank != root {
        scatter(comm, None, &mut part.view_mut(), root)?;
        gather(comm, &part.view(), None, root)?;
        return Ok(stream.synchronize()?);
    }
    let values = whole(root, world_size, len);
    let send = Guarded::new(&stream, &values)?;
    let mut recv = Guarded::new(&stream, &stale(rank, world_size * len))?;
    scatter(comm, Some(&send.view()), &mut part.view_mut(), root)?;
    gather(comm, &part.view(), Some(&mut recv.view_mut()), root)?;
    Expected::new(rank, "the values that were scattered and gathered again", &values).exactly(&recv.read()?)
}

fn no_call_waits_on_the_host() -> anyhow::Result<()> {
    const LEN: usize = 37;
    rendezvous(&lab::streams(2)?, |comm| {
        let world_size = comm.world_size();
        let (rank, stream, root) = (comm.rank(), comm.stream(), world_size - 1);
        let outgoing = Guarded::new(&stream, &whole(rank, world_size, LEN))?;
        let mut incoming = Guarded::new(&stream, &stale(rank, world_size * LEN))?;
        let mut part = Guarded::new(&stream, &stale(rank, LEN))?;
        let scattered = returns_at_once("scatter", &stream, || {
            scatter(&comm, Some(&outgoing.view()), &mut part.view_mut(), root)
        });
        let gathered = returns_at_once("gather", &stream, || {
            gather(&comm, &part.view(), Some(&mut incoming.view_mut()), root)
        });
        let exchanged = returns_at_once("all_to_all", &stream, || {
            all_to_all(&comm, &outgoing.view(), &mut incoming.view_mut())
        });
        scattered.and(gathered).and(exchanged)
    })?;
    Ok(())
}

fn each_part_is_one_message() -> anyhow::Result<()> {
    const LEN: usize = 37;
    const ROOT: usize = 1;
    rendezvous(&lab::streams(3)?, |comm| {
        let (rank, world_size, stream) = (comm.rank(), comm.world_size(), comm.stream());
        let outgoing = stream.clone_htod(&whole(rank, world_size, LEN))?;
        let mut incoming = stream.alloc_zeros::<f32>(world_size * LEN)?;
        let mut part = stream.alloc_zeros::<f32>(LEN)?;
        // A rank may copy its own part instead of sending it to itself.
        let budget = |function: &str, messages: usize| {
            let budget = Budget::of(function).messages(messages as u64).collectives(&[]).kernels(0).copies(1);
            budget.fills(0).allocations(0).host_waits(0).polls(0).communicators(0).stream_of(&comm)
        };
        let of_root = if rank == ROOT { world_size + 1 } else { 1 };
        let to_all = outgoing.as_view();
        budget("scatter", of_root).spend(|| scatter(&comm, Some(&to_all), &mut part.as_view_mut(), ROOT))?;
        let mut from_all = incoming.as_view_mut();
        budget("gather", of_root).spend(|| gather(&comm, &part.as_view(), Some(&mut from_all), ROOT))?;
        budget("all_to_all", 2 * world_size).groups(1).spend(|| all_to_all(&comm, &to_all, &mut from_all))?;
        Ok(stream.synchronize()?)
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    for function in ["scatter", "gather", "all_to_all"] {
        each_call_fails(function, || {
            let comm = world_of_one()?;
            let send = comm.stream().alloc_zeros::<f32>(37)?;
            let mut recv = comm.stream().alloc_zeros::<f32>(37)?;
            Ok(move || {
                let (send, mut recv) = (send.as_view(), recv.as_view_mut());
                match function {
                    "scatter" => scatter(&comm, Some(&send), &mut recv, 0)?,
                    "gather" => gather(&comm, &send, Some(&mut recv), 0)?,
                    _ => all_to_all(&comm, &send, &mut recv)?,
                }
                Ok(comm.stream().synchronize()?)
            })
        })?;
    }
    Ok(())
}
