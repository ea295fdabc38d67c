//! Checks for `collectives/reduce`.

use anyhow::{Context, bail};
use cudarc::nccl::{Comm, ReduceOp};
use init::rendezvous::rendezvous;
use lab::{
    Budget, Check, Expected, Guarded, each_call_fails, ensure, irregular, returns_at_once, without_panic,
    world_of_one,
};

use crate::collectives::reduce::{range_on_root, reduce};
use crate::exercise::reference::small_worlds;
use crate::exercise::refusal::refused;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("reduce_to_root::only_the_root_gets_the_result", only_the_root_gets_the_result)
            .calls(&["reduce"])
            .min_ranks(2),
        Check::new("reduce_to_root::the_others_need_no_buffer", the_others_need_no_buffer)
            .calls(&["reduce"])
            .min_ranks(2),
        Check::new(
            "reduce_to_root::a_buffer_elsewhere_may_have_any_length",
            a_buffer_elsewhere_may_have_any_length,
        )
        .calls(&["reduce"])
        .min_ranks(2),
        Check::new(
            "reduce_to_root::a_root_that_is_not_a_rank_is_an_error",
            a_root_that_is_not_a_rank_is_an_error,
        )
        .calls(&["reduce"]),
        Check::new(
            "reduce_to_root::a_root_that_can_t_receive_is_an_error",
            a_root_that_can_t_receive_is_an_error,
        )
        .calls(&["reduce"]),
        Check::new(
            "reduce_to_root::the_range_is_known_to_the_root_alone",
            the_range_is_known_to_the_root_alone,
        )
        .calls(&["range_on_root"]),
        Check::new("reduce_to_root::the_range_of_infinities_is_known", the_range_of_infinities_is_known)
            .calls(&["range_on_root"])
            .min_ranks(2),
        Check::new("reduce_to_root::it_returns_at_once", it_returns_at_once).calls(&["reduce"]).min_ranks(2),
        Check::new("reduce_to_root::it_is_one_reduce", it_is_one_reduce).min_ranks(2),
        Check::new("reduce_to_root::a_range_takes_two_reduces", a_range_takes_two_reduces).min_ranks(2),
        Check::new("reduce_to_root::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

/// One element, fewer elements than ranks, and an odd length larger than a block.
const LENGTHS: [usize; 3] = [1, 3, 1031];

/// An operator: its name, its NCCL value, and a function that combines two numbers.
type Operator = (&'static str, ReduceOp, fn(f32, f32) -> f32);

const OPERATORS: [Operator; 4] = [
    ("Sum", ReduceOp::Sum, |a, b| a + b),
    ("Prod", ReduceOp::Prod, |a, b| a * b),
    ("Min", ReduceOp::Min, f32::min),
    ("Max", ReduceOp::Max, f32::max),
];

/// Returns ±½, ±1, ±2, and ±4. Their sums and products over 16 ranks are exact in `f32`.
fn inputs(world_size: usize, len: usize) -> Vec<Vec<f32>> {
    let power = |value: f32| value.signum() * f32::powi(2.0, value.abs() as i32 % 4 - 1);
    (0..world_size).map(|rank| irregular::integers(rank, len).into_iter().map(power).collect()).collect()
}

fn combined(inputs: &[Vec<f32>], combine: fn(f32, f32) -> f32) -> Vec<f32> {
    let element = |index| inputs.iter().map(|input| input[index]).reduce(combine).unwrap_or_default();
    (0..inputs[0].len()).map(element).collect()
}

fn only_the_root_gets_the_result() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        let streams = lab::streams(world_size)?;
        for root in 0..world_size {
            rendezvous(&streams, |comm| {
                // A rank that finds a mistake continues to the end, so that the other ranks do not wait for it.
                let mut verdict = Ok(());
                for operator in &OPERATORS {
                    for len in LENGTHS {
                        verdict = verdict.and(check_reduce(&comm, len, operator, root));
                    }
                }
                verdict
            })?;
        }
    }
    Ok(())
}

/// Checks a reduction to which every rank passes a receive buffer. Only the root's buffer may change.
fn check_reduce(comm: &Comm, len: usize, operator: &Operator, root: usize) -> anyhow::Result<()> {
    let (rank, world_size, stream) = (comm.rank(), comm.world_size(), comm.stream());
    let (name, op, combine) = operator;
    let inputs = inputs(world_size, len);
    let stale = irregular::integers(100 + rank, len);
    let send = Guarded::new(&stream, &inputs[rank])?;
    let mut recv = Guarded::new(&stream, &stale)?;
    reduce(comm, &send.view(), Some(&mut recv.view_mut()), op, root)?;
    let result = combined(&inputs, *combine);
    let got = recv.read()?;
    if rank == root {
        let buffer = format!("the root's receive buffer, after a {name},");
        let mut expected = Expected::new(rank, &buffer, &result)
            .if_instead(&stale, "it holds its old values: the root received no result")
            .if_instead(&inputs[rank], format!("these are rank {rank}'s own values: nothing was combined"));
        for (other, _, combine) in OPERATORS.iter().filter(|(other, ..)| other != name) {
            let cause = format!("this is the result of {other}");
            expected = expected.if_instead(&combined(&inputs, *combine), cause);
        }
        expected.exactly(&got)?;
    } else {
        let buffer = format!("the receive buffer, which a {name} to rank {root} must leave alone,");
        Expected::new(rank, &buffer, &stale)
            .if_instead(&result, "the result was sent to this rank, which is not the root")
            .exactly(&got)?;
    }
    Expected::new(rank, "the send buffer", &inputs[rank])
        .if_instead(&result, "the result is in the send buffer: the call was in place")
        .exactly(&send.read()?)
}

fn the_others_need_no_buffer() -> anyhow::Result<()> {
    const LEN: usize = 257;
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let (rank, stream) = (comm.rank(), comm.stream());
            let inputs = inputs(world_size, LEN);
            let send = Guarded::new(&stream, &inputs[rank])?;
            let mut verdict = Ok(());
            for root in 0..world_size {
                let mut recv = Guarded::new(&stream, &[0.0; LEN])?;
                let mut view = recv.view_mut();
                let recv_here = (rank == root).then_some(&mut view);
                reduce(&comm, &send.view(), recv_here, &ReduceOp::Sum, root)?;
                let expected = if rank == root { combined(&inputs, |a, b| a + b) } else { vec![0.0; LEN] };
                let comparison = Expected::new(rank, "the receive buffer that only the root has", &expected);
                verdict = verdict.and(comparison.exactly(&recv.read()?));
            }
            verdict
        })?;
    }
    Ok(())
}

fn a_root_that_is_not_a_rank_is_an_error() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let (rank, stream) = (comm.rank(), comm.stream());
            let send = Guarded::new(&stream, &irregular::integers(rank, 37))?;
            for root in [usize::MAX, world_size + 40, world_size] {
                let stale = irregular::integers(100 + rank, 37);
                let mut recv = Guarded::new(&stream, &stale)?;
                let call = format!("a reduce to rank {root} of {world_size}");
                let result = without_panic(&call, || {
                    reduce(&comm, &send.view(), Some(&mut recv.view_mut()), &ReduceOp::Sum, root)
                })?;
                refused(rank, &call, result, &[root, world_size])?;
                stream.synchronize()?;
                Expected::new(rank, "the receive buffer after a rejected reduce", &stale)
                    .exactly(&recv.read()?)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Uses only one rank, because other ranks would wait for the call that fails on the root.
fn a_root_that_can_t_receive_is_an_error() -> anyhow::Result<()> {
    rendezvous(&lab::streams(1)?, |comm| {
        let stream = comm.stream();
        let send = Guarded::new(&stream, &irregular::integers(0, 37))?;
        for len in [36, 38] {
            let stale = irregular::integers(100, len);
            let mut recv = Guarded::new(&stream, &stale)?;
            let call = format!("a reduce of 37 elements into a buffer of {len}");
            let result = without_panic(&call, || {
                reduce(&comm, &send.view(), Some(&mut recv.view_mut()), &ReduceOp::Sum, 0)
            })?;
            refused(0, &call, result, &[37, len])?;
            stream.synchronize()?;
            Expected::new(0, "the receive buffer after a rejected reduce", &stale).exactly(&recv.read()?)?;
        }
        let call = "a reduce to a root without a receive buffer";
        let result = without_panic(call, || reduce(&comm, &send.view(), None, &ReduceOp::Sum, 0))?;
        refused(0, call, result, &[])
    })?;
    Ok(())
}

fn the_range_is_known_to_the_root_alone() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        let streams = lab::streams(world_size)?;
        for root in 0..world_size {
            rendezvous(&streams, |comm| {
                let mut verdict = Ok(());
                for len in LENGTHS {
                    // All values have the same sign, so that a 0 that was never reduced is detected.
                    verdict = verdict.and(check_range(&comm, len, root, -3000.0));
                    verdict = verdict.and(check_range(&comm, len, root, 3000.0));
                }
                verdict
            })?;
        }
    }
    Ok(())
}

fn check_range(comm: &Comm, len: usize, root: usize, offset: f32) -> anyhow::Result<()> {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let shifted = |rank| -> Vec<f32> {
        irregular::integers(rank, len).into_iter().map(|value| value + offset).collect()
    };
    let range = |values: &[f32]| -> (f32, f32) {
        let (low, high) = (f32::INFINITY, f32::NEG_INFINITY);
        values.iter().fold((low, high), |(low, high), &value| (low.min(value), high.max(value)))
    };
    let own = shifted(rank);
    let all: Vec<f32> = (0..world_size).flat_map(shifted).collect();
    let buffer = Guarded::new(&comm.stream(), &own)?;
    let got = range_on_root(comm, &buffer.view(), root)?;
    let expected = (rank == root).then_some(range(&all));
    if got != expected {
        let cause = match got {
            Some(_) if rank != root => {
                "\n  only the root has the result; the other ranks must return None".to_owned()
            }
            Some(got) => {
                let first: Vec<f32> = (0..world_size).map(|rank| shifted(rank)[0]).collect();
                let inputs: Vec<_> = (0..world_size).map(shifted).collect();
                let causes = [
                    (range(&own), "this is the range of the rank's own values"),
                    (
                        range(&[&all[..], &[0.0]].concat()),
                        "the range includes 0, although no rank has a 0: start with infinities, or with one of the values",
                    ),
                    (
                        range(&first),
                        "this is the range of the ranks' first elements: a reduction works element by element",
                    ),
                    (
                        range(&combined(&inputs, f32::min)),
                        "the largest value is that of the ranks' minima: the second reduce needs ReduceOp::Max",
                    ),
                    (
                        range(&combined(&inputs, f32::max)),
                        "the smallest value is that of the ranks' maxima: the first reduce needs ReduceOp::Min",
                    ),
                ];
                // With a single value, several mistakes have the same result.
                let mut causes = causes.iter().filter(|(range, _)| *range == got);
                match (causes.next(), causes.next()) {
                    (Some((_, cause)), None) => format!("\n  likely cause: {cause}"),
                    _ => String::new(),
                }
            }
            None => String::new(),
        };
        bail!(
            "rank {rank}: range_on_root with world size {world_size}, {len} values per rank, and root {root} is \
             wrong\n  expected {expected:?}, got {got:?}{cause}"
        );
    }
    Expected::new(rank, "the buffer whose range was requested", &own).exactly(&buffer.read()?)
}

fn it_returns_at_once() -> anyhow::Result<()> {
    rendezvous(&lab::streams(2)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let send = Guarded::new(&stream, &irregular::integers(rank, 37))?;
        let mut recv = Guarded::new(&stream, &irregular::integers(10 + rank, 37))?;
        returns_at_once("reduce", &stream, || {
            reduce(&comm, &send.view(), Some(&mut recv.view_mut()), &ReduceOp::Sum, 1)
        })
    })?;
    Ok(())
}

fn it_is_one_reduce() -> anyhow::Result<()> {
    const LEN: usize = 37;
    for world_size in small_worlds() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let (rank, stream, root) = (comm.rank(), comm.stream(), world_size - 1);
            let send = stream.clone_htod(&irregular::integers(rank, LEN))?;
            let mut recv = stream.alloc_zeros::<f32>(LEN)?;
            let mut recv = recv.as_view_mut();
            let recv = (rank == root).then_some(&mut recv);
            let budget = Budget::of("reduce").collectives(&[("Reduce", LEN)]).messages(0).kernels(0);
            // A rank without a receive buffer may allocate one for NCCL.
            let budget = budget.copies(0).allocations(1).host_waits(0).communicators(0).stream_of(&comm);
            budget.spend(|| reduce(&comm, &send.as_view(), recv, &ReduceOp::Sum, root))?;
            Ok(stream.synchronize()?)
        })?;
    }
    Ok(())
}

fn a_range_takes_two_reduces() -> anyhow::Result<()> {
    const LEN: usize = 257;
    for world_size in small_worlds() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let values = comm.stream().clone_htod(&irregular::integers(comm.rank(), LEN))?;
            // Each rank may find its own range on the host before the ranks combine their ranges.
            let budget = Budget::of("range_on_root").any_collectives(2).messages(0).communicators(0);
            let budget = budget.copies(6).allocations(6).host_waits(8).stream_of(&comm);
            budget.spend(|| range_on_root(&comm, &values.as_view(), world_size - 1))?;
            Ok(comm.stream().synchronize()?)
        })?;
    }
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("reduce", || {
        let comm = world_of_one()?;
        let send = comm.stream().alloc_zeros::<f32>(37)?;
        let mut recv = comm.stream().alloc_zeros::<f32>(37)?;
        Ok(move || {
            reduce(&comm, &send.as_view(), Some(&mut recv.as_view_mut()), &ReduceOp::Sum, 0)?;
            Ok(comm.stream().synchronize()?)
        })
    })?;
    each_call_fails("range_on_root", || {
        let comm = world_of_one()?;
        let values = comm.stream().alloc_zeros::<f32>(37)?;
        Ok(move || range_on_root(&comm, &values.as_view(), 0).map(drop))
    })
}

fn a_buffer_elsewhere_may_have_any_length() -> anyhow::Result<()> {
    const LEN: usize = 37;
    for world_size in small_worlds() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            let (rank, stream, root) = (comm.rank(), comm.stream(), world_size - 1);
            let inputs = inputs(world_size, LEN);
            let send = Guarded::new(&stream, &inputs[rank])?;
            // On rank 0, one element fewer than in the root's buffer; on rank 1 of three, two elements fewer.
            let len = if rank == root { LEN } else { LEN - 1 - 34 * rank };
            let stale = irregular::integers(100 + rank, len);
            let mut recv = Guarded::new(&stream, &stale)?;
            let reduced = reduce(&comm, &send.view(), Some(&mut recv.view_mut()), &ReduceOp::Sum, root);
            reduced.with_context(|| {
                format!("a reduce of {LEN} elements to rank {root}, with a receive buffer of {len} elements on rank {rank}")
            })?;
            let expected = if rank == root { combined(&inputs, |a, b| a + b) } else { stale };
            let buffer = format!("the receive buffer, of {len} elements,");
            Expected::new(rank, &buffer, &expected).exactly(&recv.read()?)
        })?;
    }
    Ok(())
}

fn the_range_of_infinities_is_known() -> anyhow::Result<()> {
    for all in [f32::INFINITY, f32::NEG_INFINITY] {
        for world_size in small_worlds() {
            let ranges = rendezvous(&lab::streams(world_size)?, |comm| {
                let values = comm.stream().clone_htod(&[all; 5])?;
                let range = range_on_root(&comm, &values.as_view(), 0)?;
                comm.stream().synchronize()?;
                Ok(range)
            })?;
            ensure!(
                ranges[0] == Some((all, all)),
                "range_on_root for {world_size} ranks on which all values are {all}: expected {:?} on the root, got \
                 {:?}",
                Some((all, all)),
                ranges[0]
            );
        }
    }
    Ok(())
}
