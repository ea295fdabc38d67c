//! Checks for `collectives/broadcast`.

use std::sync::OnceLock;

use anyhow::{Context, bail};
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::{
    Budget, Check, Expected, Guarded, each_call_fails, ensure, irregular, named_ranks, returns_at_once,
    without_panic, world_of_one,
};

use crate::collectives::broadcast::{broadcast, replicas_equal};
use crate::exercise::reference::small_worlds;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("broadcast::every_rank_can_be_the_root", every_rank_can_be_the_root)
            .calls(&["broadcast"])
            .min_ranks(2),
        Check::new("broadcast::a_root_that_is_not_a_rank_is_an_error", a_root_that_is_not_a_rank_is_an_error)
            .calls(&["broadcast"]),
        Check::new("broadcast::equal_replicas_are_found_equal", equal_replicas_are_found_equal)
            .calls(&["replicas_equal"]),
        Check::new("broadcast::a_rank_that_differs_makes_all_calls", a_rank_that_differs_makes_all_calls)
            .calls(&["replicas_equal"])
            .min_ranks(2),
        Check::new(
            "broadcast::every_difference_is_found_by_all_ranks",
            every_difference_is_found_by_all_ranks,
        )
        .calls(&["replicas_equal"])
        .min_ranks(2),
        Check::new("broadcast::replicas_are_equal_after_a_broadcast", replicas_are_equal_after_a_broadcast)
            .calls(&["broadcast", "replicas_equal"])
            .min_ranks(2),
        Check::new("broadcast::it_returns_at_once", it_returns_at_once).calls(&["broadcast"]).min_ranks(2),
        Check::new("broadcast::it_is_one_broadcast_in_place", it_is_one_broadcast_in_place).min_ranks(2),
        Check::new(
            "broadcast::comparing_moves_each_buffer_a_few_times",
            comparing_moves_each_buffer_a_few_times,
        )
        .min_ranks(2),
        Check::new("broadcast::no_elements_are_not_an_error", no_elements_are_not_an_error).min_ranks(2),
        Check::new("broadcast::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

const LEN: usize = 1031;

/// Returns irregular values, including two NaNs and both zeros, whose bits arithmetic does not preserve.
fn values(rank: usize) -> Vec<f32> {
    let mut values = irregular::fractions(rank, LEN);
    values[5] = f32::from_bits(0x7fc0_1230 + rank as u32);
    values[6] = f32::from_bits(0xffc0_0001);
    values[7] = 0.0;
    values[8] = -0.0;
    values
}

fn every_rank_can_be_the_root() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        let streams = lab::streams(world_size)?;
        for root in 0..world_size {
            rendezvous(&streams, |comm| check_broadcast(&comm, root))?;
        }
    }
    Ok(())
}

fn check_broadcast(comm: &Comm, root: usize) -> anyhow::Result<()> {
    let mut buffer = Guarded::new(&comm.stream(), &values(comm.rank()))?;
    broadcast(comm, &mut buffer.view_mut(), root)?;
    compare(comm, root, &buffer)
}

/// Compares a rank's buffer with the root's.
fn compare(comm: &Comm, root: usize, buffer: &Guarded<f32>) -> anyhow::Result<()> {
    let rank = comm.rank();
    let name = format!("the buffer after a broadcast from rank {root}");
    let expected = values(root);
    let mut comparison = Expected::new(rank, &name, &expected);
    for other in (0..comm.world_size()).filter(|&other| other != root) {
        let cause = if other == rank {
            "it holds the rank's own values, as before: nothing was received".to_owned()
        } else {
            format!("these are rank {other}'s values, not the root's")
        };
        comparison = comparison.if_instead(&values(other), cause);
    }
    comparison.exactly(&buffer.read()?)
}

fn a_root_that_is_not_a_rank_is_an_error() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let (rank, stream) = (comm.rank(), comm.stream());
            for root in [world_size, world_size + 40, usize::MAX] {
                let mut buffer = Guarded::new(&stream, &values(rank))?;
                let call = format!("a broadcast from rank {root} of {world_size}");
                let result = without_panic(&call, || broadcast(&comm, &mut buffer.view_mut(), root))?;
                stream.synchronize()?;
                let Err(error) = result else {
                    bail!(
                        "rank {rank}: a broadcast from rank {root} of {world_size} returned Ok; expected an error"
                    )
                };
                let text = format!("{error:#}");
                let without_root = text.replacen(&root.to_string(), "", 1);
                ensure!(
                    text.contains(&root.to_string()) && without_root.contains(&world_size.to_string()),
                    "rank {rank}: the error must contain the root, {root}, and the world size, {world_size}; got: \
                     {text}"
                );
                ensure!(
                    !text.contains("nccl"),
                    "rank {rank}: a broadcast from rank {root} of {world_size} must send nothing, but NCCL was called: {text}"
                );
                Expected::new(rank, "the buffer after a rejected broadcast", &values(rank))
                    .exactly(&buffer.read()?)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Calls `replicas_equal` with this rank's values, and checks that it does not change them.
fn verdict(comm: &Comm, values: &[f32]) -> anyhow::Result<bool> {
    let buffer = Guarded::new(&comm.stream(), values)?;
    let verdict = replicas_equal(comm, &buffer.view())?;
    Expected::new(comm.rank(), "the buffer, which replicas_equal must only read,", values)
        .exactly(&buffer.read()?)?;
    Ok(verdict)
}

fn equal_replicas_are_found_equal() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let numbers: Vec<f32> = values(0).into_iter().filter(|value| !value.is_nan()).collect();
            for (what, values, cause) in [
                ("of one element", vec![3.25], ""),
                ("of infinities", vec![f32::INFINITY; 33], ""),
                ("with both zeros", numbers, ""),
                (
                    "with NaNs and both zeros",
                    values(0),
                    "\n  likely cause: it returned true without the NaNs. A NaN isn't equal to itself, but its bits \
                     are: compare `to_bits()`",
                ),
            ] {
                ensure!(
                    verdict(&comm, &values)?,
                    "rank {} of {world_size}: replicas_equal returned false for replicas {what}; expected true, \
                     because every bit is equal{cause}",
                    comm.rank()
                );
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Compares only once in each world, so that a rank that returns early makes no more calls.
fn a_rank_that_differs_makes_all_calls() -> anyhow::Result<()> {
    for world_size in small_worlds() {
        let other = world_size - 1;
        let returned: Vec<OnceLock<bool>> = (0..world_size).map(|_| OnceLock::new()).collect();
        let compared = rendezvous(&lab::streams(world_size)?, |comm| {
            let rank = comm.rank();
            let buffer = Guarded::new(&comm.stream(), &values(usize::from(rank == other)))?;
            let equal = replicas_equal(&comm, &buffer.view())?;
            returned[rank].set(equal).ok();
            Ok(())
        });
        let ranks = |has_returned: bool| -> Vec<usize> {
            (0..world_size).filter(|&rank| returned[rank].get().is_some() == has_returned).collect()
        };
        let (returned, stuck) = (ranks(true), ranks(false));
        let Err(error) = compared else { continue };
        let text = format!("{error:#}");
        ensure!(
            returned.is_empty() || !text.contains(" waits in nccl"),
            "rank {other} of {world_size} differs, and `replicas_equal` returned on ranks {returned:?} while ranks \
             {stuck:?} are still waiting in a collective: every rank must call every collective, even if it already \
             knows the result\n{text}"
        );
        bail!("rank {other} of {world_size} differs, and `replicas_equal` failed on ranks {stuck:?}\n{text}");
    }
    Ok(())
}

/// A named change to a replica.
type Difference = (&'static str, fn(&mut [f32]));

const DIFFERENCES: [Difference; 8] = [
    ("the first element", |values| values[0] += 1.0),
    ("the last element", |values| values[LEN - 1] += 1.0),
    ("the lowest bit of one element", |values| values[500] = f32::from_bits(values[500].to_bits() ^ 1)),
    ("two swapped elements", |values| values.swap(101, 102)),
    ("one element increased, and another decreased by the same amount", |values| {
        values[200] += 0.5;
        values[201] -= 0.5;
    }),
    ("the payload of a NaN", |values| values[5] = f32::from_bits(values[5].to_bits() ^ 0x10)),
    ("a NaN in place of a number", |values| values[300] = f32::NAN),
    ("the sign of a zero", |values| values[7] = -0.0),
];

fn every_difference_is_found_by_all_ranks() -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|&size| size >= 2) {
        let different = [0, world_size / 2, world_size - 1];
        let verdicts = rendezvous(&lab::streams(world_size)?, |comm| {
            let mut verdicts = Vec::new();
            for (_, change) in DIFFERENCES {
                for other in different {
                    let mut values = values(0);
                    if comm.rank() == other {
                        change(&mut values);
                    }
                    verdicts.push(verdict(&comm, &values)?);
                }
            }
            Ok(verdicts)
        })?;
        let is_found = |index: usize| {
            let of_difference = index * different.len()..(index + 1) * different.len();
            verdicts.iter().all(|of_rank| of_rank[of_difference.clone()].iter().all(|&equal| !equal))
        };
        let found = DIFFERENCES.iter().enumerate().filter(|(index, _)| is_found(*index));
        let found: Vec<&str> = found.map(|(_, (name, _))| *name).collect();
        for (index, (name, _)) in DIFFERENCES.iter().enumerate() {
            for (place, other) in different.iter().enumerate() {
                let equal: Vec<usize> =
                    (0..world_size).filter(|&rank| verdicts[rank][index * different.len() + place]).collect();
                ensure!(
                    equal.is_empty(),
                    "rank {other} of {world_size} differs in {name}, but replicas_equal returned true on {}; expected false on every rank\n  \
                     {}",
                    match equal.len() == world_size {
                        true => "every rank".to_owned(),
                        false => named_ranks(&equal),
                    },
                    match (equal.len() == world_size, found.is_empty()) {
                        (true, false) => format!("it finds these differences: {}", found.join(", ")),
                        (true, true) => "it finds no difference".to_owned(),
                        (false, _) =>
                            "the results differ from rank to rank: the ranks must combine them".to_owned(),
                    }
                );
            }
        }
    }
    Ok(())
}

fn replicas_are_equal_after_a_broadcast() -> anyhow::Result<()> {
    for world_size in lab::world_sizes().into_iter().filter(|&size| size >= 2) {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let mut buffer = Guarded::new(&comm.stream(), &values(comm.rank()))?;
            let before = replicas_equal(&comm, &buffer.view())?;
            broadcast(&comm, &mut buffer.view_mut(), world_size - 1)?;
            let after = replicas_equal(&comm, &buffer.view())?;
            compare(&comm, world_size - 1, &buffer)?;
            ensure!(
                !before,
                "replicas_equal returned true before a broadcast; expected false, because the ranks have different \
                 values"
            );
            ensure!(
                after,
                "replicas_equal returned false after a broadcast; expected true, because all bits are equal on all \
                 ranks"
            );
            Ok(())
        })?;
    }
    Ok(())
}

fn it_returns_at_once() -> anyhow::Result<()> {
    rendezvous(&lab::streams(2)?, |comm| {
        let stream = comm.stream();
        let mut buffer = Guarded::new(&stream, &irregular::integers(comm.rank(), 37))?;
        returns_at_once("broadcast", &stream, || broadcast(&comm, &mut buffer.view_mut(), 1))
    })?;
    Ok(())
}

fn it_is_one_broadcast_in_place() -> anyhow::Result<()> {
    for world_size in small_worlds() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let stream = comm.stream();
            let mut buffer = stream.clone_htod(&values(comm.rank()))?;
            let budget = Budget::of("broadcast").collectives(&[("Broadcast", LEN)]).messages(0).kernels(0);
            let budget = budget.copies(0).fills(0).allocations(0).host_waits(0).communicators(0);
            budget.stream_of(&comm).spend(|| broadcast(&comm, &mut buffer.as_view_mut(), world_size - 1))?;
            Ok(stream.synchronize()?)
        })?;
    }
    Ok(())
}

fn comparing_moves_each_buffer_a_few_times() -> anyhow::Result<()> {
    for world_size in small_worlds() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let stream = comm.stream();
            // So long that calls for chunks of a few hundred elements are too many.
            let buffer = stream.clone_htod(&irregular::integers(0, 9001))?;
            // A broadcast, two all-reduces, or an all-gather is enough, and none of them needs one call per element.
            let few = 4 + 2 * world_size as u64;
            let budget = Budget::of("replicas_equal").any_collectives(few).messages(few).communicators(0);
            let budget = budget.copies(few).fills(few).allocations(few).host_waits(few).stream_of(&comm);
            budget.spend(|| replicas_equal(&comm, &buffer.as_view()))
        })?;
    }
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("broadcast", || {
        let comm = world_of_one()?;
        let mut buffer = comm.stream().alloc_zeros::<f32>(37)?;
        Ok(move || {
            broadcast(&comm, &mut buffer.as_view_mut(), 0)?;
            Ok(comm.stream().synchronize()?)
        })
    })?;
    each_call_fails("replicas_equal", || {
        let comm = world_of_one()?;
        let buffer = comm.stream().alloc_zeros::<f32>(37)?;
        Ok(move || replicas_equal(&comm, &buffer.as_view()).map(drop))
    })
}

fn no_elements_are_not_an_error() -> anyhow::Result<()> {
    for world_size in small_worlds() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let stream = comm.stream();
            let mut buffer = stream.alloc_zeros::<f32>(5)?;
            broadcast(&comm, &mut buffer.slice_mut(2..2), 1).context("`broadcast` with no elements")?;
            Ok(stream.synchronize()?)
        })?;
    }
    Ok(())
}
