//! One GPU's run over entire batches, computed on the host as the reference for runs that divide batches.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::nccl::{Comm, Id};
use lab::Readable;
use lab::compare::UNIT_ROUNDOFF;
use lab::digits::{CLASSES, PIXELS, Samples};
use lab::perceptron::HostPerceptron;

pub(super) const HIDDEN: usize = 12;
pub(super) const LEARNING_RATE: f32 = 0.07;
/// The seed of the initial parameters.
pub(super) const SEED: u64 = 500;

/// Returns a new communicator with one rank on this stream, so that one model on the stream can be used for all failing
/// calls.
pub(super) fn alone_on(stream: &Arc<CudaStream>) -> anyhow::Result<Comm> {
    stream.context().bind_to_thread()?;
    Comm::from_rank(stream.clone(), 0, 1, Id::new().readable()?).readable()
}

/// Runs `call`, and waits for its collectives even if it fails, so that dropping the communicator aborts none of them.
/// Other checks report errors from this wait.
pub(super) fn to_its_end<T>(comm: &Comm, call: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<()> {
    let called = call();
    let _ = comm.stream().synchronize();
    called.map(drop)
}

/// A correct step.
pub(super) struct Step {
    pub(super) batch: Range<usize>,
    /// The model before the step.
    pub(super) before: HostPerceptron,
    /// The mean loss over the batch, before the step.
    pub(super) loss: f64,
    /// The gradient of the loss.
    pub(super) gradient: Vec<f64>,
    /// The bound on how far a parameter in another run may be off after the step.
    pub(super) bound: f64,
    /// The bound on how far the loss may be off.
    pub(super) loss_bound: f64,
}

/// Runs over consecutive batches. Each step starts from the serial run's own parameters. A sum over samples may have up
/// to `pieces` additional terms, for pieces or ranks.
///
/// A gradient's component is a mean over the samples. Each sample's contribution is below 2 here, and results from at
/// most PIXELS + HIDDEN + CLASSES consecutive additions. The additions over the samples and the pieces follow. Each
/// addition rounds by at most 2⁻²⁴ of the summed values. Parameters are below 1, so each step rounds a parameter by at
/// most 2⁻²⁴. A step's errors grow in later steps: by half in 24 such steps, so a factor of 2 is enough. A sample's
/// loss is below 5, and a difference in the parameters changes it through the gradient.
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
    /// Returns the parameters after a step along this gradient instead.
    pub(super) fn along(&self, gradient: &[f64]) -> Vec<f32> {
        let pairs = self.before.parameters().iter().zip(gradient);
        pairs.map(|(before, slope)| (before - f64::from(LEARNING_RATE) * slope) as f32).collect()
    }

    /// Returns the step length along the gradient that best fits these parameters, and the parameters after a step of
    /// that length.
    pub(super) fn rate_of(&self, parameters: &[f32]) -> (f64, Vec<f32>) {
        let pairs = self.before.parameters().iter().zip(parameters).zip(&self.gradient);
        let along: f64 = pairs.map(|((before, &after), slope)| (before - f64::from(after)) * slope).sum();
        let rate = along / self.gradient.iter().map(|slope| slope * slope).sum::<f64>();
        (rate, self.along(&times(&self.gradient, rate / f64::from(LEARNING_RATE))))
    }

    /// Returns whether this is the loss of the step, up to rounding.
    pub(super) fn has_loss(&self, loss: f32) -> bool {
        (f64::from(loss) - self.loss).abs() <= self.loss_bound
    }

    /// Returns the parameters after the step.
    pub(super) fn after(&self) -> Vec<f32> {
        self.along(&self.gradient)
    }

    /// Returns the parameters before the step.
    pub(super) fn unchanged(&self) -> Vec<f32> {
        self.along(&vec![0.0; self.gradient.len()])
    }

    /// Returns the sums of the losses and gradients over the weighted pieces.
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

/// Returns consecutive batches of these lengths.
pub(super) fn batches(lengths: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    let mut next = |&length| {
        end += length;
        end - length..end
    };
    lengths.iter().map(&mut next).collect()
}

/// Divides a range into `count` pieces whose lengths differ by at most one, and returns piece `index`. Each piece passes
/// its remainder on to the next one.
pub(super) fn piece(whole: &Range<usize>, index: usize, count: usize) -> Range<usize> {
    let mut remainder = 0;
    let mut next = |_| {
        let due = whole.len() + remainder;
        remainder = due % count;
        due / count
    };
    let lengths: Vec<usize> = (0..count).map(&mut next).collect();
    let piece = batches(&lengths).swap_remove(index);
    whole.start + piece.start..whole.start + piece.end
}

/// Describes a step along the correct gradient with the wrong length.
pub(super) fn another_rate(rate: f64) -> String {
    format!("the step subtracts {rate:.4} times the gradient, but the learning rate is {LEARNING_RATE}")
}

/// Multiplies a gradient by a factor.
pub(super) fn times(gradient: &[f64], factor: f64) -> Vec<f64> {
    gradient.iter().map(|slope| slope * factor).collect()
}
