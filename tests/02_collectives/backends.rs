//! Checks for `collectives/backends`.

use std::cell::Cell;

use anyhow::{Context, bail};
use cudarc::nccl::{Comm, ReduceOp};
use half::{bf16, f16};
use init::rendezvous::rendezvous;
use lab::{
    Budget, Check, Expected, Guarded, HostGroup, Kernels, Readable, each_call_fails, ensure, irregular,
};

use crate::collectives::backends::{staged_sum, times_as_long};
use crate::exercise::reference::small_worlds;
use crate::exercise::spinning::spinning;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("backends::the_sum_comes_back_to_every_gpu", the_sum_comes_back_to_every_gpu)
            .calls(&["staged_sum"])
            .min_ranks(2),
        Check::new("backends::both_backends_have_the_same_numbers", both_backends_have_the_same_numbers)
            .calls(&["staged_sum"])
            .min_ranks(2),
        Check::new("backends::all_ranks_have_the_same_bits", all_ranks_have_the_same_bits)
            .calls(&["staged_sum"])
            .min_ranks(3),
        Check::new("backends::later_work_sees_the_sum", later_work_sees_the_sum).calls(&["staged_sum"]),
        Check::new("backends::both_are_measured_the_same_way", both_are_measured_the_same_way)
            .measures_time()
            .calls(&["times_as_long"]),
        Check::new("backends::warming_up_is_not_measured", warming_up_is_not_measured)
            .measures_time()
            .calls(&["times_as_long"]),
        Check::new("backends::two_all_reduces_are_compared", two_all_reduces_are_compared)
            .measures_time()
            .calls(&["times_as_long"])
            .min_ranks(2),
        Check::new(
            "backends::each_value_is_copied_to_the_host_and_back_once",
            each_value_is_copied_to_the_host_and_back_once,
        )
        .min_ranks(2),
        Check::new("backends::measuring_costs_little", measuring_costs_little),
        Check::new("backends::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

const LENGTHS: [usize; 4] = [1, 37, 1031, 65_537];

/// Runs `work` on each rank, with a host group for all ranks.
fn on_each_rank(
    world_size: usize,
    work: impl Fn(&Comm, &HostGroup) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let group = HostGroup::new(world_size);
    rendezvous(&lab::streams(world_size)?, |comm| work(&comm, &group))?;
    Ok(())
}

fn the_sum_comes_back_to_every_gpu() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        for len in LENGTHS {
            on_each_rank(world_size, |comm, group| {
                let (rank, stream) = (comm.rank(), comm.stream());
                let all: Vec<Vec<f32>> = (0..world_size).map(|rank| irregular::integers(rank, len)).collect();
                let sum = |ranks: &[Vec<f32>]| -> Vec<f32> {
                    (0..len).map(|at| ranks.iter().map(|values| values[at]).sum()).collect()
                };
                let mut buffer = Guarded::new(&stream, &all[rank])?;
                staged_sum(group, rank, &stream, &mut buffer.view_mut()).context("staged_sum")?;
                let total = sum(&all);
                let twice: Vec<f32> = total.iter().zip(&all[rank]).map(|(total, own)| total + own).collect();
                let others: Vec<f32> = total.iter().zip(&all[rank]).map(|(total, own)| total - own).collect();
                let average: Vec<f32> = total.iter().map(|total| total / world_size as f32).collect();
                let [in_f16, in_bf16] = in_16_bits(&all);
                Expected::new(rank, &format!("the buffer, of length {len},"), &total)
                    .if_instead(&all[rank], "these are the rank's own values: no sum was copied to this GPU")
                    .if_instead(&twice, "the rank's own values were added twice")
                    .if_instead(&others, "the rank's own values are missing")
                    .if_instead(&average, "this is the average")
                    .if_instead(&in_f16, IN_F16)
                    .if_instead(&in_bf16, IN_BF16)
                    .exactly(&buffer.read()?)
            })?;
        }
    }
    Ok(())
}

const IN_F16: &str = "this is a sum in f16, which has 13 fewer bits than f32";
const IN_BF16: &str = "this is a sum in bf16, which has 16 fewer bits than f32";

/// Returns the sums of all ranks' values, computed in `f16` and in `bf16`.
fn in_16_bits(all: &[Vec<f32>]) -> [Vec<f32>; 2] {
    let sum = |round: fn(f32) -> f32| {
        let add = |sum: f32, value: f32| round(round(sum) + round(value));
        (0..all[0].len()).map(|at| all.iter().fold(0.0, |sum, values| add(sum, values[at]))).collect()
    };
    [sum(|value| f16::from_f32(value).to_f32()), sum(|value| bf16::from_f32(value).to_f32())]
}

fn both_backends_have_the_same_numbers() -> anyhow::Result<()> {
    const LEN: usize = 1031;
    for world_size in lab::world_sizes() {
        on_each_rank(world_size, |comm, group| {
            let (rank, stream) = (comm.rank(), comm.stream());
            let all: Vec<Vec<f32>> = (0..world_size).map(|rank| irregular::fractions(rank, LEN)).collect();
            let mut by_nccl = Guarded::new(&stream, &all[rank])?;
            comm.all_reduce_in_place(&mut by_nccl.view_mut(), &ReduceOp::Sum).readable()?;
            let by_nccl = by_nccl.read()?;
            let mut buffer = Guarded::new(&stream, &all[rank])?;
            staged_sum(group, rank, &stream, &mut buffer.view_mut()).context("staged_sum")?;
            let sum = |add: &dyn Fn(f32, f32) -> f32| -> Vec<f32> {
                (0..LEN).map(|at| all.iter().fold(0.0, |sum, values| add(sum, values[at]))).collect()
            };
            let [in_f16, in_bf16] = in_16_bits(&all);
            // Each of the n − 1 additions of values up to 1 rounds by at most 2⁻²⁴ · n. Each backend adds in a
            // different order.
            let bound = 2.0 * ((world_size - 1) * world_size) as f64 * f64::powi(2.0, -24);
            Expected::new(rank, "the result of staged_sum, compared with NCCL's result,", &by_nccl)
                .if_instead(&all[rank], "these are the rank's own values: no sum was copied to this GPU")
                .if_instead(&in_f16, IN_F16)
                .if_instead(&in_bf16, IN_BF16)
                .if_instead(
                    &sum(&|sum, value| sum + value.round()),
                    "the values were rounded to whole numbers",
                )
                .if_instead(
                    &sum(&|sum, value| sum + value.trunc()),
                    "the values were truncated to whole numbers",
                )
                .within(bound, &buffer.read()?)
        })?;
    }
    Ok(())
}

fn all_ranks_have_the_same_bits() -> anyhow::Result<()> {
    const LEN: usize = 1031;
    // Thirds use all bits, so most additions are rounded.
    let values =
        |rank| -> Vec<f32> { irregular::fractions(rank, LEN).iter().map(|value| value / 3.0).collect() };
    // With two ranks, both orders of addition lead to the same result.
    for world_size in lab::world_sizes().into_iter().filter(|&size| size >= 3) {
        let group = HostGroup::new(world_size);
        let inputs: Vec<Vec<f32>> = (0..world_size).map(values).collect();
        let sums = rendezvous(&lab::streams(world_size)?, |comm| {
            let mut buffer = Guarded::new(&comm.stream(), &inputs[comm.rank()])?;
            staged_sum(&group, comm.rank(), &comm.stream(), &mut buffer.view_mut()).context("staged_sum")?;
            buffer.read()
        })?;
        for (rank, sum) in sums.iter().enumerate() {
            let differs = |at: &usize| sum[*at].to_bits() != sums[0][*at].to_bits();
            let Some(at) = (0..LEN).find(differs) else { continue };
            bail!(
                "the bits of the sums from `staged_sum` on rank {rank} of {world_size} differ from those on rank 0 at \
                 {} of {LEN} elements\n  index {at}: rank 0 has {:?}, but rank {rank} has {:?}: every rank must add in \
                 the same order, or replicas will drift apart",
                (0..LEN).filter(differs).count(),
                sums[0][at],
                sum[at]
            );
        }
        let exact = |at: usize| -> f64 { (0..world_size).map(|rank| f64::from(inputs[rank][at])).sum() };
        ensure!(
            (0..LEN).any(|at| sums[0][at] != exact(at) as f32),
            "`staged_sum` with {world_size} ranks: all {LEN} sums are those in f64, rounded at the end; expected sums in f32, \
             where each addition rounds, as NCCL's additions do"
        );
    }
    Ok(())
}

fn later_work_sees_the_sum() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        on_each_rank(world_size, |comm, group| {
            let (rank, stream) = (comm.rank(), comm.stream());
            let kernels = Kernels::load(stream.context())?;
            let own = irregular::integers(rank, 37);
            let mut buffer = stream.clone_htod(&own)?;
            // A slow producer and a consumer use the same stream. Neither makes the host wait.
            kernels.spin(&stream, 2_000_000)?;
            kernels.scale(&stream, &mut buffer, 2.0)?;
            staged_sum(group, rank, &stream, &mut buffer.as_view_mut()).context("staged_sum")?;
            kernels.scale(&stream, &mut buffer, 3.0)?;
            let got = stream.clone_dtoh(&buffer)?;
            stream.synchronize()?;
            let expected: Vec<f32> = (0..own.len())
                .map(|at| (0..world_size).map(|rank| 6.0 * irregular::integers(rank, 37)[at]).sum())
                .collect();
            Expected::new(rank, "the buffer, doubled before staged_sum and tripled after it,", &expected)
                .if_instead(&own.iter().map(|own| own * 6.0).collect::<Vec<_>>(), "nothing was summed")
                .exactly(&got)
        })?;
    }
    Ok(())
}

/// Returns the ratio that the exercise measures if `staged` and `nccl` spin for these numbers of milliseconds.
fn ratio(milliseconds: [f64; 2], rounds: usize) -> anyhow::Result<f64> {
    let (stream, kernels) = spinning()?;
    let calls = [Cell::new(0), Cell::new(0)];
    let spin = |which: usize| {
        calls[which].set(calls[which].get() + 1);
        kernels.spin(&stream, (1e6 * milliseconds[which]) as u64)
    };
    let got = times_as_long(&stream, rounds, || spin(0), || spin(1))?;
    let calls = calls.map(Cell::into_inner);
    ensure!(
        calls == [rounds + 1; 2],
        "times_as_long with {rounds} rounds and one warm-up: expected {} calls to each, but got {} to `staged` and {} \
         to `nccl`",
        rounds + 1,
        calls[0],
        calls[1]
    );
    Ok(got)
}

/// Returns whether a ratio is between half and twice this value. The tolerance allows for a GPU that has other users.
fn about(got: f64, ratio: f64) -> bool {
    (0.5 * ratio..2.0 * ratio).contains(&got)
}

/// `staged` takes four times as long as `nccl`, or the other way around.
const SLOWER: [f64; 2] = [2.0, 0.5];
const FASTER: [f64; 2] = [0.5, 2.0];

/// Checks a ratio. `mistake` contains the ratio that a known mistake leads to, and the cause.
fn check_ratio(got: f64, [staged, nccl]: [f64; 2], mistake: Option<(f64, &str)>) -> anyhow::Result<()> {
    let upside_down = (nccl / staged, "that is nccl / staged: divide the other way around");
    let cause = [Some(upside_down), mistake].into_iter().flatten().find(|&(ratio, _)| about(got, ratio));
    let cause = cause.map_or_else(String::new, |(_, cause)| format!("\n  likely cause: {cause}"));
    let expected = staged / nccl;
    ensure!(
        about(got, expected),
        "times_as_long returned a wrong ratio when `staged` takes {staged} ms and `nccl` takes {nccl} ms\n  expected \
         staged / nccl of about {expected} ({} to {}), got {got:.3}{cause}",
        0.5 * expected,
        2.0 * expected
    );
    Ok(())
}

fn both_are_measured_the_same_way() -> anyhow::Result<()> {
    for rounds in [1, 7] {
        check_ratio(ratio(SLOWER, rounds)?, SLOWER, None)?;
        // With `SLOWER`, this mistake leads to almost the right ratio.
        let both = (1.25, "the time of `staged` includes the calls to `nccl`");
        check_ratio(ratio(FASTER, rounds)?, FASTER, Some(both))?;
    }
    Ok(())
}

fn warming_up_is_not_measured() -> anyhow::Result<()> {
    let (stream, kernels) = spinning()?;
    let calls = Cell::new(0);
    // Only `staged` starts slowly.
    const ROUNDS: usize = 2;
    let got = times_as_long(
        &stream,
        ROUNDS,
        || kernels.spin(&stream, if calls.replace(calls.get() + 1) == 0 { 40_000_000 } else { 2_000_000 }),
        || kernels.spin(&stream, 500_000),
    )?;
    // The measured rounds and the first round, for both functions.
    let with_the_first = (40.0 + 2.0 * ROUNDS as f64) / (0.5 * (1.0 + ROUNDS as f64));
    check_ratio(got, SLOWER, Some((with_the_first, "the first round, which takes 40 ms, was measured, too")))
}

fn two_all_reduces_are_compared() -> anyhow::Result<()> {
    let world_size = lab::world_sizes().into_iter().max().unwrap_or(2);
    on_each_rank(world_size, |comm, group| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let values = irregular::integers(rank, 1 << 12);
        let (mut staged, mut by_nccl) = (stream.clone_htod(&values)?, stream.clone_htod(&values)?);
        let got = times_as_long(
            &stream,
            3,
            || staged_sum(group, rank, &stream, &mut staged.as_view_mut()).context("staged_sum"),
            || {
                comm.all_reduce_in_place(&mut by_nccl, &ReduceOp::Sum).readable()?;
                Ok(())
            },
        )?;
        if !got.is_finite() || got <= 0.0 {
            bail!(
                "rank {rank}: times_as_long returned {got} for two all-reduces of 16 KiB, expected a finite number \
                 above 0"
            );
        }
        Ok(())
    })
}

fn each_value_is_copied_to_the_host_and_back_once() -> anyhow::Result<()> {
    const LEN: usize = 1031;
    for world_size in small_worlds() {
        on_each_rank(world_size, |comm, group| {
            let stream = comm.stream();
            let mut buffer = stream.clone_htod(&irregular::integers(comm.rank(), LEN))?;
            let bytes = (LEN * size_of::<f32>()) as u64;
            let budget = Budget::of("staged_sum").collectives(&[]).messages(0).communicators(0).kernels(0);
            // The buffers on the host may be pinned.
            let budget = budget.bytes_to_host(bytes).bytes_to_device(bytes).copies(2).allocations(2);
            let budget = budget.host_waits(8).streams(&[(&stream, "`stream`")]);
            budget.spend(|| staged_sum(group, comm.rank(), &stream, &mut buffer.as_view_mut()))?;
            Ok(stream.synchronize()?)
        })?;
    }
    Ok(())
}

fn measuring_costs_little() -> anyhow::Result<()> {
    let stream = lab::streams(1)?.remove(0);
    // All rounds are measured together, so a round needs no event or wait.
    let budget = Budget::of("times_as_long").events(8).host_waits(16).kernels(0).copies(0).allocations(0);
    let budget = budget.streams(&[(&stream, "`stream`")]);
    budget.spend(|| times_as_long(&stream, 20, || Ok(()), || Ok(())))?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("staged_sum", || {
        let stream = lab::streams(1)?.remove(0);
        let group = HostGroup::new(1);
        let mut buffer = stream.alloc_zeros::<f32>(37)?;
        Ok(move || {
            staged_sum(&group, 0, &stream, &mut buffer.as_view_mut())?;
            Ok(stream.synchronize()?)
        })
    })?;
    each_call_fails("times_as_long", || {
        let stream = lab::streams(1)?.remove(0);
        let mut staged = stream.alloc_zeros::<f32>(37)?;
        let mut by_nccl = stream.alloc_zeros::<f32>(37)?;
        Ok(move || {
            let staged = || Ok(stream.memset_zeros(&mut staged)?);
            times_as_long(&stream, 2, staged, || Ok(stream.memset_zeros(&mut by_nccl)?)).map(drop)
        })
    })
}
