//! Checks for `collectives/reduce_scatter`.

use std::ops::Range;

use anyhow::Context;
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::{
    Budget, Check, Expected, Guarded, NcclLog, each_call_fails, ensure, irregular, returns_at_once,
    without_panic, world_of_one,
};

use crate::collectives::reduce_scatter::{average_in_two_steps, average_part};
use crate::exercise::reference::{added, average_bound, divided, inputs, place, small_worlds};
use crate::exercise::refusal::refused;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("reduce_scatter::each_rank_gets_its_part", each_rank_gets_its_part)
            .calls(&["average_part"])
            .min_ranks(2),
        Check::new(
            "reduce_scatter::lengths_that_don_t_fit_are_an_error",
            lengths_that_don_t_fit_are_an_error,
        )
        .calls(&["average_part"]),
        Check::new("reduce_scatter::two_steps_average_the_whole", two_steps_average_the_whole)
            .calls(&["average_in_two_steps"])
            .min_ranks(2),
        Check::new("reduce_scatter::all_ranks_have_the_same_bits", all_ranks_have_the_same_bits)
            .calls(&["average_in_two_steps"])
            .min_ranks(2),
        Check::new("reduce_scatter::one_rank_is_a_world_too", one_rank_is_a_world_too)
            .calls(&["average_part", "average_in_two_steps"]),
        Check::new(
            "reduce_scatter::the_two_steps_are_not_an_all_reduce",
            the_two_steps_are_not_an_all_reduce,
        )
        .calls(&["average_in_two_steps"])
        .min_ranks(2),
        Check::new("reduce_scatter::no_call_waits_on_the_host", no_call_waits_on_the_host)
            .calls(&["average_part", "average_in_two_steps"])
            .min_ranks(2),
        Check::new("reduce_scatter::each_step_is_one_collective", each_step_is_one_collective).min_ranks(2),
        Check::new("reduce_scatter::no_elements_are_not_an_error", no_elements_are_not_an_error).min_ranks(2),
        Check::new("reduce_scatter::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

/// The lengths of a part.
const PARTS: [usize; 4] = [1, 3, 37, 1031];
/// The lengths of an entire buffer: odd lengths that rarely divide evenly, one that usually does, and some that are
/// smaller than the number of ranks.
const WHOLES: [usize; 5] = [37, 60, 1031, 3, 1];

fn each_rank_gets_its_part() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            // A rank that finds a mistake continues to the end, so that the other ranks do not wait for it.
            let mut verdict = Ok(());
            for len in PARTS {
                verdict = verdict.and(check_part(&comm, len));
            }
            verdict
        })?;
    }
    Ok(())
}

fn check_part(comm: &Comm, len: usize) -> anyhow::Result<()> {
    let (rank, world_size, stream) = (comm.rank(), comm.world_size(), comm.stream());
    let inputs = inputs(world_size, world_size * len);
    let stale = irregular::integers(100 + rank, len);
    let send = Guarded::new(&stream, &inputs[rank])?;
    let mut part = Guarded::new(&stream, &stale)?;
    average_part(comm, &send.view(), &mut part.view_mut())?;
    let total = added(&inputs);
    let average = divided(&total, world_size);
    let own = &average[place(rank, len)];
    let mut expected = Expected::new(rank, "`part`", own)
        .if_instead(&stale, "it holds its old values: nothing was received")
        .if_instead(&total[place(rank, len)], "this is the sum over all ranks, not divided by their number")
        .if_instead(&divided(own, world_size), "it was divided twice")
        .if_instead(&inputs[rank][place(rank, len)], "these are the rank's own values: nothing was averaged")
        .if_instead(
            &average[rank..rank + len],
            format!(
                "it starts at element {rank} of the average, but a part starts at its rank times its length"
            ),
        );
    for other in (0..world_size).filter(|&other| other != rank) {
        let cause = format!("this is rank {other}'s part");
        expected = expected.if_instead(&average[place(other, len)], cause);
    }
    expected.within(average_bound(world_size), &part.read()?)?;
    Expected::new(rank, "the send buffer", &inputs[rank]).exactly(&send.read()?)
}

fn lengths_that_don_t_fit_are_an_error() -> anyhow::Result<()> {
    const PART: usize = 13;
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let (rank, stream, needed) = (comm.rank(), comm.stream(), PART * world_size);
            for len in [needed - 1, needed + 1, needed + PART] {
                let stale = irregular::integers(100 + rank, PART);
                let send = Guarded::new(&stream, &irregular::integers(rank, len))?;
                let mut part = Guarded::new(&stream, &stale)?;
                let call = format!(
                    "with world size {world_size}, averaging {len} elements into parts of {PART}, which would read {needed} elements,"
                );
                let result =
                    without_panic(&call, || average_part(&comm, &send.view(), &mut part.view_mut()))?;
                refused(rank, &call, result, &[len, needed])?;
                stream.synchronize()?;
                Expected::new(rank, "`part` after a rejected call", &stale).exactly(&part.read()?)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn two_steps_average_the_whole() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let mut verdict = Ok(());
            for len in WHOLES {
                verdict = verdict.and(check_whole(&comm, len));
            }
            verdict
        })?;
    }
    Ok(())
}

fn check_whole(comm: &Comm, len: usize) -> anyhow::Result<()> {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let inputs = inputs(world_size, len);
    let mut buffer = Guarded::new(&comm.stream(), &inputs[rank])?;
    average_in_two_steps(comm, &mut buffer.view_mut())?;
    let total = added(&inputs);
    let average = divided(&total, world_size);
    let (part, rest) = (len / world_size, len % world_size);
    // Returns the average within `range`, and `other` elsewhere.
    let only = |range: Range<usize>, other: &[f32]| {
        let mut values = other.to_vec();
        values[range.clone()].copy_from_slice(&average[range]);
        values
    };
    let remainder = format!(
        "{len} elements are {world_size} parts of {part} elements, and {rest} more: the rest at the end is not averaged"
    );
    let longer = len.div_ceil(world_size);
    let own = (rank * longer).min(len)..((rank + 1) * longer).min(len);
    Expected::new(rank, &format!("the buffer, of length {len},"), &average)
        .if_instead(
            &inputs[rank],
            format!("these are rank {rank}'s own values: the average was not stored in the buffer"),
        )
        .if_instead(&total, "this is the sum over all ranks, not divided by their number")
        .if_instead(&divided(&average, world_size), "it was divided twice")
        .if_instead(&only(0..len - rest, &inputs[rank]), &*remainder)
        .if_instead(&only(0..len - rest, &vec![0.0; len]), &*remainder)
        .if_instead(
            &only(own, &inputs[rank]),
            "only the rank's own part is averaged: gather the other ranks' parts",
        )
        .within(average_bound(world_size), &buffer.read()?)
}

fn all_ranks_have_the_same_bits() -> anyhow::Result<()> {
    const LEN: usize = 1031;
    for world_size in lab::world_sizes() {
        let results = rendezvous(&lab::streams(world_size)?, |comm| {
            let own = irregular::fractions(comm.rank(), LEN);
            let mut buffer = Guarded::new(&comm.stream(), &own)?;
            average_in_two_steps(&comm, &mut buffer.view_mut())?;
            buffer.read()
        })?;
        for (rank, result) in results.iter().enumerate() {
            Expected::new(rank, "the average, compared with rank 0's,", &results[0]).exactly(result)?;
        }
    }
    Ok(())
}

fn one_rank_is_a_world_too() -> anyhow::Result<()> {
    rendezvous(&lab::streams(1)?, |comm| {
        check_part(&comm, 37)?;
        check_whole(&comm, 37)
    })?;
    Ok(())
}

fn the_two_steps_are_not_an_all_reduce() -> anyhow::Result<()> {
    // SAFETY: the check has not started any other threads yet.
    let log = unsafe { NcclLog::open() };
    rendezvous(&lab::streams(2)?, |comm| {
        let stream = comm.stream();
        let mut buffer = Guarded::new(&stream, &irregular::integers(comm.rank(), 37))?;
        average_in_two_steps(&comm, &mut buffer.view_mut())?;
        Ok(stream.synchronize()?)
    })?;
    let called = log.calls("AllReduce")?;
    ensure!(
        called.is_empty(),
        "average_in_two_steps called all-reduce with {called:?} elements; expected a reduce-scatter and an all-gather"
    );
    Ok(())
}

fn no_call_waits_on_the_host() -> anyhow::Result<()> {
    const LEN: usize = 37;
    rendezvous(&lab::streams(2)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let send = Guarded::new(&stream, &irregular::integers(rank, 2 * LEN))?;
        let mut part = Guarded::new(&stream, &irregular::integers(10 + rank, LEN))?;
        let averaged = returns_at_once("average_part", &stream, || {
            average_part(&comm, &send.view(), &mut part.view_mut())
        });
        let in_two_steps = returns_at_once("average_in_two_steps", &stream, || {
            average_in_two_steps(&comm, &mut part.view_mut())
        });
        averaged.and(in_two_steps)
    })?;
    Ok(())
}

fn each_step_is_one_collective() -> anyhow::Result<()> {
    const LEN: usize = 37;
    for world_size in small_worlds() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let (rank, stream) = (comm.rank(), comm.stream());
            let send = stream.clone_htod(&irregular::integers(rank, LEN * world_size))?;
            let mut part = stream.alloc_zeros::<f32>(LEN)?;
            let budget = |function: &str| {
                let budget = Budget::of(function).messages(0).kernels(0).host_waits(0).bytes_to_host(0);
                budget.communicators(0).stream_of(&comm)
            };
            let one_step = budget("average_part").collectives(&[("ReduceScatter", LEN)]).copies(0);
            let one_step = one_step.fills(0).allocations(0);
            one_step.spend(|| average_part(&comm, &send.as_view(), &mut part.as_view_mut()))?;
            for len in [LEN * world_size, LEN * world_size - 1] {
                let mut buffer = stream.clone_htod(&irregular::integers(rank, len))?;
                let two_steps = budget("average_in_two_steps").any_collectives(2);
                let two_steps = two_steps.copies(5).fills(4).allocations(4);
                two_steps.spend(|| average_in_two_steps(&comm, &mut buffer.as_view_mut()))?;
            }
            Ok(stream.synchronize()?)
        })?;
    }
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("average_part", || {
        let comm = world_of_one()?;
        let send = comm.stream().alloc_zeros::<f32>(37)?;
        let mut part = comm.stream().alloc_zeros::<f32>(37)?;
        Ok(move || {
            average_part(&comm, &send.as_view(), &mut part.as_view_mut())?;
            Ok(comm.stream().synchronize()?)
        })
    })?;
    each_call_fails("average_in_two_steps", || {
        let comm = world_of_one()?;
        let mut buffer = comm.stream().alloc_zeros::<f32>(37)?;
        Ok(move || {
            average_in_two_steps(&comm, &mut buffer.as_view_mut())?;
            Ok(comm.stream().synchronize()?)
        })
    })
}

fn no_elements_are_not_an_error() -> anyhow::Result<()> {
    for world_size in small_worlds() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let stream = comm.stream();
            let (send, mut part) = (stream.alloc_zeros::<f32>(5)?, stream.alloc_zeros::<f32>(5)?);
            average_part(&comm, &send.slice(2..2), &mut part.slice_mut(2..2))
                .context("`average_part` over no elements")?;
            Ok(stream.synchronize()?)
        })?;
    }
    Ok(())
}
