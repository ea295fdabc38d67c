//! Checks for `scale/mixed_precision`: steps in `f16` with a dynamic loss scale are those of one GPU in `f32`.
//!
//! Gradients are multiples of 2⁻⁸ and weights multiples of 2⁻⁹, all with few bits; scales, the learning rate, and the
//! momentum are powers of 2. So if the world size is also a power of 2, no number rounds, neither in `f16` nor in `f32`.

use anyhow::bail;
use half::f16;
use init::rendezvous::rendezvous;
use lab::{Budget, Check, Expected, Guarded, each_call_fails, ensure, irregular, world_of_one};

use crate::scale::mixed_precision::{LossScale, Trainer};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("mixed_precision::the_scale_halves_and_doubles", the_scale_halves_and_doubles)
            .calls(&["LossScale::update"]),
        Check::new("mixed_precision::an_overflow_on_any_rank_skips_the_step", any_overflow_skips_the_step)
            .calls(&["Trainer::step"])
            .min_ranks(2),
        Check::new("mixed_precision::steps_are_those_of_one_gpu", steps_are_those_of_one_gpu)
            .calls(&["Trainer::step"])
            .min_ranks(2),
        Check::new("mixed_precision::one_rank_is_a_world_too", one_rank_is_a_world_too)
            .calls(&["Trainer::step"]),
        Check::new("mixed_precision::a_step_is_one_collective_and_one_wait", a_step_is_one_collective)
            .min_ranks(2),
        Check::new("mixed_precision::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

fn the_scale_halves_and_doubles() -> anyhow::Result<()> {
    // `x` is an overflow.
    for (interval, steps) in [
        (3, "......xx....x......."),
        (2, "..x.x....xxx..."),
        (1, "..x.xx."),
        (4, ".x..x...x....x......"),
        // From 65536 to 0.25.
        (3, "xxxxxxxxxxxxxxxxxx..."),
        (2000, &*format!("{}x{}", ".".repeat(1999), ".".repeat(4000))),
    ] {
        let (mut scale, mut right) = (LossScale::new(65536.0, interval), Serial::new(65536.0, interval));
        let (got, right): (Vec<f32>, Vec<f32>) = steps
            .bytes()
            .map(|step| {
                scale.update(step == b'x');
                right.adapt(step == b'x');
                (scale.scale, right.scale)
            })
            .unzip();
        let Some(wrong) = (0..got.len()).find(|&index| got[index] != right[index]) else { continue };
        let before = wrong.checked_sub(1).map_or(65536.0, |before| got[before]);
        bail!(
            "with an interval of {interval}, `update` makes {} of {before}, expected {}\n  the last steps, with x for an overflow: {}{}",
            got[wrong],
            right[wrong],
            &steps[wrong.saturating_sub(7)..=wrong],
            why(interval, steps, &got)
        );
    }
    Ok(())
}

/// Returns the mistake that leads to these scales after these steps.
fn why(interval: u32, steps: &str, got: &[f32]) -> &'static str {
    // Each mistake starts from 65536. `count` counts the good steps.
    let explains = |adapt: fn(&mut f32, &mut u32, bool, u32)| {
        let (mut scale, mut count) = (65536.0, 0);
        steps.bytes().zip(got).all(|(step, &got)| {
            adapt(&mut scale, &mut count, step == b'x', interval);
            scale == got
        })
    };
    if explains(|_, _, _, _| ()) {
        "\n  likely cause: the scale never changes"
    } else if explains(|scale, _, overflowed, _| *scale *= if overflowed { 0.5 } else { 1.0 }) {
        "\n  likely cause: the scale never grows again"
    } else if explains(|scale, count, overflowed, interval| {
        *count += u32::from(!overflowed);
        *scale *= if overflowed { 0.5 } else { 1.0 };
        if !overflowed && *count == interval {
            (*scale, *count) = (*scale * 2.0, 0);
        }
    }) {
        "\n  likely cause: an overflow does not reset the count of good steps"
    } else if explains(|scale, count, overflowed, interval| {
        *count += 1;
        *scale *= if overflowed { 0.5 } else { 1.0 };
        if !overflowed && *count == interval {
            (*scale, *count) = (*scale * 2.0, 0);
        }
    }) {
        "\n  likely cause: an overflow counts as a good step"
    } else if explains(|scale, count, overflowed, interval| {
        *count = if overflowed { 0 } else { *count + 1 };
        *scale *= if overflowed { 0.5 } else { 1.0 };
        if *count >= interval {
            *scale *= 2.0;
        }
    }) {
        "\n  likely cause: doubling does not reset the count, so each further good step doubles the scale again"
    } else if explains(|scale, count, overflowed, interval| {
        *count = if overflowed { 0 } else { *count + 1 };
        *scale *= if overflowed { 0.5 } else { 1.0 };
        if *count > interval {
            (*scale, *count) = (*scale * 2.0, 0);
        }
    }) {
        "\n  likely cause: the scale doubles one good step too late"
    } else if explains(|scale, count, overflowed, interval| {
        *count = if overflowed { 0 } else { *count + 1 };
        *scale = if overflowed { (*scale * 0.5).max(1.0) } else { *scale };
        if *count == interval {
            (*scale, *count) = (*scale * 2.0, 0);
        }
    }) {
        "\n  likely cause: the scale never falls below 1, but each overflow halves it"
    } else {
        ""
    }
}

/// More than one block of a kernel, and odd.
const LEN: usize = 261;
const LEARNING_RATE: f32 = 0.25;
/// The fraction of its velocity that the exercise's optimizer keeps in each step.
const MOMENTUM: f64 = 0.5;
const INTERVAL: u32 = 2;
/// The scale in the first step. A gradient may be as large as 120 · 2⁻⁸, which fits in an `f16` with this factor, but not
/// with twice this factor.
const SCALE: f32 = 131_072.0;

/// Returns a rank's gradient in a step, without the scale: multiples of 2⁻⁸. In each step, another rank is loud: its
/// values are eight times as large, so the scale can be too large for this rank alone.
fn gradient(step: usize, rank: usize, world_size: usize) -> Vec<f32> {
    let loud = if (step + 1) % world_size == rank { 8.0 } else { 1.0 };
    let unit = loud / 256.0;
    let mut values: Vec<f32> = irregular::integers(1 + 100 * step + rank, LEN)
        .into_iter()
        .map(|value| unit * value.signum() * (1.0 + value.abs() % 15.0))
        .collect();
    // Here, no rank's own value is too large for `f16` with the first scale, but the sum over the ranks is.
    values[77] = unit * 15.0;
    values
}

/// Returns the gradient as the model computes it, in `f16`. If `broken`, the model itself produces a value that is not
/// finite, for any scale.
fn scaled(step: usize, rank: usize, world_size: usize, scale: f32, broken: bool) -> Vec<f16> {
    let mut values: Vec<f16> =
        gradient(step, rank, world_size).iter().map(|&value| f16::from_f32(scale * value)).collect();
    if broken {
        let broken = [f16::INFINITY, f16::NAN, f16::NEG_INFINITY];
        values[(rank * 101 + step * 77) % LEN] = broken[(rank + step) % broken.len()];
    }
    values
}

/// Returns the weights before the first step.
fn start() -> Vec<f32> {
    irregular::integers(0, LEN).into_iter().map(|value| value / 512.0).collect()
}

/// What may go wrong in a run.
#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    /// Each rank decides with its own gradient, or with that of rank 0, or not at all, or the opposite.
    DecidesAlone,
    RankZeroDecides,
    NeverSkips,
    DecidesOpposite,
    /// The ranks sum in `f16`, and divide later.
    Sums,
    /// The decision is right, but the result is not.
    ReturnsOpposite,
    ReturnsTrue,
    /// The decision is right, but the scale is adapted to another one.
    NeverAdapts,
    AdaptsOpposite,
    AdaptsAsIfGood,
    AdaptsIfMade,
    AdaptsIfSkipped,
    OwnGradient,
    Summed,
    DividedByRanks,
    NotUnscaled,
    MultipliedByScale,
    UnscaledTwice,
    NextScale,
    NoMaster,
    VelocitiesForgotten,
    /// A skipped step is one with a gradient of 0, with or without a change of the weights.
    SkipIsAStep,
    SkipDecays,
    /// Once the gradient has overflowed, it always seems to.
    SkipsForever,
}

/// One replica of the weights on the host.
#[derive(Clone)]
struct Serial {
    weights: Vec<f64>,
    velocities: Vec<f64>,
    scale: f32,
    interval: u32,
    good_steps: u32,
    has_overflowed: bool,
}

/// A replica after a step.
#[derive(Clone, Debug)]
struct Made {
    stepped: bool,
    scale: f32,
    master: Vec<f32>,
    weights: Vec<f16>,
}

impl Serial {
    fn new(scale: f32, interval: u32) -> Self {
        let weights: Vec<f64> = start().into_iter().map(f64::from).collect();
        Self { velocities: vec![0.0; LEN], weights, scale, interval, good_steps: 0, has_overflowed: false }
    }

    fn adapt(&mut self, overflowed: bool) {
        self.good_steps = if overflowed { 0 } else { self.good_steps + 1 };
        if overflowed {
            self.scale *= 0.5;
        } else if self.good_steps == self.interval {
            (self.scale, self.good_steps) = (self.scale * 2.0, 0);
        }
    }

    /// Moves the weights along the gradients of these ranks. `factor` is 1 for the right unscaling.
    fn descend(&mut self, gradients: &[Vec<f32>], factor: f64) {
        for (index, (weight, velocity)) in self.weights.iter_mut().zip(&mut self.velocities).enumerate() {
            let sum: f64 = gradients.iter().map(|gradient| f64::from(gradient[index])).sum();
            *velocity = MOMENTUM * *velocity + factor * sum / gradients.len() as f64;
            *weight -= f64::from(LEARNING_RATE) * *velocity;
        }
    }
}

/// Runs on the host, with or without a mistake. Returns each rank's steps. `broken` contains, for each step, whether
/// each rank's model produces values that are not finite.
fn run_on_host(world_size: usize, broken: &[Vec<bool>], mistake: Mistake) -> Vec<Vec<Made>> {
    let mut replicas = vec![Serial::new(SCALE, INTERVAL); world_size];
    let mut made = vec![Vec::new(); world_size];
    for (step, broken) in broken.iter().enumerate() {
        let halves: Vec<Vec<f16>> = (0..world_size)
            .map(|rank| scaled(step, rank, world_size, replicas[rank].scale, broken[rank]))
            .collect();
        let own: Vec<bool> =
            halves.iter().map(|halves| halves.iter().any(|value| !value.is_finite())).collect();
        let sums_overflow = (0..LEN).any(|index| {
            let sum: f32 = halves.iter().map(|halves| halves[index].to_f32()).sum();
            !f16::from_f32(sum).is_finite()
        });
        let gradients: Vec<Vec<f32>> = (0..world_size).map(|rank| gradient(step, rank, world_size)).collect();
        for (rank, replica) in replicas.iter_mut().enumerate() {
            let overflowed = match mistake {
                Mistake::DecidesAlone => own[rank],
                Mistake::RankZeroDecides => own[0],
                Mistake::NeverSkips => false,
                Mistake::Sums => sums_overflow,
                Mistake::SkipsForever => own.contains(&true) || replica.has_overflowed,
                Mistake::DecidesOpposite => !own.contains(&true),
                _ => own.contains(&true),
            };
            replica.has_overflowed |= overflowed;
            let before = replica.scale;
            match mistake {
                Mistake::NeverAdapts => {}
                Mistake::AdaptsOpposite => replica.adapt(!overflowed),
                Mistake::AdaptsAsIfGood => replica.adapt(false),
                Mistake::AdaptsIfMade if overflowed => {}
                Mistake::AdaptsIfSkipped if !overflowed => {}
                _ => replica.adapt(overflowed),
            }
            if overflowed {
                let weights = replica.weights.clone();
                if matches!(mistake, Mistake::SkipIsAStep | Mistake::SkipDecays) {
                    replica.descend(&[vec![0.0; LEN]], 1.0);
                }
                if mistake == Mistake::SkipDecays {
                    replica.weights = weights;
                }
            } else {
                let factor = match mistake {
                    Mistake::Summed => world_size as f64,
                    Mistake::DividedByRanks => 1.0 / world_size as f64,
                    Mistake::NotUnscaled => f64::from(before),
                    Mistake::MultipliedByScale => f64::from(before).powi(2),
                    Mistake::UnscaledTwice => 1.0 / f64::from(before),
                    Mistake::NextScale => f64::from(before / replica.scale),
                    _ => 1.0,
                };
                if mistake == Mistake::VelocitiesForgotten {
                    replica.velocities.fill(0.0);
                }
                if mistake == Mistake::NoMaster {
                    // The step starts from the weights in `f16`.
                    replica.weights.iter_mut().for_each(|weight| *weight = f16::from_f64(*weight).to_f64());
                }
                match mistake {
                    Mistake::OwnGradient => replica.descend(&gradients[rank..=rank], factor),
                    _ => replica.descend(&gradients, factor),
                }
            }
            made[rank].push(Made {
                stepped: match mistake {
                    Mistake::ReturnsOpposite => overflowed,
                    Mistake::ReturnsTrue => true,
                    _ => !overflowed,
                },
                scale: replica.scale,
                master: replica.weights.iter().map(|&weight| weight as f32).collect(),
                weights: replica.weights.iter().map(|&weight| f16::from_f64(weight)).collect(),
            });
        }
    }
    made
}

/// Runs on the GPUs. Returns each rank's steps.
fn run(world_size: usize, broken: &[Vec<bool>]) -> anyhow::Result<Vec<Vec<Made>>> {
    rendezvous(&lab::streams(world_size)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let mut trainer = Trainer::new(&comm, &start(), LossScale::new(SCALE, INTERVAL))?;
        let mut made = Vec::new();
        for (step, broken) in broken.iter().enumerate() {
            let own = scaled(step, rank, world_size, trainer.loss_scale.scale, broken[rank]);
            let mut own = Guarded::new(&stream, &own)?;
            let stepped = trainer.step(&comm, &mut own.view_mut(), LEARNING_RATE)?;
            own.read()?;
            let (master, weights) =
                (stream.clone_dtoh(&trainer.master)?, stream.clone_dtoh(&trainer.weights)?);
            stream.synchronize()?;
            made.push(Made { stepped, scale: trainer.loss_scale.scale, master, weights });
        }
        Ok(made)
    })
}

/// Returns a bound on the error of a master weight after this many steps. It is 0 if the world size is a power of 2.
/// Otherwise, an average in `f16` rounds 1 / n, n products, and n − 1 sums, each by 2⁻¹¹ of at most the mean magnitude
/// of the ranks' values: a loud rank's 120 · 2⁻⁸, and 15 · 2⁻⁸ of each other rank. A velocity collects at most twice
/// the error of an average, and a quarter of it goes into the weight in each step. The optimizer rounds in `f32`, which
/// is less than 2⁻²⁰ per step.
fn bound(world_size: usize, steps: usize) -> f64 {
    if world_size.is_power_of_two() {
        return 0.0;
    }
    let n = world_size as f64;
    let mean = (120.0 + 15.0 * (n - 1.0)) / 256.0 / n;
    let average = (n + 2.0) * mean * f64::powi(2.0, -11);
    steps as f64 * (f64::from(LEARNING_RATE) * 2.0 * average + f64::powi(2.0, -20))
}

/// Compares a run on the GPUs with one GPU's.
fn train(world_size: usize, broken: &[Vec<bool>]) -> anyhow::Result<()> {
    let right = run_on_host(world_size, broken, Mistake::None);
    let got = run(world_size, broken)?;
    compare_decisions(world_size, broken, &right, &got)?;
    for (rank, steps) in got.iter().enumerate() {
        compare_weights(world_size, broken, rank, steps)?;
    }
    Ok(())
}

/// Compares what the ranks decided, and their scales.
fn compare_decisions(
    world_size: usize,
    broken: &[Vec<bool>],
    right: &[Vec<Made>],
    got: &[Vec<Made>],
) -> anyhow::Result<()> {
    let decisions =
        |made: &[Made]| made.iter().map(|made| (made.stepped, made.scale.to_bits())).collect::<Vec<_>>();
    for rank in 0..world_size {
        for (step, (right, made)) in right[rank].iter().zip(&got[rank]).enumerate() {
            if (right.stepped, right.scale) == (made.stepped, made.scale) {
                continue;
            }
            let did = |made: &Made| format!("{}, and the next scale is {}", made.stepped, made.scale);
            let explains = |mistake| {
                let wrong = run_on_host(world_size, broken, mistake);
                (0..world_size).all(|rank| decisions(&wrong[rank]) == decisions(&got[rank]))
            };
            let cause = [
                (Mistake::DecidesAlone, "each rank decides with its own gradient alone"),
                (Mistake::RankZeroDecides, "rank 0's gradient alone decides"),
                (Mistake::NeverSkips, "no overflow is detected"),
                (
                    Mistake::Sums,
                    "the sum over the ranks overflowed, although no rank's gradient did: average, instead of dividing the sum later",
                ),
                (
                    Mistake::SkipsForever,
                    "the count of the last step is still in `not_finite`, and the kernel adds to it",
                ),
                (Mistake::ReturnsOpposite, "the result is whether the step was skipped"),
                (Mistake::ReturnsTrue, "the result is `true` for a skipped step, too"),
                (Mistake::DecidesOpposite, "the steps without an overflow are skipped, and the others are made"),
                (Mistake::NeverAdapts, "`update` is not called"),
                (Mistake::AdaptsOpposite, "`update` is called with the opposite: `true` is for an overflow"),
                (Mistake::AdaptsAsIfGood, "`update` is called as if no step overflowed"),
                (Mistake::AdaptsIfMade, "`update` is not called after a skipped step"),
                (Mistake::AdaptsIfSkipped, "`update` is called after skipped steps only"),
            ]
            .into_iter()
            .filter(|(mistake, _)| {
                let of_ranks = [Mistake::DecidesAlone, Mistake::RankZeroDecides, Mistake::Sums];
                world_size > 1 || !of_ranks.contains(mistake)
            })
            .find(|(mistake, _)| explains(*mistake))
            .map_or_else(String::new, |(_, cause)| format!("\n  likely cause: {cause}"));
            bail!(
                "rank {rank} of {world_size}, step {}, in which {}: `Trainer::step` returns {}; expected {}{cause}",
                step + 1,
                overflowing(
                    world_size,
                    step,
                    &broken[step],
                    right,
                    step.checked_sub(1).map(|last| &got[rank][last])
                ),
                did(made),
                did(right)
            );
        }
    }
    Ok(())
}

/// Describes which ranks' gradients overflow in a step, if the ranks had the right scale before it.
fn overflowing(world_size: usize, step: usize, broken: &[bool], right: &Made, last: Option<&Made>) -> String {
    if right.stepped {
        return "no gradient overflowed".to_owned();
    }
    let scale = last.map_or(SCALE, |last| last.scale);
    let ranks: Vec<usize> = (0..world_size)
        .filter(|&rank| {
            scaled(step, rank, world_size, scale, broken[rank]).iter().any(|value| !value.is_finite())
        })
        .collect();
    match ranks.as_slice() {
        [only] => format!("the gradient of rank {only} overflowed"),
        several => format!("the gradients of ranks {several:?} overflowed"),
    }
}

/// Compares a rank's weights after each step.
fn compare_weights(world_size: usize, broken: &[Vec<bool>], rank: usize, got: &[Made]) -> anyhow::Result<()> {
    let of = |mistake| run_on_host(world_size, broken, mistake).swap_remove(rank);
    let right = of(Mistake::None);
    let mut causes = vec![
        (of(Mistake::NotUnscaled), "the gradient was not divided by the scale"),
        (
            of(Mistake::MultipliedByScale),
            "the gradient was multiplied by the scale again, instead of divided by it",
        ),
        (of(Mistake::UnscaledTwice), "the step was divided by the scale twice"),
        (
            of(Mistake::NextScale),
            "the gradient was divided by the scale of the next step, not by the one it was multiplied by",
        ),
        (of(Mistake::NoMaster), "the step started from the weights in `f16`, which lose the small updates"),
        (of(Mistake::VelocitiesForgotten), "the velocities were forgotten between steps"),
        (of(Mistake::SkipIsAStep), "a skipped step moved the weights along the old velocities"),
        (of(Mistake::SkipDecays), "a skipped step changed the velocities"),
    ];
    if world_size > 1 {
        causes.extend([
            (of(Mistake::OwnGradient), "the rank stepped with its own gradient: nothing was averaged"),
            (of(Mistake::Summed), "the gradients were summed, not averaged"),
            (of(Mistake::DividedByRanks), "the average was divided by the number of ranks again"),
        ]);
    }
    let mut made = 0;
    for (step, steps) in got.iter().enumerate() {
        made += usize::from(steps.stepped);
        let after = format!("after step {} of {} with world size {world_size}", step + 1, got.len());
        let told = if steps.stepped { "made" } else { "skipped" };
        ensure!(
            steps.master.iter().all(|weight| weight.is_finite()),
            "rank {rank}: {after}, which was {told}, `master` contains values that are NaN or infinite{}",
            if steps.stepped { "" } else { "\n  a skipped step must not change it" }
        );
        let name = format!("{after}, which was {told}, `master`");
        let mut expected = Expected::new(rank, &name, &right[step].master);
        for (wrong, cause) in &causes {
            expected = expected.if_instead(&wrong[step].master, *cause);
        }
        if steps.stepped {
            let before = step.checked_sub(1).map_or_else(start, |before| got[before].master.clone());
            expected = expected.if_instead(&before, "it did not change in this step");
        }
        expected.within(bound(world_size, made), &steps.master)?;
        let rounded: Vec<f16> = steps.master.iter().map(|&weight| f16::from_f32(weight)).collect();
        let name = format!("{after}, which was {told}, `weights`");
        let mut expected = Expected::new(rank, &name, &rounded);
        let before = step.checked_sub(1).map_or_else(
            || start().into_iter().map(f16::from_f32).collect(),
            |before| got[before].weights.clone(),
        );
        if steps.stepped {
            expected = expected.if_instead(
                &before,
                "they are from before the step: round `master` to `f16` after it changes",
            );
        }
        expected.exactly(&steps.weights)?;
    }
    Ok(())
}

/// Returns sets of ranks: each rank alone, and all ranks. Before and after each set is one without ranks.
fn sets(world_size: usize) -> Vec<Vec<bool>> {
    let none = vec![false; world_size];
    let alone = (0..world_size).map(|only| (0..world_size).map(|rank| rank == only).collect());
    let sets = alone.chain([vec![true; world_size]]);
    [none.clone()].into_iter().chain(sets.flat_map(|set| [set, none.clone()])).collect()
}

/// Counts the collectives in a step in which both ranks' gradients overflow, so that neither rank waits for the other.
fn overflowing_ranks_make_the_collective() -> anyhow::Result<()> {
    rendezvous(&lab::streams(2)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let mut trainer = Trainer::new(&comm, &start(), LossScale::new(SCALE, INTERVAL))?;
        let mut own = stream.clone_htod(&scaled(0, rank, 2, SCALE, true))?;
        let step = || trainer.step(&comm, &mut own.as_view_mut(), LEARNING_RATE);
        let made = Budget::of("Trainer::step").collectives(&[("AllReduce", LEN)]).spend(step);
        let made_none = made.is_err_and(|error| error.to_string().contains("makes no collective"));
        stream.synchronize()?;
        ensure!(
            !made_none,
            "`Trainer::step` calls no collective on a rank whose own gradient overflows; expected one AllReduce\n  the other ranks call \
             that collective, and would wait for this rank"
        );
        Ok(())
    })?;
    Ok(())
}

fn any_overflow_skips_the_step() -> anyhow::Result<()> {
    overflowing_ranks_make_the_collective()?;
    for world_size in lab::world_sizes() {
        train(world_size, &sets(world_size))?;
    }
    Ok(())
}

/// Returns for each step whether each rank's model produces values that are not finite: a good step, a step that breaks
/// on the last rank and one that breaks on rank 0, and good steps until the scale is too large for the loud rank alone.
fn plan(world_size: usize) -> Vec<Vec<bool>> {
    let only = |bad: usize| (0..world_size).map(|rank| rank == bad).collect::<Vec<_>>();
    let good = |steps: usize| std::iter::repeat_n(vec![false; world_size], steps);
    good(1).chain([only(world_size - 1), only(0)]).chain(good(10)).collect()
}

fn steps_are_those_of_one_gpu() -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        train(world_size, &plan(world_size))?;
    }
    Ok(())
}

fn one_rank_is_a_world_too() -> anyhow::Result<()> {
    train(1, &plan(1))
}

fn a_step_is_one_collective() -> anyhow::Result<()> {
    rendezvous(&lab::streams(2)?, |comm| {
        let (rank, stream) = (comm.rank(), comm.stream());
        let mut trainer = Trainer::new(&comm, &start(), LossScale::new(SCALE, INTERVAL))?;
        let mut verdict = Ok(());
        for (case, broken) in [("in a step that is made", false), ("in a step that is skipped", true)] {
            let scale = trainer.loss_scale.scale;
            let mut own = stream.clone_htod(&scaled(0, rank, 2, scale, broken && rank == 1))?;
            let budget = Budget::of("Trainer::step")
                .case(case)
                .collectives(&[("AllReduce", LEN)])
                .bytes_to_nccl(2 * LEN as u64)
                .messages(0)
                .communicators(0)
                .bytes_to_host(64)
                .host_waits(1)
                .polls(0)
                .waits_for_values()
                .bytes_on_device(0)
                .allocations(1)
                .kernels(6)
                .stream_of(&comm);
            let spent = budget.spend(|| trainer.step(&comm, &mut own.as_view_mut(), LEARNING_RATE));
            // A rank that finds a mistake continues, so that the other rank does not wait for it.
            verdict = verdict.and(spent.map(drop));
        }
        stream.synchronize()?;
        verdict
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    each_call_fails("Trainer::step", || {
        let comm = world_of_one()?;
        let mut trainer = Trainer::new(&comm, &start(), LossScale::new(SCALE, INTERVAL))?;
        let mut own = comm.stream().clone_htod(&scaled(0, 0, 1, SCALE, false))?;
        Ok(move || {
            trainer.step(&comm, &mut own.as_view_mut(), LEARNING_RATE)?;
            Ok(comm.stream().synchronize()?)
        })
    })
}
