//! Checks for `grouping/ring`.

use std::sync::Arc;

use anyhow::Context;
use cudarc::driver::CudaStream;
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::{
    Budget, Check, Expected, Guarded, Kernels, each_call_fails, ensure, irregular, returns_at_once,
    without_panic, world_of_one,
};

use crate::exercise::foreign::beside_another_gpu;
use crate::exercise::open_group;
use crate::grouping::ring::{neighbors, shift, sum_around};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("ring::the_neighbors_form_a_ring", the_neighbors_form_a_ring).calls(&["neighbors"]),
        Check::new("ring::the_left_neighbor_s_values_arrive", the_left_neighbor_s_values_arrive)
            .calls(&["shift"])
            .min_ranks(3),
        Check::new("ring::two_ranks_exchange", || shifts(2)).calls(&["shift"]).min_ranks(2),
        Check::new("ring::a_single_rank_is_its_own_neighbor", || shifts(1)).calls(&["shift"]),
        Check::new("ring::shift_returns_at_once", shift_returns_at_once).calls(&["shift"]).min_ranks(2),
        Check::new("ring::after_an_error_no_group_is_open", after_an_error_no_group_is_open)
            .calls(&["shift"])
            .min_ranks(2),
        Check::new("ring::every_rank_gets_the_sum", every_rank_gets_the_sum)
            .calls(&["sum_around"])
            .min_ranks(3),
        Check::new("ring::the_sum_of_one_or_two_ranks", the_sum_of_one_or_two_ranks)
            .calls(&["sum_around"])
            .min_ranks(2),
        Check::new("ring::the_sum_returns_at_once", the_sum_returns_at_once)
            .calls(&["sum_around"])
            .min_ranks(2),
        Check::new("ring::a_shift_is_one_message_each_way", a_shift_is_one_message_each_way)
            .calls(&["shift"])
            .min_ranks(3),
        Check::new("ring::the_sum_reuses_its_buffers", the_sum_reuses_its_buffers)
            .calls(&["sum_around"])
            .min_ranks(3),
        Check::new("ring::a_failed_call_is_an_error", a_failed_call_is_an_error)
            .calls(&["shift", "sum_around"]),
    ]
}

/// A single element, and odd lengths larger than a warp and a block.
const LENGTHS: [usize; 3] = [1, 37, 1031];

/// Returns a rank's left and right neighbors. The ranks that were rotated by one are next to their neighbors.
fn true_neighbors(rank: usize, world_size: usize) -> (usize, usize) {
    let mut rotated: Vec<usize> = (0..world_size).collect();
    rotated.rotate_right(1);
    let left = rotated[rank];
    rotated.rotate_left(2 % world_size);
    (left, rotated[rank])
}

fn worlds_of_three_and_more() -> impl Iterator<Item = usize> {
    lab::world_sizes().into_iter().filter(|&size| size >= 3)
}

fn the_neighbors_form_a_ring() -> anyhow::Result<()> {
    for world_size in 1..=8 {
        for rank in (0..world_size).rev() {
            let (left, right) = neighbors(rank, world_size);
            let neighbors = format!("neighbors({rank}, {world_size}) returned left {left} and right {right}");
            for neighbor in [left, right] {
                ensure!(
                    neighbor < world_size,
                    "{neighbors}; the last rank is {}, and its right neighbor is rank 0",
                    world_size - 1
                );
            }
            let (previous, next) = true_neighbors(rank, world_size);
            ensure!(
                (left, right) == (previous, next),
                "{neighbors}, expected left {previous} and right {next}{}",
                if (left, right) == (next, previous) { ": left and right are swapped" } else { "" }
            );
        }
    }
    Ok(())
}

/// Returns the initial values of a rank's buffer.
fn stale(rank: usize, len: usize) -> Vec<f32> {
    irregular::integers(1000 + rank, len)
}

fn the_left_neighbor_s_values_arrive() -> anyhow::Result<()> {
    worlds_of_three_and_more().try_for_each(shifts)
}

fn shifts(world_size: usize) -> anyhow::Result<()> {
    rendezvous(&lab::streams(world_size)?, |comm| {
        // A rank that finds a mistake continues to the end, so that the other ranks do not wait for it.
        let mut verdict = Ok(());
        for len in LENGTHS {
            verdict = verdict.and(check_shift(&comm, len));
        }
        verdict
    })?;
    Ok(())
}

fn check_shift(comm: &Comm, len: usize) -> anyhow::Result<()> {
    let (rank, world_size, stream) = (comm.rank(), comm.world_size(), comm.stream());
    let own = irregular::integers(rank, len);
    let outgoing = Guarded::new(&stream, &own)?;
    let mut incoming = Guarded::new(&stream, &stale(rank, len))?;
    shift(comm, &outgoing.view(), &mut incoming.view_mut())?;
    let got = incoming.read()?;
    let (left, right) = true_neighbors(rank, world_size);
    Expected::new(rank, "`incoming`", &irregular::integers(left, len))
        .if_instead(
            &irregular::integers(right, len),
            format!("it comes from rank {right}, the right neighbor, not from the left neighbor"),
        )
        .if_instead(&own, "these are the rank's own values")
        .if_instead(&stale(rank, len), "it holds its old values: nothing was received")
        .exactly(&got)?;
    Expected::new(rank, "`outgoing`", &own).exactly(&outgoing.read()?)
}

fn shift_returns_at_once() -> anyhow::Result<()> {
    rendezvous(&lab::streams(2)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let outgoing = Guarded::new(&stream, &irregular::integers(rank, 37))?;
        let mut incoming = Guarded::new(&stream, &stale(rank, 37))?;
        returns_at_once("shift", &stream, || shift(&comm, &outgoing.view(), &mut incoming.view_mut()))
    })?;
    Ok(())
}

fn the_sum_returns_at_once() -> anyhow::Result<()> {
    rendezvous(&lab::streams(2)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let kernels = Kernels::load(comm.context())?;
        let own = Guarded::new(&stream, &irregular::integers(rank, 37))?;
        let mut total = Guarded::new(&stream, &stale(rank, 37))?;
        returns_at_once("sum_around", &stream, || {
            sum_around(&comm, &kernels, &own.view(), &mut total.view_mut())
        })
    })?;
    Ok(())
}

/// Checks a shift in which each rank's send buffer is on another rank's GPU.
fn after_an_error_no_group_is_open() -> anyhow::Result<()> {
    let check = |comm: &Comm, other: &Arc<CudaStream>| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let foreign = Guarded::new(other, &irregular::integers(rank, 37))?;
        let mut incoming = Guarded::new(&stream, &stale(rank, 37))?;
        stream.context().bind_to_thread()?;
        let result = without_panic("`shift` with a buffer on another GPU", || {
            shift(comm, &foreign.view(), &mut incoming.view_mut())
        })?;
        ensure!(
            result.is_err(),
            "rank {rank}: `outgoing` is on another GPU, but shift returned Ok; expected NCCL's error"
        );
        check_shift(comm, 37).with_context(|| {
            let failed = open_group::after("a `shift` that NCCL rejected", "the next `shift` failed");
            format!("rank {rank} of {}: {failed}", comm.world_size())
        })
    };
    // SAFETY: the check has not started any other threads yet.
    unsafe { beside_another_gpu(check) }
}

fn every_rank_gets_the_sum() -> anyhow::Result<()> {
    worlds_of_three_and_more().try_for_each(sums)
}

fn the_sum_of_one_or_two_ranks() -> anyhow::Result<()> {
    sums(1)?;
    sums(2)
}

fn sums(world_size: usize) -> anyhow::Result<()> {
    rendezvous(&lab::streams(world_size)?, |comm| {
        let kernels = Kernels::load(comm.context())?;
        let mut verdict = Ok(());
        for len in LENGTHS {
            verdict = verdict.and(check_sum(&comm, &kernels, len));
        }
        verdict
    })?;
    Ok(())
}

fn check_sum(comm: &Comm, kernels: &Kernels, len: usize) -> anyhow::Result<()> {
    let (rank, world_size, stream) = (comm.rank(), comm.world_size(), comm.stream());
    let inputs: Vec<_> = (0..world_size).map(|rank| irregular::integers(rank, len)).collect();
    let own = Guarded::new(&stream, &inputs[rank])?;
    let stale = stale(rank, len);
    let mut total = Guarded::new(&stream, &stale)?;
    sum_around(comm, kernels, &own.view(), &mut total.view_mut())?;
    let got = total.read()?;
    // Integers below 2²⁴ are exact in an f32.
    let each = |value: &dyn Fn(usize) -> f32| -> Vec<f32> { (0..len).map(value).collect() };
    let sum = |index: usize| inputs.iter().map(|input| input[index]).sum::<f32>();
    let (left_rank, right_rank) = true_neighbors(rank, world_size);
    let (left, right) = (&inputs[left_rank], &inputs[right_rank]);
    let others = (world_size - 1) as f32;
    // After each shift, a rank has its total and its left neighbor's.
    let totals_passed = |index: usize| {
        let mut totals: Vec<f32> = inputs.iter().map(|input| input[index]).collect();
        for _ in 1..world_size {
            let mut left = totals.clone();
            left.rotate_right(1);
            totals.iter_mut().zip(left).for_each(|(total, left)| *total += left);
        }
        totals[rank]
    };
    let name = format!("the total with world size {world_size}");
    let whole = each(&sum);
    let mut expected = Expected::new(rank, &name, &whole)
        .if_instead(&stale, "it holds its old values: nothing was written")
        .if_instead(
            &each(&|index| sum(index) + stale[index]),
            "the old values of `total` are in it: replace them",
        )
        .if_instead(
            &each(&|index| sum(index) - inputs[rank][index] + stale[index]),
            "the sum includes what was in the buffer before, and not the rank's own values: start with those",
        )
        .if_instead(
            &each(&|index| sum(index) + inputs[rank][index]),
            "the rank's own values were added twice",
        )
        .if_instead(&each(&|index| sum(index) - inputs[rank][index]), "the rank's own values are missing")
        .if_instead(&inputs[rank], "these are the rank's own values: nothing was added to them");
    // A single rank is its own neighbor.
    if world_size > 1 {
        expected = expected
            .if_instead(
                &each(&totals_passed),
                "each shift passes the running total on, so values are added several times; pass on what was received",
            )
            .if_instead(
                &each(&|index| inputs[rank][index] + others * left[index]),
                format!(
                    "the left neighbor's values were added {others} times: each shift sends the rank's own values, not \
                     what it received"
                ),
            )
            .if_instead(
                &each(&|index| sum(index) - right[index]),
                format!(
                    "the values from rank {right_rank}, the right neighbor, are missing: they arrive last, in shift {others}"
                ),
            )
            .if_instead(
                &each(&|index| sum(index) + inputs[rank][index] - right[index]),
                "the rank's own values were added twice, and those received last are missing: each shift adds what it \
                 sent, not what it received",
            );
    }
    expected.exactly(&got)?;
    Expected::new(rank, "the rank's own values", &inputs[rank]).exactly(&own.read()?)
}

fn a_shift_is_one_message_each_way() -> anyhow::Result<()> {
    rendezvous(&lab::streams(3)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let outgoing = stream.clone_htod(&irregular::integers(rank, 37))?;
        let mut incoming = stream.alloc_zeros::<f32>(37)?;
        let budget = Budget::of("shift").messages(2).collectives(&[]).kernels(0).copies(0).fills(0);
        let budget = budget.allocations(0).host_waits(0).polls(0).communicators(0).stream_of(&comm);
        budget.spend(|| shift(&comm, &outgoing.as_view(), &mut incoming.as_view_mut()))?;
        Ok(stream.synchronize()?)
    })?;
    Ok(())
}

fn the_sum_reuses_its_buffers() -> anyhow::Result<()> {
    // In the largest world, allocating a buffer in each round is most noticeable.
    let world_size = lab::world_sizes().into_iter().max().unwrap_or(3);
    let ranks = world_size as u64;
    rendezvous(&lab::streams(world_size)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let kernels = Kernels::load(comm.context())?;
        let own = stream.clone_htod(&irregular::integers(rank, 37))?;
        let mut total = stream.alloc_zeros::<f32>(37)?;
        // Two copies at the start, and one in each round if the buffers are not swapped. A kernel may also add the
        // rank's own values.
        let budget = Budget::of("sum_around").messages(2 * (ranks - 1)).collectives(&[]).kernels(ranks);
        let budget = budget.copies(2 + ranks).bytes_to_host(0).allocations(3).host_waits(0).polls(0);
        let budget = budget.new_streams(0).communicators(0).modules(0).stream_of(&comm);
        budget.spend(|| sum_around(&comm, &kernels, &own.as_view(), &mut total.as_view_mut()))?;
        Ok(stream.synchronize()?)
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("shift", || {
        let comm = world_of_one()?;
        let outgoing = comm.stream().alloc_zeros::<f32>(37)?;
        let mut incoming = comm.stream().alloc_zeros::<f32>(37)?;
        Ok(move || {
            shift(&comm, &outgoing.as_view(), &mut incoming.as_view_mut())?;
            Ok(comm.stream().synchronize()?)
        })
    })?;
    // With one rank, there are no shifts, so this covers only the calls before the first shift.
    each_call_fails("sum_around", || {
        let comm = world_of_one()?;
        let kernels = Kernels::load(comm.context())?;
        let own = comm.stream().alloc_zeros::<f32>(37)?;
        let mut total = comm.stream().alloc_zeros::<f32>(37)?;
        Ok(move || {
            sum_around(&comm, &kernels, &own.as_view(), &mut total.as_view_mut())?;
            Ok(comm.stream().synchronize()?)
        })
    })
}
