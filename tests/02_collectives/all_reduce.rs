//! Checks for `collectives/all_reduce`.

use anyhow::Context;
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::{
    Budget, Check, Expected, Guarded, each_call_fails, irregular, returns_at_once, without_panic,
    world_of_one,
};

use crate::collectives::all_reduce::{average_in_place, sum};
use crate::exercise::reference::{added, average_bound, divided, inputs, small_worlds};
use crate::exercise::refusal::refused;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("all_reduce::the_sum_arrives_on_every_rank", the_sum_arrives_on_every_rank)
            .calls(&["sum"])
            .min_ranks(2),
        Check::new("all_reduce::the_average_arrives_on_every_rank", the_average_arrives_on_every_rank)
            .calls(&["average_in_place"])
            .min_ranks(2),
        Check::new("all_reduce::one_rank_is_a_world_too", one_rank_is_a_world_too)
            .calls(&["sum", "average_in_place"]),
        Check::new("all_reduce::lengths_that_differ_are_an_error", lengths_that_differ_are_an_error)
            .calls(&["sum"]),
        Check::new("all_reduce::a_second_call_uses_the_first_result", a_second_call_uses_the_first_result)
            .calls(&["sum"])
            .min_ranks(2),
        Check::new("all_reduce::no_call_waits_on_the_host", no_call_waits_on_the_host)
            .calls(&["sum", "average_in_place"])
            .min_ranks(2),
        Check::new("all_reduce::each_function_is_one_collective", each_function_is_one_collective)
            .min_ranks(2),
        Check::new("all_reduce::no_elements_are_not_an_error", no_elements_are_not_an_error).min_ranks(2),
        Check::new("all_reduce::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

/// One element, fewer elements than ranks, and odd lengths larger than a warp and a block.
const LENGTHS: [usize; 4] = [1, 3, 37, 1031];

fn the_sum_arrives_on_every_rank() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            LENGTHS.iter().try_for_each(|&len| check_sum(&comm, len))
        })?;
    }
    Ok(())
}

fn check_sum(comm: &Comm, len: usize) -> anyhow::Result<()> {
    let (rank, world_size, stream) = (comm.rank(), comm.world_size(), comm.stream());
    let inputs = inputs(world_size, len);
    let stale = irregular::integers(100 + rank, len);
    let send = Guarded::new(&stream, &inputs[rank])?;
    let mut recv = Guarded::new(&stream, &stale)?;
    sum(comm, &send.view(), &mut recv.view_mut())?;
    // Integer sums below 2²⁴ are exact in an f32, in any order.
    let expected = added(&inputs);
    Expected::new(rank, "the receive buffer", &expected)
        .if_instead(&stale, "it holds its old values: neither a sum nor the values of `send` reached it")
        .if_instead(&inputs[rank], format!("these are rank {rank}'s own values: nothing was summed"))
        .if_instead(&divided(&expected, world_size), "this is the average, not the sum")
        .exactly(&recv.read()?)?;
    Expected::new(rank, "the send buffer", &inputs[rank])
        .if_instead(&expected, "the sum is in the send buffer: the call was in place")
        .exactly(&send.read()?)
}

fn the_average_arrives_on_every_rank() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            LENGTHS.iter().try_for_each(|&len| check_average(&comm, len))
        })?;
    }
    Ok(())
}

fn check_average(comm: &Comm, len: usize) -> anyhow::Result<()> {
    let (rank, world_size, stream) = (comm.rank(), comm.world_size(), comm.stream());
    let inputs = inputs(world_size, len);
    let mut buffer = Guarded::new(&stream, &inputs[rank])?;
    average_in_place(comm, &mut buffer.view_mut())?;
    let total = added(&inputs);
    let expected = divided(&total, world_size);
    Expected::new(rank, "the buffer", &expected)
        .if_instead(
            &inputs[rank],
            format!("these are rank {rank}'s own values: no average was stored in the buffer"),
        )
        .if_instead(&total, "this is the sum over all ranks, not divided by their number")
        .if_instead(&divided(&expected, world_size), "it was divided twice")
        .within(average_bound(world_size), &buffer.read()?)
}

fn one_rank_is_a_world_too() -> anyhow::Result<()> {
    rendezvous(&lab::streams(1)?, |comm| {
        check_sum(&comm, 37)?;
        check_average(&comm, 37)
    })?;
    Ok(())
}

fn lengths_that_differ_are_an_error() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            [(37, 36), (37, 38), (1031, 5)]
                .iter()
                .try_for_each(|&(send, recv)| check_lengths(&comm, send, recv))
        })?;
    }
    Ok(())
}

fn check_lengths(comm: &Comm, send_len: usize, recv_len: usize) -> anyhow::Result<()> {
    let (rank, stream) = (comm.rank(), comm.stream());
    let stale = irregular::integers(100 + rank, recv_len);
    let send = Guarded::new(&stream, &irregular::integers(rank, send_len))?;
    let mut recv = Guarded::new(&stream, &stale)?;
    let call = format!("a sum of {send_len} elements into a buffer of {recv_len}");
    let result = without_panic(&call, || sum(comm, &send.view(), &mut recv.view_mut()))?;
    refused(rank, &call, result, &[send_len, recv_len])?;
    stream.synchronize()?;
    Expected::new(rank, "the receive buffer after a rejected sum", &stale).exactly(&recv.read()?)
}

fn a_second_call_uses_the_first_result() -> anyhow::Result<()> {
    const LEN: usize = 257;
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let (rank, stream) = (comm.rank(), comm.stream());
            let inputs = inputs(world_size, LEN);
            let first = Guarded::new(&stream, &inputs[rank])?;
            let mut second = Guarded::new(&stream, &[0.0; LEN])?;
            let mut third = Guarded::new(&stream, &[0.0; LEN])?;
            sum(&comm, &first.view(), &mut second.view_mut())?;
            sum(&comm, &second.view(), &mut third.view_mut())?;
            // Every rank has the same sum, so summing again multiplies it by the number of ranks.
            let expected: Vec<f32> = added(&inputs).iter().map(|value| value * world_size as f32).collect();
            Expected::new(
                rank,
                "the receive buffer of a second `sum`, which sums the results of the first,",
                &expected,
            )
            .exactly(&third.read()?)
        })?;
    }
    Ok(())
}

fn no_call_waits_on_the_host() -> anyhow::Result<()> {
    rendezvous(&lab::streams(2)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let send = Guarded::new(&stream, &irregular::integers(rank, 37))?;
        let mut recv = Guarded::new(&stream, &irregular::integers(10 + rank, 37))?;
        let summed = returns_at_once("sum", &stream, || sum(&comm, &send.view(), &mut recv.view_mut()));
        let averaged =
            returns_at_once("average_in_place", &stream, || average_in_place(&comm, &mut recv.view_mut()));
        summed.and(averaged)
    })?;
    Ok(())
}

fn each_function_is_one_collective() -> anyhow::Result<()> {
    const LEN: usize = 37;
    rendezvous(&lab::streams(2)?, |comm| {
        let stream = comm.stream();
        let send = stream.clone_htod(&irregular::integers(comm.rank(), LEN))?;
        let mut recv = stream.alloc_zeros::<f32>(LEN)?;
        let budget = |function: &str| {
            let budget = Budget::of(function).collectives(&[("AllReduce", LEN)]).messages(0).kernels(0);
            budget.copies(0).fills(0).allocations(0).events(0).host_waits(0).communicators(0).stream_of(&comm)
        };
        budget("sum").spend(|| sum(&comm, &send.as_view(), &mut recv.as_view_mut()))?;
        budget("average_in_place").spend(|| average_in_place(&comm, &mut recv.as_view_mut()))?;
        Ok(stream.synchronize()?)
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("sum", || {
        let comm = world_of_one()?;
        let send = comm.stream().alloc_zeros::<f32>(37)?;
        let mut recv = comm.stream().alloc_zeros::<f32>(37)?;
        Ok(move || {
            sum(&comm, &send.as_view(), &mut recv.as_view_mut())?;
            Ok(comm.stream().synchronize()?)
        })
    })?;
    each_call_fails("average_in_place", || {
        let comm = world_of_one()?;
        let mut buffer = comm.stream().alloc_zeros::<f32>(37)?;
        Ok(move || {
            average_in_place(&comm, &mut buffer.as_view_mut())?;
            Ok(comm.stream().synchronize()?)
        })
    })
}

fn no_elements_are_not_an_error() -> anyhow::Result<()> {
    for world_size in small_worlds() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let stream = comm.stream();
            let (send, mut recv) = (stream.alloc_zeros::<f32>(5)?, stream.alloc_zeros::<f32>(5)?);
            sum(&comm, &send.slice(2..2), &mut recv.slice_mut(2..2)).context("`sum` over no elements")?;
            average_in_place(&comm, &mut recv.slice_mut(2..2))
                .context("`average_in_place` over no elements")?;
            Ok(stream.synchronize()?)
        })?;
    }
    Ok(())
}
