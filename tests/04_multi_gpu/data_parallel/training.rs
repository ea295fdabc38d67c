//! The run on many GPUs, the serial run on the host, and bounds on the rounding difference between them.

use std::ops::Range;

use anyhow::Context;
use init::rendezvous::rendezvous;
use lab::Perceptron;
use lab::compare::UNIT_ROUNDOFF;
use lab::digits::{CLASSES, Digits, PIXELS, Samples};
use lab::perceptron::HostPerceptron;

use super::shards_are_the_batch;
use crate::multi_gpu::data_parallel::{start_equal, step};

pub(super) const HIDDEN: usize = 12;
pub(super) const LEARNING_RATE: f32 = 0.07;
/// The lengths of the batches. Most world sizes do not divide most of them. The last batch has fewer samples than most
/// groups have ranks, so a rank has no samples.
const UNEVEN: [usize; 4] = [13, 8, 30, 2];
const STEPS: usize = UNEVEN.len();

/// Returns a seed that is different on each rank, so that the replicas differ until they are made equal.
pub(super) fn seed(rank: usize) -> u64 {
    100 + rank as u64
}

/// One rank's run.
pub(super) struct Replica {
    /// The parameters before the first step.
    pub(super) start: Vec<f32>,
    pub(super) steps: Vec<Step>,
}

/// The results of one rank's step.
pub(super) struct Step {
    pub(super) loss: f32,
    pub(super) parameters: Vec<f32>,
}

/// A training run on GPUs.
pub(super) struct Training {
    pub(super) samples: Samples,
    pub(super) batches: Vec<Range<usize>>,
    pub(super) replicas: Vec<Replica>,
}

impl Training {
    /// Trains with batches of 12 samples per rank.
    pub(super) fn even(world_size: usize) -> anyhow::Result<Self> {
        Self::run(world_size, &[12 * world_size])
    }

    /// Trains with shards of different lengths, some of them empty.
    pub(super) fn uneven(world_size: usize) -> anyhow::Result<Self> {
        Self::run(world_size, &UNEVEN)
    }

    fn run(world_size: usize, lengths: &[usize]) -> anyhow::Result<Self> {
        // If the shards are wrong, errors in the steps are only a consequence.
        shards_are_the_batch()?;
        let samples = Digits::load()?.train;
        let longest = lengths.iter().copied().max().unwrap_or(1);
        let mut start = 0;
        let mut next_batch = |length: usize| {
            if start + length > samples.len() {
                start = 0;
            }
            start += length;
            start - length..start
        };
        let batches: Vec<_> = lengths.iter().cycle().take(STEPS).map(|&length| next_batch(length)).collect();
        let replicas = rendezvous(&lab::streams(world_size)?, |comm| {
            let stream = comm.stream();
            let device_samples = samples.to_device(&stream)?;
            // The model has room for only one shard. A rank that processes the whole batch would not be parallel, so it
            // fails.
            let room = longest.div_ceil(world_size);
            let mut model = Perceptron::new(&stream, HIDDEN, room, seed(comm.rank()))?;
            start_equal(&comm, &mut model)?;
            let start = stream.clone_dtoh(&model.parameters())?;
            let mut steps = Vec::new();
            for batch in &batches {
                let loss = step(&comm, &mut model, &device_samples, batch.clone(), LEARNING_RATE)
                    .with_context(|| {
                        format!(
                            "`step` returned an error, for a model with room for one shard of {room} samples"
                        )
                    })?;
                steps.push(Step { loss, parameters: stream.clone_dtoh(&model.parameters())? });
            }
            stream.synchronize()?;
            Ok(Replica { start, steps })
        })?;
        Ok(Self { samples, batches, replicas })
    }

    pub(super) fn world_size(&self) -> usize {
        self.replicas.len()
    }

    /// Describes a step for a message, counting from 1.
    pub(super) fn place(&self, step: usize) -> String {
        format!("world size {}, step {} (samples {:?})", self.world_size(), step + 1, self.batches[step])
    }

    /// Returns a bound on how far a parameter may be from the serial run's after this many steps.
    ///
    /// A gradient's component is a mean over n samples. Each sample's contribution is below 2 here, and results from at
    /// most PIXELS + HIDDEN + CLASSES consecutive additions. n more additions follow on the rank, and the AllReduce
    /// makes one per rank. Each addition rounds by at most u = 2⁻²⁴ of the summed values. Parameters are below 1, so
    /// each step rounds a parameter by at most u. A step's errors grow in later steps: if the serial run over these
    /// batches starts off by 1e-6, it ends off by 1.5e-6. So a growth factor of 2 is enough.
    pub(super) fn bound(&self, steps: usize) -> f64 {
        let growth = 2.0;
        let largest_part = 2.0;
        let per_step = f64::from(LEARNING_RATE) * self.roundings() * largest_part + 1.0;
        growth * steps as f64 * per_step * UNIT_ROUNDOFF
    }

    /// Returns a bound on how far the loss may be from the serial run's. It is the sum of the loss's own rounding error
    /// and the effect, through the gradient, of earlier differences in the parameters. Each sample's loss is below 5.
    pub(super) fn loss_bound(&self, steps: usize, serial: &SerialStep) -> f64 {
        let slopes: f64 = serial.gradient.iter().map(|slope| slope.abs()).sum();
        2.0 * 5.0 * self.roundings() * UNIT_ROUNDOFF + slopes * self.bound(steps - 1)
    }

    fn roundings(&self) -> f64 {
        let samples = self.batches.iter().map(Range::len).max().unwrap_or(0);
        (PIXELS + HIDDEN + CLASSES + samples + self.world_size()) as f64
    }
}

/// The same training on the host, with entire batches.
pub(super) struct Serial {
    pub(super) steps: Vec<SerialStep>,
}

pub(super) struct SerialStep {
    /// The mean loss over the batch, before the step.
    pub(super) loss: f64,
    /// The gradient of the loss.
    pub(super) gradient: Vec<f64>,
    /// The parameters after the step.
    pub(super) parameters: Vec<f64>,
}

impl Serial {
    pub(super) fn of(training: &Training) -> Self {
        let mut model = HostPerceptron::new(HIDDEN, seed(0));
        let mut steps = Vec::new();
        for batch in &training.batches {
            let (loss, gradient) = model.loss_and_gradient(&training.samples, batch.clone());
            model.descend(&gradient, LEARNING_RATE.into());
            steps.push(SerialStep { loss, gradient, parameters: model.parameters().to_vec() });
        }
        Self { steps }
    }
}
