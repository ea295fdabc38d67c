//! What one GPU makes of the whole batches, on the host: the reference for runs that cut them up.

use std::ops::Range;

use lab::compare::UNIT_ROUNDOFF;
use lab::digits::{CLASSES, PIXELS, Samples};
use lab::perceptron::HostPerceptron;

pub(super) const HIDDEN: usize = 12;
pub(super) const LEARNING_RATE: f32 = 0.07;
/// The seed of the parameters that everything starts from.
pub(super) const SEED: u64 = 500;

/// One step, as it should be.
pub(super) struct Step {
    pub(super) batch: Range<usize>,
    /// The model that the step starts from.
    pub(super) before: HostPerceptron,
    /// Mean over the batch, before the step.
    pub(super) loss: f64,
    /// Of that loss.
    pub(super) gradient: Vec<f64>,
    /// How far a parameter of another run may be from this one's after the step.
    pub(super) bound: f64,
    /// How far its loss may be from this one's.
    pub(super) loss_bound: f64,
}

/// A run over batches that lie one behind the other, each step from the serial run's own parameters. Behind its samples, a sum
/// may have so many more terms, of pieces or of ranks.
///
/// A gradient's component is a mean over the samples. Each sample's part is below 2 here, and is the result of at most
/// PIXELS + HIDDEN + CLASSES additions in a row; those of the samples and of the pieces follow. Each rounds by at most 2⁻²⁴ of
/// the values added. Parameters are below 1, so each step rounds one by as much at most. What came about in one step grows in
/// the others: by half in 24 steps such as these, and 2 is above that. A sample's loss is below 5, and a difference in
/// parameters comes into it by the gradient.
pub(super) fn steps(samples: &Samples, batches: &[Range<usize>], pieces: usize) -> Vec<Step> {
    let mut model = HostPerceptron::new(HIDDEN, SEED);
    let longest = batches.iter().map(Range::len).max().unwrap_or(0);
    let roundings = (PIXELS + HIDDEN + CLASSES + longest + pieces) as f64;
    let per_step = f64::from(LEARNING_RATE) * roundings * 2.0 + 1.0;
    let bound = |steps: usize| 2.0 * steps as f64 * per_step * UNIT_ROUNDOFF;
    let mut made = Vec::new();
    for (index, batch) in batches.iter().cloned().enumerate() {
        let (loss, gradient) = model.loss_and_gradient(samples, batch.clone());
        let mut before = HostPerceptron::new(HIDDEN, SEED);
        before.parameters_mut().copy_from_slice(model.parameters());
        model.descend(&gradient, LEARNING_RATE.into());
        let slopes: f64 = gradient.iter().map(|slope| slope.abs()).sum();
        let loss_bound = 2.0 * 5.0 * roundings * UNIT_ROUNDOFF + slopes * bound(index);
        made.push(Step { batch, before, loss, gradient, bound: bound(index + 1), loss_bound });
    }
    made
}

impl Step {
    /// The parameters after a step along this gradient instead.
    pub(super) fn along(&self, gradient: &[f64]) -> Vec<f32> {
        let pairs = self.before.parameters().iter().zip(gradient);
        pairs.map(|(before, slope)| (before - f64::from(LEARNING_RATE) * slope) as f32).collect()
    }

    /// How far along the gradient these parameters lie from those before the step, at best, and the parameters that lie just there.
    pub(super) fn rate_of(&self, parameters: &[f32]) -> (f64, Vec<f32>) {
        let pairs = self.before.parameters().iter().zip(parameters).zip(&self.gradient);
        let along: f64 = pairs.map(|((before, &after), slope)| (before - f64::from(after)) * slope).sum();
        let rate = along / self.gradient.iter().map(|slope| slope * slope).sum::<f64>();
        (rate, self.along(&times(&self.gradient, rate / f64::from(LEARNING_RATE))))
    }

    /// The parameters after the step.
    pub(super) fn after(&self) -> Vec<f32> {
        self.along(&self.gradient)
    }

    /// The parameters before the step.
    pub(super) fn unchanged(&self) -> Vec<f32> {
        self.along(&vec![0.0; self.gradient.len()])
    }

    /// The sum over the pieces of the loss and of the gradient over each, times its weight.
    pub(super) fn sum(&self, samples: &Samples, pieces: &[(Range<usize>, f64)]) -> (f64, Vec<f64>) {
        let mut loss = 0.0;
        let mut gradient = vec![0.0; self.gradient.len()];
        for (piece, weight) in pieces {
            let (own_loss, own) = self.before.loss_and_gradient(samples, piece.clone());
            loss += weight * own_loss;
            gradient.iter_mut().zip(own).for_each(|(sum, slope)| *sum += weight * slope);
        }
        (loss, gradient)
    }
}

/// Batches of these lengths, one behind the other.
pub(super) fn batches(lengths: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    let mut next = |&length| {
        end += length;
        end - length..end
    };
    lengths.iter().map(&mut next).collect()
}

/// Piece `index` of `count` pieces of a range, which differ by one element at most.
pub(super) fn piece(whole: &Range<usize>, index: usize, count: usize) -> Range<usize> {
    let cut = |index: usize| whole.start + whole.len() * index / count;
    cut(index)..cut(index + 1)
}

/// What is said of a step along the right gradient, but too far or not far enough.
pub(super) fn another_rate(rate: f64) -> String {
    format!("the step subtracts {rate:.4} times the gradient, where the learning rate is {LEARNING_RATE}")
}

/// A gradient times a factor.
pub(super) fn times(gradient: &[f64], factor: f64) -> Vec<f64> {
    gradient.iter().map(|slope| slope * factor).collect()
}
