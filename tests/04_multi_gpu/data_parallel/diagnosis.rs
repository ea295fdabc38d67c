//! Finds the mistake that explains a wrong step by computing the result of each known mistake.

use std::ops::Range;

use approx::abs_diff_eq;
use lab::perceptron::{HostPerceptron, Layout};

use super::super::whole_batch::piece;
use super::training::{HIDDEN, LEARNING_RATE, Replica, SerialStep, Training, seed};

/// Two updates are considered equal if they differ by at most this fraction of their length. Rounding parameters to f32
/// moves an update by about 1e-5 of its length. The results of known mistakes differ by more than 1e-2.
const ALIKE: f64 = 2e-3;

/// Returns the known mistake, if any, that explains why `rank`'s parameters after `step` differ from the serial run's.
pub(super) fn likely_cause(training: &Training, rank: usize, step: usize) -> Option<String> {
    let world_size = training.world_size();
    let replica = &training.replicas[rank];
    if let Some(cause) = of_start(training) {
        return Some(cause);
    }
    let update = update(replica, step);
    if length(&update) == 0.0 {
        return Some("the step changed nothing".to_owned());
    }
    let model = model_before(replica, step);
    let gradient = |rows: Range<usize>| model.loss_and_gradient(&training.samples, rows).1;
    let batch = training.batches[step].clone();

    if let Some(factor) = multiple(&update, &gradient(batch.clone())) {
        return Some(of_factor(factor, world_size));
    }
    // The student may distribute the longer shards differently. In that case, a cause may not be found, but no wrong
    // cause is named.
    let shards: Vec<Range<usize>> = (0..world_size).map(|rank| piece(&batch, rank, world_size)).collect();
    let idle = shards.iter().position(Range::is_empty);
    if let (Some(idle), Some(last)) = (idle, step.checked_sub(1)) {
        let empty = shards.iter().filter(|shard| shard.is_empty()).count();
        let (_, averaged) =
            model_before(replica, last).loss_and_gradient(&training.samples, training.batches[last].clone());
        let mut with_leftovers = gradient(batch.clone());
        let share = empty as f64 / world_size as f64;
        with_leftovers.iter_mut().zip(averaged).for_each(|(sum, slope)| *sum += share * slope);
        if multiple(&update, &with_leftovers).is_some_and(|factor| abs_diff_eq!(factor, 1.0, epsilon = ALIKE))
        {
            return Some(format!(
                "rank {idle} has no samples in this step, but its gradient from the previous step was averaged again"
            ));
        }
    }
    let gradients: Vec<Vec<f64>> = shards.iter().cloned().map(gradient).collect();
    let mut sum = vec![0.0; update.len()];
    for gradient in &gradients {
        sum.iter_mut().zip(gradient).for_each(|(sum, slope)| *sum += slope);
    }
    let mean = multiple(&update, &sum).map(|factor| factor * world_size as f64);
    if mean.is_some_and(|factor| abs_diff_eq!(factor, 1.0, epsilon = ALIKE)) {
        return Some(
            "this is the mean of the shards' means, but a shard with more samples must count for more"
                .to_owned(),
        );
    }
    let shard_of = |replica: &Replica| {
        let update = self::update(replica, step);
        gradients.iter().position(|gradient| multiple(&update, gradient).is_some())
    };
    let shard = shard_of(replica)?;
    let on_all = training.replicas.iter().all(|replica| shard_of(replica) == Some(shard));
    let on_all = if on_all { ", on every rank" } else { "" };
    Some(format!("the step follows the gradient of samples {:?} alone{on_all}", shards[shard]))
}

/// Returns what is wrong with the parameters before the first step, if anything.
fn of_start(training: &Training) -> Option<String> {
    let expected = Layout { hidden: HIDDEN }.initial(seed(0));
    let stray = training.replicas.iter().position(|replica| replica.start != expected)?;
    Some(match stray {
        0 => "`start_equal` changed rank 0's parameters, which all ranks must start with".to_owned(),
        _ => format!("rank {stray} doesn't start with rank 0's parameters: see `start_equal`"),
    })
}

/// Returns the known mistake, if any, that explains why the loss differs from the serial run's.
pub(super) fn of_loss(training: &Training, step: usize, got: f64, serial: &SerialStep) -> Option<String> {
    if let Some(cause) = of_start(training) {
        return Some(cause);
    }
    let world_size = training.world_size();
    let batch = &training.batches[step];
    let model = model_before(&training.replicas[0], step);
    let shards: Vec<Range<usize>> = (0..world_size).map(|rank| piece(batch, rank, world_size)).collect();
    let losses: Vec<f64> =
        shards.iter().map(|rows| model.loss_and_gradient(&training.samples, rows.clone()).0).collect();
    let alike = |expected: f64| abs_diff_eq!(got, expected, epsilon = ALIKE * expected.abs());
    let is_of_shard = |rank: &usize| {
        let weight = (shards[*rank].len() * world_size) as f64 / batch.len() as f64;
        alike(losses[*rank]) || alike(weight * losses[*rank])
    };
    let factor = got / serial.loss;
    if alike(serial.loss) {
        None
    } else if alike(losses.iter().sum::<f64>() / world_size as f64) {
        Some(
            "this is the mean of the shards' means, but a shard with more samples must count for more"
                .to_owned(),
        )
    } else if let Some(rank) = (0..world_size).find(is_of_shard) {
        Some(format!("this is the loss of samples {:?} alone: average it like the gradient", shards[rank]))
    } else if alike(serial.loss * world_size as f64) || alike(serial.loss / world_size as f64) {
        Some(match factor > 1.0 {
            true => format!("it is the correct loss multiplied by the world size, {world_size}"),
            false => format!("it is the correct loss divided by the world size, {world_size}"),
        })
    } else {
        None
    }
}

fn of_factor(factor: f64, world_size: usize) -> String {
    let is = |expected: f64| abs_diff_eq!(factor / expected, 1.0, epsilon = ALIKE);
    let worlds = world_size as f64;
    if is(1.0) {
        "this step is correct, but an earlier one was wrong".to_owned()
    } else if is(worlds) {
        format!(
            "the change in the parameters is exactly {world_size} times what it must be, and {world_size} is the \
             world size, as if the gradients had been summed instead of averaged"
        )
    } else if is(1.0 / worlds) {
        format!(
            "the change in the parameters is exactly 1/{world_size} of what it must be, and {world_size} is the world \
             size"
        )
    } else if is(-1.0) {
        "the step follows the gradient uphill instead of downhill".to_owned()
    } else {
        format!("the step is {factor:.4} times as long as it should be")
    }
}

/// Returns the gradient that the step used: the change in the parameters, divided by the learning rate.
fn update(replica: &Replica, step: usize) -> Vec<f64> {
    let pairs = before(replica, step).iter().zip(&replica.steps[step].parameters);
    pairs.map(|(before, after)| (f64::from(*before) - f64::from(*after)) / f64::from(LEARNING_RATE)).collect()
}

fn before(replica: &Replica, step: usize) -> &[f32] {
    step.checked_sub(1).map_or(&replica.start, |previous| &replica.steps[previous].parameters)
}

fn model_before(replica: &Replica, step: usize) -> HostPerceptron {
    let mut model = HostPerceptron::new(HIDDEN, 0);
    let pairs = model.parameters_mut().iter_mut().zip(before(replica, step));
    pairs.for_each(|(to, from)| *to = f64::from(*from));
    model
}

/// Returns the ratio of `update` to `gradient`, if `update` is a multiple of it.
fn multiple(update: &[f64], gradient: &[f64]) -> Option<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let squared = dot(gradient, gradient);
    if squared == 0.0 {
        return None;
    }
    let factor = dot(update, gradient) / squared;
    let rest: Vec<f64> = update.iter().zip(gradient).map(|(update, slope)| update - factor * slope).collect();
    (length(&rest) < ALIKE * length(update)).then_some(factor)
}

fn length(vector: &[f64]) -> f64 {
    vector.iter().map(|value| value * value).sum::<f64>().sqrt()
}
