//! Checks for `multi_gpu/global_norm`: numbers that depend on all ranks' parts.

use anyhow::Context;
use approx::abs_diff_eq;
use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::compare::UNIT_ROUNDOFF;
use lab::{
    Budget, Check, Expected, Guarded, Kernels, each_call_fails, ensure, irregular, returns_at_once,
    world_of_one,
};

use crate::multi_gpu::global_norm::{average_and_clip, global_norm, softmax};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("global_norm::it_is_the_norm_of_all_parts", || on_all_worlds(check_norm))
            .calls(&["global_norm"])
            .min_ranks(2),
        Check::new("global_norm::a_long_average_is_shortened", || on_all_worlds(check_long))
            .calls(&["average_and_clip"])
            .min_ranks(2),
        Check::new("global_norm::a_short_average_stays", || on_all_worlds(check_short))
            .calls(&["average_and_clip"])
            .min_ranks(2),
        Check::new("global_norm::softmax_is_over_all_parts", || on_all_worlds(check_softmax))
            .calls(&["softmax"])
            .min_ranks(2),
        Check::new("global_norm::one_rank_is_a_world_too", || {
            rendezvous(&lab::streams(1)?, |comm| {
                let kernels = Kernels::load(comm.stream().context())?;
                [check_norm, check_long, check_softmax]
                    .into_iter()
                    .try_for_each(|check| check(&comm, &kernels))
            })?;
            Ok(())
        })
        .calls(&["global_norm", "average_and_clip", "softmax"]),
        Check::new("global_norm::softmax_returns_at_once", || {
            rendezvous(&lab::streams(2)?, |comm| {
                let (stream, kernels) = (comm.stream(), Kernels::load(comm.context())?);
                let mut part = Guarded::new(&stream, &scores(comm.rank()))?;
                returns_at_once("softmax", &stream, || softmax(&comm, &kernels, &mut part.view_mut()))
            })?;
            Ok(())
        })
        .calls(&["softmax"])
        .min_ranks(2),
        Check::new("global_norm::single_numbers_are_communicated", single_numbers_are_communicated)
            .min_ranks(3),
        Check::new("global_norm::a_failed_call_is_an_error", a_failed_call_is_an_error),
    ]
}

fn on_all_worlds(check: fn(&Comm, &Kernels) -> anyhow::Result<()>) -> anyhow::Result<()> {
    for world_size in lab::world_sizes() {
        rendezvous(&lab::streams(world_size)?, |comm| {
            check(&comm, &Kernels::load(comm.stream().context())?)
        })?;
    }
    Ok(())
}

/// Returns the length of a rank's part. It differs on each rank.
fn len_of(rank: usize) -> usize {
    300 + 37 * rank
}

fn squares(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value) * f64::from(value)).sum()
}

fn norm(values: &[f32]) -> f64 {
    squares(values).sqrt()
}

/// Returns the cause for the first mistake that leads to `got`.
fn cause(got: f64, bound: f64, mistakes: &[(f64, &str)]) -> String {
    let found = mistakes.iter().find(|(value, _)| abs_diff_eq!(got, *value, epsilon = bound * value));
    found.map_or_else(String::new, |(_, cause)| format!("\n  likely cause: {cause}"))
}

fn check_norm(comm: &Comm, kernels: &Kernels) -> anyhow::Result<()> {
    // A rank without elements takes part, too.
    let len_of = |rank: usize| if rank == 1 { 0 } else { len_of(rank) };
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let parts: Vec<_> = (0..world_size).map(|rank| irregular::fractions(rank, len_of(rank))).collect();
    let on_gpu = Guarded::new(&comm.stream(), &parts[rank])?;
    let got = f64::from(global_norm(comm, kernels, &on_gpu.view())?);
    let expected = parts.iter().map(|part| squares(part)).sum::<f64>().sqrt();
    // The bound is relative, and all terms are positive. Each square rounds, and there is at most one more rounding per
    // element and rank in the sums. Half of this error passes through the root, which rounds once more.
    let bound = (len_of(world_size) + world_size + 3) as f64 * UNIT_ROUNDOFF;
    let norms: Vec<f64> = parts.iter().map(|part| norm(part)).collect();
    let mistakes = [
        (
            norms[rank],
            match norms[rank] == norms.iter().copied().fold(0.0, f64::max) {
                true => "this is the largest of the parts' norms, which is that of the rank's own part",
                false => "this is the norm of the rank's own part: the other ranks' parts are missing",
            },
        ),
        (
            norms.iter().sum(),
            "this is the sum of the parts' norms, but only the squares of norms can be summed",
        ),
        (
            norms.iter().map(|norm| norm * norm).sum::<f64>(),
            "this is the sum of the squares: the square root is missing",
        ),
        (norms.iter().copied().fold(0.0, f64::max), "this is the largest of the parts' norms"),
        (
            norms.iter().sum::<f64>() / world_size as f64,
            "this is the mean of the parts' norms, but only the squares of norms can be summed",
        ),
        (expected / (world_size as f64).sqrt(), "the sums of squares were averaged, not summed"),
        (
            norms.iter().sum::<f64>().sqrt(),
            "this is the square root of the sum of the norms: sum the squares instead",
        ),
    ];
    ensure!(
        abs_diff_eq!(got, expected, epsilon = bound * expected),
        "rank {rank} of {world_size}: global_norm returned {got:.6}, expected {expected:.6}{}",
        cause(got, bound, &mistakes)
    );
    Expected::new(rank, "the part", &parts[rank]).exactly(&on_gpu.read()?)
}

fn check_long(comm: &Comm, kernels: &Kernels) -> anyhow::Result<()> {
    check_clip(comm, kernels, 2.0)
}

fn check_short(comm: &Comm, kernels: &Kernels) -> anyhow::Result<()> {
    // With at least three ranks, at least one rank's own gradient is longer than this. With up to twelve ranks, the
    // average is shorter.
    check_clip(comm, kernels, 40.0)
}

/// Returns gradients of very different lengths: rank r's is scaled by r + 1.
fn gradient(rank: usize) -> Vec<f32> {
    irregular::fractions(rank, LEN).into_iter().map(|value| value * (rank + 1) as f32).collect()
}

const LEN: usize = 1031;
const NORM_OF_THE_AVERAGE_SUMMED: &str =
    "every rank has the entire average, but its squares were also summed over the ranks";

fn mean(gradients: &[Vec<f32>]) -> Vec<f64> {
    let sum = |index: usize| gradients.iter().map(|gradient| f64::from(gradient[index])).sum::<f64>();
    (0..LEN).map(|index| sum(index) / gradients.len() as f64).collect()
}

fn length(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

fn shortened(values: &[f64], max_norm: f64) -> Vec<f32> {
    let factor = (max_norm / length(values)).min(1.0);
    values.iter().map(|value| (value * factor) as f32).collect()
}

fn check_clip(comm: &Comm, kernels: &Kernels, max_norm: f32) -> anyhow::Result<()> {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let gradients: Vec<_> = (0..world_size).map(gradient).collect();
    let mut buffer = Guarded::new(&comm.stream(), &gradients[rank])?;
    let told = average_and_clip(comm, kernels, &mut buffer.view_mut(), max_norm)?;
    let clip = Clip { rank, average: mean(&gradients), gradients, max_norm: max_norm.into() };
    clip.compare(&buffer.read()?)?;
    clip.compare_norm(told.into())?;
    // Multiplying by a power of 2 doesn't round, so the result is the same, unless a constant is added to the norm.
    const SCALE: f32 = 1.0 / 1_048_576.0;
    let times = |values: &[f32], factor: f32| values.iter().map(|value| value * factor).collect::<Vec<_>>();
    let mut small = Guarded::new(&comm.stream(), &times(&clip.gradients[rank], SCALE))?;
    average_and_clip(comm, kernels, &mut small.view_mut(), max_norm * SCALE)?;
    clip.compare(&times(&small.read()?, 1.0 / SCALE))
        .context(
            "gradients and max_norm 2²⁰ times as small, result multiplied by 2²⁰; it is only wrong if a constant takes part, such as one \
             that is added to the norm",
        )
}

/// The gradients to clip, with the data for a rank's expected result.
struct Clip {
    rank: usize,
    gradients: Vec<Vec<f32>>,
    average: Vec<f64>,
    max_norm: f64,
}

impl Clip {
    fn world_size(&self) -> usize {
        self.gradients.len()
    }

    /// Returns how many times an element is rounded. The average rounds 1 / n, n products, and n − 1 sums. The norm's
    /// relative error is at most one rounding per element. The factor, the product, and the expected value round once
    /// each.
    fn roundings(&self) -> f64 {
        (2 * self.world_size() + LEN + 6) as f64
    }

    /// Returns the result of `global_norm` on an average that every rank has in full.
    fn summed_norm(&self) -> f64 {
        length(&self.average) * (self.world_size() as f64).sqrt()
    }

    /// Returns the average, scaled by a factor.
    fn stretched(&self, by: f64) -> Vec<f32> {
        self.average.iter().map(|value| (value * by) as f32).collect()
    }

    /// Returns a rank's own clipped gradient.
    fn clipped(&self, rank: usize) -> Vec<f32> {
        let own: Vec<f64> = self.gradients[rank].iter().map(|&value| value.into()).collect();
        shortened(&own, self.max_norm)
    }

    fn compare(&self, got: &[f32]) -> anyhow::Result<()> {
        let (norm, max_norm) = (length(&self.average), self.max_norm);
        // No value exceeds the world size.
        let bound = self.world_size() as f64 * self.roundings() * UNIT_ROUNDOFF;
        let right = shortened(&self.average, max_norm);
        let mut expected = Expected::new(self.rank, "the gradient", &right);
        if self.world_size() > 1 {
            expected = self.with_mistakes_of_ranks(expected);
        }
        expected
            .if_instead(&self.stretched(1.0), "the average was not scaled down")
            .if_instead(
                &self.stretched(max_norm / norm),
                "a gradient that is shorter than max_norm was made longer: only scale down",
            )
            .if_instead(
                &self.stretched(norm / max_norm),
                "it was scaled by norm / max_norm, but the factor must be max_norm / norm",
            )
            .if_instead(
                &self.stretched(max_norm / norm.powi(2)),
                "the factor was computed from the sum of the squares: the square root is missing",
            )
            .within(bound, got)
    }

    /// Adds the results of mistakes that need several ranks.
    fn with_mistakes_of_ranks<'a>(&self, expected: Expected<'a, f32>) -> Expected<'a, f32> {
        let clipped: Vec<Vec<f32>> = (0..self.world_size()).map(|rank| self.clipped(rank)).collect();
        let mean_of_clipped: Vec<f32> = mean(&clipped).into_iter().map(|value| value as f32).collect();
        let sum: Vec<f64> = self.average.iter().map(|value| value * self.world_size() as f64).collect();
        expected
            .if_instead(
                &mean_of_clipped,
                "each rank's gradient was clipped before the sum: average first, then clip the average",
            )
            .if_instead(&clipped[self.rank], "these are the rank's own values, clipped: nothing was averaged")
            .if_instead(
                &self.stretched((self.max_norm / self.summed_norm()).min(1.0)),
                NORM_OF_THE_AVERAGE_SUMMED,
            )
            .if_instead(&shortened(&sum, self.max_norm), "the gradients were summed, not averaged")
            .if_instead(
                &self.stretched(self.world_size() as f64),
                "the gradients were summed, not averaged, and not clipped",
            )
    }

    /// Compares the returned norm.
    fn compare_norm(&self, told: f64) -> anyhow::Result<()> {
        let (norm, world_size) = (length(&self.average), self.world_size());
        let relative = self.roundings() * UNIT_ROUNDOFF * world_size as f64;
        let mistakes = [
            (norm.min(self.max_norm), "this is the norm after clipping: return the norm before clipping"),
            (norm * norm, "the square root is missing"),
            (self.summed_norm(), NORM_OF_THE_AVERAGE_SUMMED),
        ];
        ensure!(
            abs_diff_eq!(told, norm, epsilon = relative * norm),
            "rank {} of {world_size}: average_and_clip returned a norm of {told:.6}, expected {norm:.6}{}",
            self.rank,
            cause(told, relative, &mistakes)
        );
        Ok(())
    }
}

/// Returns scores so large that exp overflows unless the largest score is subtracted. Each rank has a different largest
/// score.
fn scores(rank: usize) -> Vec<f32> {
    irregular::fractions(50 + rank, len_of(rank))
        .into_iter()
        .map(|value| 200.0 + 2.0 * value + 0.5 * rank as f32)
        .collect()
}

fn check_softmax(comm: &Comm, kernels: &Kernels) -> anyhow::Result<()> {
    check_scores(comm, kernels, scores)?;
    // Only the last rank has large scores, so the exponentials are too large unless its largest score is subtracted.
    let last = comm.world_size() - 1;
    check_scores(comm, kernels, |rank| {
        let below = if rank == last { 0.0 } else { 150.0 };
        scores(rank).into_iter().map(|score| score - below).collect()
    })
}

fn check_scores(comm: &Comm, kernels: &Kernels, scores: impl Fn(usize) -> Vec<f32>) -> anyhow::Result<()> {
    let (rank, world_size) = (comm.rank(), comm.world_size());
    let parts: Vec<_> = (0..world_size).map(scores).collect();
    let mut buffer = Guarded::new(&comm.stream(), &parts[rank])?;
    softmax(comm, kernels, &mut buffer.view_mut())?;
    let got = buffer.read()?;

    let largest = |part: &[f32]| part.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let most = parts.iter().map(|part| largest(part)).fold(f32::NEG_INFINITY, f32::max);
    let exponentials = |part: &[f32], shift: f32| -> Vec<f64> {
        part.iter().map(|&value| (f64::from(value) - f64::from(shift)).exp()).collect()
    };
    let over = |values: &[f64], divisor: f64| -> Vec<f32> {
        values.iter().map(|value| (value / divisor) as f32).collect()
    };
    let own = exponentials(&parts[rank], most);
    let total: f64 = parts.iter().flat_map(|part| exponentials(part, most)).sum();
    let local = exponentials(&parts[rank], largest(&parts[rank]));
    let local_total: f64 = parts.iter().flat_map(|part| exponentials(part, largest(part))).sum();
    // The bound is relative to a probability, and all probabilities are below 0.05 here. The difference, which is below
    // 8, rounds by 8 · 2⁻²⁴. expf is within 2 units in the last place (CUDA C++ Programming Guide). The sums round at
    // most once per element and rank. The quotient and the expected value round once each.
    let bound = 0.05 * (8 + 4 + len_of(world_size) + world_size + 2) as f64 * UNIT_ROUNDOFF;
    let right = over(&own, total);
    ensure!(right.iter().all(|&value| value < 0.05), "the check's own scores are too far apart");
    if let Some(index) = got.iter().position(|value| !value.is_finite()) {
        anyhow::bail!(
            "rank {rank} of {world_size}: the probability at index {index} is {}: exp({}) overflows, or a sum of such values does; subtract the largest score of all ranks first",
            got[index],
            parts[rank][index]
        );
    }
    let mut expected = Expected::new(rank, "the part after `softmax`", &right);
    if world_size > 1 {
        expected = expected
            .if_instead(
                &over(&local, local_total),
                "each rank subtracted the maximum of its own part: subtract the same number on every rank",
            )
            .if_instead(
                &over(&own, own.iter().sum()),
                "the rank's own part adds up to 1: divide by the sum over all ranks",
            )
            .if_instead(
                &over(&own, total / world_size as f64),
                "the ranks' sums were averaged, so all parts together add up to the world size",
            );
    }
    expected.if_instead(&over(&own, 1.0), "the values were not divided by the sum").within(bound, &got)
}

fn single_numbers_are_communicated() -> anyhow::Result<()> {
    rendezvous(&lab::streams(3)?, |comm| {
        let (rank, stream, kernels) = (comm.rank(), comm.stream(), Kernels::load(comm.context())?);
        let mut part = stream.clone_htod(&irregular::fractions(rank, len_of(rank)))?;
        let mut whole = stream.clone_htod(&gradient(rank))?;
        let numbers = (comm.world_size() * size_of::<f32>()) as u64;
        let budget = |function: &str| {
            Budget::of(function).messages(0).communicators(0).bytes_to_host(numbers).stream_of(&comm)
        };
        budget("global_norm")
            .collectives(&[("AllReduce", 1)])
            .or_collectives(&[("AllGather", 1)])
            .kernels(3)
            .allocations(3)
            .spend(|| global_norm(&comm, &kernels, &part.as_view()))?;
        budget("average_and_clip")
            .collectives(&[("AllReduce", LEN)])
            .kernels(4)
            .spend(|| average_and_clip(&comm, &kernels, &mut whole.as_view_mut(), 0.5))?;
        // The largest score can come from an all-reduce or an all-gather, and so can the sum.
        budget("softmax")
            .collectives(&[("AllGather", 1), ("AllReduce", 1)])
            .or_collectives(&[("AllReduce", 1), ("AllReduce", 1)])
            .or_collectives(&[("AllGather", 1), ("AllGather", 1)])
            .kernels(8)
            .allocations(2)
            .bytes_to_device(0)
            .bytes_to_host(0)
            .spend(|| softmax(&comm, &kernels, &mut part.as_view_mut()))?;
        Ok(stream.synchronize()?)
    })?;
    Ok(())
}

fn a_failed_call_is_an_error() -> anyhow::Result<()> {
    // The gradient must be longer than `max_norm`, because a shorter one is not scaled.
    let values = irregular::fractions(0, 37);
    each_call_fails("global_norm", || {
        let comm = world_of_one()?;
        let kernels = Kernels::load(comm.context())?;
        let part = comm.stream().clone_htod(&values)?;
        Ok(move || global_norm(&comm, &kernels, &part.as_view()).map(drop))
    })?;
    each_call_fails("average_and_clip", || {
        let comm = world_of_one()?;
        let kernels = Kernels::load(comm.context())?;
        let mut gradient = comm.stream().clone_htod(&values)?;
        Ok(move || {
            average_and_clip(&comm, &kernels, &mut gradient.as_view_mut(), 0.01)?;
            Ok(comm.stream().synchronize()?)
        })
    })?;
    each_call_fails("softmax", || {
        let comm = world_of_one()?;
        let kernels = Kernels::load(comm.context())?;
        let mut part = comm.stream().clone_htod(&values)?;
        Ok(move || {
            softmax(&comm, &kernels, &mut part.as_view_mut())?;
            Ok(comm.stream().synchronize()?)
        })
    })
}
