//! Checks for `multi_gpu/conditional`: the ranks jointly make decisions that depend on data.
//!
//! Parameters and gradients are integers, and the learning rate is a power of 2. If the world size is also a power of
//! 2, every step is exact.

use anyhow::bail;
use init::rendezvous::rendezvous;
use lab::{Budget, Check, Expected, Guarded, Kernels, each_call_fails, ensure, irregular, world_of_one};

use crate::multi_gpu::conditional::{any_rank, step};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("conditional::one_yes_is_enough", one_yes_is_enough).calls(&["any_rank"]).min_ranks(2),
        Check::new("conditional::an_overflow_on_any_rank_skips_the_step", any_overflow_skips_the_step)
            .calls(&["step"])
            .min_ranks(2),
        Check::new("conditional::steps_are_those_of_one_gpu", steps_are_those_of_one_gpu)
            .calls(&["step"])
            .min_ranks(2),
        Check::new("conditional::one_rank_is_a_world_too", one_rank_is_a_world_too).calls(&["step"]),
        Check::new("conditional::one_element_decides", one_element_decides).min_ranks(3),
        Check::new("conditional::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

/// Returns combinations of the ranks' answers, starting with those that contain a single yes. With more than six ranks,
/// the answers repeat.
fn answers(world_size: usize) -> Vec<Vec<bool>> {
    let mut sets: Vec<u32> = (0..1 << world_size.min(6)).collect();
    sets.sort_by_key(|set| (set.count_ones() != 1, *set));
    sets.into_iter().map(|set| (0..world_size).map(|rank| set >> (rank % 6) & 1 == 1).collect()).collect()
}

/// Formats ranks for use in a sentence, such as `ranks [1, 3]`.
fn those(yes: &[bool]) -> String {
    let ranks: Vec<usize> = (0..yes.len()).filter(|&rank| yes[rank]).collect();
    match ranks.as_slice() {
        [] => "no rank".to_owned(),
        [one] => format!("rank {one}"),
        several => format!("ranks {several:?}"),
    }
}

fn one_yes_is_enough() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        let asked = answers(world_size);
        let heard = rendezvous(&lab::streams(world_size)?, |comm| {
            asked.iter().map(|yes| any_rank(&comm, yes[comm.rank()])).collect::<anyhow::Result<Vec<_>>>()
        })?;
        for (index, yes) in asked.iter().enumerate() {
            let expected = yes.contains(&true);
            let got: Vec<bool> = heard.iter().map(|heard| heard[index]).collect();
            if got.iter().all(|&got| got == expected) {
                continue;
            }
            // Returns whether a rule explains every answer to every question.
            let always = |rule: &dyn Fn(&[bool], usize) -> bool| {
                let ranks = 0..world_size;
                ranks
                    .into_iter()
                    .all(|rank| asked.iter().zip(&heard[rank]).all(|(yes, &got)| rule(yes, rank) == got))
            };
            let cause = if always(&|yes, rank| yes[rank]) {
                "\n  likely cause: each rank returns its own answer instead of the combined one"
            } else if always(&|yes, _| yes[0]) {
                "\n  likely cause: rank 0's answer alone decides"
            } else if always(&|yes, _| !yes.contains(&false)) {
                "\n  likely cause: it returns true only if all ranks pass true"
            } else if always(&|yes, _| yes.iter().filter(|&&yes| yes).count() == 1) {
                "\n  likely cause: it returns true only if exactly one rank passes true"
            } else {
                ""
            };
            let got = match got.as_slice() {
                [first, rest @ ..] if rest.iter().all(|got| got == first) => {
                    format!("{first} on every rank, expected {expected}")
                }
                _ => format!("{got:?} on ranks 0 to {}, expected {expected} on every rank", world_size - 1),
            };
            bail!("world size {world_size}: {} passed true, but any_rank returned {got}{cause}", those(yes));
        }
    }
    Ok(())
}

const LEN: usize = 1031;
const LEARNING_RATE: f32 = 0.5;

/// Makes a gradient overflow. The index and the value differ for each rank and step.
fn overflow(gradient: &mut [f32], rank: usize, step: usize) {
    let values = [f32::INFINITY, f32::NAN, f32::NEG_INFINITY];
    gradient[(rank * 401 + step * 77) % LEN] = values[(rank + step) % values.len()];
}

/// Returns a gradient that differs on each rank and in each step.
fn gradient(step: usize, rank: usize) -> Vec<f32> {
    irregular::integers(1 + 100 * step + rank, LEN)
}

/// Counts the collectives in a step in which both ranks' gradients overflow, so that neither rank waits for the other.
fn overflowing_ranks_make_collectives() -> anyhow::Result<()> {
    rendezvous(&lab::streams(2)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let kernels = Kernels::load(stream.context())?;
        let mut parameters = stream.alloc_zeros::<f32>(LEN)?;
        let mut own = gradient(0, rank);
        overflow(&mut own, rank, 0);
        let mut own = stream.clone_htod(&own)?;
        let step = || {
            let (mut parameters, mut own) = (parameters.as_view_mut(), own.as_view_mut());
            step(&comm, &kernels, &mut parameters, &mut own, LEARNING_RATE)
        };
        let budget = Budget::of("step").collectives(&[("AllReduce", 1), ("AllReduce", LEN)]);
        let made = budget.or_collectives(&[("AllReduce", 1)]).spend(step);
        let made_none = made.is_err_and(|error| error.to_string().contains("makes no collective"));
        stream.synchronize()?;
        ensure!(
            !made_none,
            "`step` calls no collective on a rank whose own gradient overflows; expected at least one, to ask all \
             ranks\n  the other ranks call that collective, and would wait for this rank"
        );
        Ok(())
    })?;
    Ok(())
}

fn any_overflow_skips_the_step() -> anyhow::Result<()> {
    overflowing_ranks_make_collectives()?;
    for world_size in lab::world_sizes() {
        train(world_size, &answers(world_size))?;
    }
    Ok(())
}

fn steps_are_those_of_one_gpu() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        // Two good steps, one that overflows on the last rank, a good one, one that overflows on rank 0, and a good
        // one.
        let only = |bad: usize| (0..world_size).map(|rank| rank == bad).collect::<Vec<_>>();
        let none = vec![false; world_size];
        train(world_size, &[none.clone(), none.clone(), only(world_size - 1), none.clone(), only(0), none])?;
    }
    Ok(())
}

fn one_rank_is_a_world_too() -> anyhow::Result<()> {
    train(1, &[vec![false], vec![true], vec![false]])
}

/// Takes one step for each set of ranks whose gradients overflow, and compares each step with a single GPU's.
fn train(world_size: usize, overflows: &[Vec<bool>]) -> anyhow::Result<()> {
    rendezvous(&lab::streams(world_size)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let kernels = Kernels::load(stream.context())?;
        // Each rank has other parameters, because a step averages only gradients.
        let starts: Vec<_> = (0..world_size).map(|rank| irregular::integers(10_000 + rank, LEN)).collect();
        let start = starts[rank].clone();
        let from_mean: Vec<f64> = (0..LEN)
            .map(|index| {
                let sum: f64 = starts.iter().map(|start| f64::from(start[index])).sum();
                sum / world_size as f64 - f64::from(start[index])
            })
            .collect();
        let mut parameters = Guarded::new(&stream, &start)?;
        let mut serial: Vec<f64> = start.into_iter().map(f64::from).collect();
        // A rank that finds a mistake continues to the end, so that the other ranks do not wait for it.
        let mut verdict = Ok(());
        let mut made = 0;
        for (index, overflowed) in overflows.iter().enumerate() {
            let mut own = gradient(index, rank);
            if overflowed[rank] {
                overflow(&mut own, rank, index);
            }
            let mut own = Guarded::new(&stream, &own)?;
            let stepped =
                step(&comm, &kernels, &mut parameters.view_mut(), &mut own.view_mut(), LEARNING_RATE)?;
            own.read()?;
            let skip = overflowed.contains(&true);
            let before: Vec<f32> = serial.iter().map(|&value| value as f32).collect();
            if !skip {
                made += 1;
                descend(&mut serial, index, world_size);
            }
            let compared = compare(&Made {
                place: (rank, world_size),
                overflowed: &those(overflowed),
                stepped,
                skip,
                before: &before,
                right: &serial,
                from_mean: &from_mean,
                bound: bound(world_size, made),
                got: &parameters.read()?,
            });
            verdict = verdict.and(compared);
        }
        verdict
    })?;
    Ok(())
}

fn descend(parameters: &mut [f64], step: usize, world_size: usize) {
    let gradients: Vec<_> = (0..world_size).map(|rank| gradient(step, rank)).collect();
    for (index, parameter) in parameters.iter_mut().enumerate() {
        let sum: f64 = gradients.iter().map(|gradient| f64::from(gradient[index])).sum();
        *parameter -= f64::from(LEARNING_RATE) * sum / world_size as f64;
    }
}

/// Returns a bound on the error of a parameter after this many steps. It is 0 if the world size is a power of 2.
/// Otherwise, an average of numbers up to 1000 rounds 1 / n, n products, and n − 1 sums. Each of them rounds by 2⁻²⁴ of
/// at most 1000, and half of the error carries over to a parameter. A parameter is below 1000 · (1 + steps / 2), and
/// rounds twice per step.
fn bound(world_size: usize, steps: usize) -> f64 {
    if world_size.is_power_of_two() {
        return 0.0;
    }
    let (unit, steps) = (f64::powi(2.0, -24), steps as f64);
    let parameter = 1000.0 * (1.0 + 0.5 * steps);
    steps * unit * (0.5 * 1000.0 * (2.0 * world_size as f64 + 1.0) + 2.0 * parameter)
}

/// A rank's step, with its expected result.
struct Made<'a> {
    place: (usize, usize),
    overflowed: &'a str,
    stepped: bool,
    skip: bool,
    before: &'a [f32],
    right: &'a [f64],
    /// How much larger the mean of all ranks' parameters is than this rank's parameters.
    from_mean: &'a [f64],
    bound: f64,
    got: &'a [f32],
}

fn compare(made: &Made<'_>) -> anyhow::Result<()> {
    let Made { place: (rank, world_size), overflowed, stepped, skip, before, right, from_mean, bound, got } =
        *made;
    let told = format!("rank {rank} of {world_size}: {overflowed} had an overflow");
    ensure!(
        !(skip && stepped && got == before),
        "{told}, and no parameter has changed, but `step` returned true; expected false, because the step was skipped"
    );
    ensure!(
        !(skip && stepped),
        "rank {rank} of {world_size} made a step in which {overflowed} had an overflow: every rank must skip it"
    );
    ensure!(skip || stepped, "{told}, but the step was skipped; skip it only if a gradient overflows");
    let averaged: Vec<f32> = right.iter().zip(from_mean).map(|(right, more)| (right + more) as f32).collect();
    let right: Vec<f32> = right.iter().map(|&value| value as f32).collect();
    let name = format!("the parameter buffer after `step`, when {overflowed} had an overflow,");
    let poisoned = got.iter().any(|value| !value.is_finite());
    ensure!(
        !poisoned,
        "{told}, and parameters are NaN or infinite after the step, although `step` returned {}",
        if stepped { "true" } else { "false, as for a skipped step" }
    );
    let mut expected = Expected::new(rank, &name, &right);
    if !skip {
        expected = expected.if_instead(before, "no parameter has changed, but `step` returned true");
        if world_size > 1 {
            let cause = "the ranks' parameters were averaged: average only the gradient, before the step";
            expected = expected.if_instead(&averaged, cause);
        }
    }
    expected.within(bound, got)
}

fn one_element_decides() -> anyhow::Result<()> {
    rendezvous(&lab::streams(3)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let budget = |function: &str| {
            Budget::of(function).messages(0).communicators(0).bytes_to_host(64).stream_of(&comm)
        };
        budget("any_rank")
            .collectives(&[("AllReduce", 1)])
            .or_collectives(&[("AllGather", 1)])
            .copies(3)
            .allocations(2)
            .spend(|| any_rank(&comm, rank == 1))?;
        let kernels = Kernels::load(stream.context())?;
        let mut parameters = stream.alloc_zeros::<f32>(LEN)?;
        for skip in [false, true] {
            let mut own = gradient(0, rank);
            if skip && rank == 2 {
                overflow(&mut own, rank, 0);
            }
            let mut own = stream.clone_htod(&own)?;
            let mut budget = budget("step")
                .collectives(&[("AllReduce", 1), ("AllReduce", LEN)])
                .or_collectives(&[("AllGather", 1), ("AllReduce", LEN)])
                // If any gradient is not finite, the average is not finite either, on every rank.
                .or_collectives(&[("AllReduce", LEN)])
                .kernels(4);
            if skip {
                // A skipped step needs no average.
                budget = budget.or_collectives(&[("AllReduce", 1)]).or_collectives(&[("AllGather", 1)]);
            }
            budget.spend(|| {
                let (mut parameters, mut own) = (parameters.as_view_mut(), own.as_view_mut());
                step(&comm, &kernels, &mut parameters, &mut own, LEARNING_RATE)
            })?;
        }
        Ok(stream.synchronize()?)
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("any_rank", || {
        let comm = world_of_one()?;
        Ok(move || any_rank(&comm, true).map(drop))
    })?;
    each_call_fails("step", || {
        let (comm, len) = (world_of_one()?, 37);
        let stream = comm.stream();
        let kernels = Kernels::load(stream.context())?;
        let (mut parameters, mut own) = (stream.alloc_zeros(len)?, stream.alloc_zeros(len)?);
        Ok(move || {
            let (mut parameters, mut own) = (parameters.as_view_mut(), own.as_view_mut());
            step(&comm, &kernels, &mut parameters, &mut own, LEARNING_RATE)?;
            Ok(comm.stream().synchronize()?)
        })
    })
}
