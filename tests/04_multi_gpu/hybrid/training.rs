//! The run on a mesh, the serial run on the host, bounds on the rounding difference between them, and the mistakes that
//! explain larger differences.

use std::ops::Range;

use anyhow::bail;
use approx::{abs_diff_eq, abs_diff_ne};
use lab::Perceptron;
use lab::compare::UNIT_ROUNDOFF;
use lab::digits::{CLASSES, Digits, PIXELS, Samples};
use lab::perceptron::{HostPerceptron, Layout};

use super::super::tensor::part;
use super::super::whole_batch::{LEARNING_RATE, another_rate, piece, times};
use super::{true_coordinates, true_rank};
use crate::multi_gpu::hybrid::{Coordinates, Mesh, on_mesh, start_equal, step};

pub(super) const HIDDEN: usize = 12;
/// The lengths of the batches. Most are not divisible by the number of rows. In one batch, a row has no samples.
const BATCHES: [usize; 8] = [13, 8, 30, 1, 21, 17, 2, 11];
const LAYOUT: Layout = Layout { hidden: HIDDEN };

/// Returns a seed that is different in each row, so that the rows differ until they are made equal.
pub(super) fn seed(data_rank: usize) -> u64 {
    300 + data_rank as u64
}

/// Returns the samples of each step.
fn batches() -> Vec<Range<usize>> {
    let mut end = 0;
    let mut next = |length| {
        end += length;
        end - length..end
    };
    BATCHES.into_iter().map(&mut next).collect()
}

/// The results of one rank's step.
struct Step {
    loss: f32,
    parameters: Vec<f32>,
}

/// Returns the words for a step whose call failed. They name an earlier step in which a row had no samples.
fn told(mesh: Mesh, index: usize) -> String {
    let batches = batches();
    let is_empty = |step: usize, row: usize| piece(&batches[step], row, mesh.data).is_empty();
    let empty =
        (0..=index).rev().find_map(|step| Some((step, (0..mesh.data).find(|&row| is_empty(step, row))?)));
    let empty = match empty {
        Some((step, row)) => format!(", and row {row} of the mesh has no samples in step {}", step + 1),
        None => String::new(),
    };
    format!("step {} (samples {:?}){empty}", index + 1, batches[index])
}

/// A training run on GPUs, with each rank's steps.
pub(super) struct Training {
    mesh: Mesh,
    samples: Samples,
    ranks: Vec<Vec<Step>>,
}

impl Training {
    pub(super) fn run(mesh: Mesh) -> anyhow::Result<Self> {
        let samples = Digits::load()?.train;
        let streams = lab::streams(mesh.data * mesh.tensor)?;
        let room = BATCHES.into_iter().max().unwrap_or(1).div_ceil(mesh.data);
        let ranks = on_mesh(&streams, mesh, |groups| {
            let Coordinates { data_rank, tensor_rank } =
                true_coordinates(true_rank(&streams, &groups)?, mesh);
            let stream = groups.data.stream();
            let device_samples = samples.to_device(&stream)?;
            let units = part(HIDDEN, tensor_rank, mesh.tensor);
            let mut model = Perceptron::of_units(&stream, HIDDEN, units, room, seed(data_rank))?;
            start_equal(&groups, &mut model)?;
            let mut steps = Vec::new();
            for (index, batch) in batches().into_iter().enumerate() {
                let own = piece(&batch, data_rank, mesh.data);
                let weight = (own.len() * mesh.data) as f32 / batch.len() as f32;
                let own = device_samples.batch(own)?;
                let loss = step(&groups, &mut model, &own, weight, LEARNING_RATE)
                    .map_err(|error| error.context(told(mesh, index)))?;
                steps.push(Step { loss, parameters: stream.clone_dtoh(&model.parameters())? });
            }
            stream.synchronize()?;
            Ok(steps)
        })?;
        Ok(Self { mesh, samples, ranks })
    }

    /// Compares every parameter and the loss of every rank after each step.
    pub(super) fn compare(&self, serial: &Serial) -> anyhow::Result<()> {
        let Mesh { data, tensor } = self.mesh;
        for (index, batch) in batches().into_iter().enumerate() {
            let expected = &serial.steps[index];
            for (rank, steps) in self.ranks.iter().enumerate() {
                let told =
                    format!("mesh {data} × {tensor}, step {} (samples {batch:?}), rank {rank}", index + 1);
                let units = part(HIDDEN, true_coordinates(rank, self.mesh).tensor_rank, tensor);
                let of_rank = LAYOUT.of_units(&expected.parameters, units.clone());
                let bound = serial.bound(index + 1);
                for (at, (got, value)) in steps[index].parameters.iter().zip(&of_rank).enumerate() {
                    if abs_diff_ne!(f64::from(*got), *value, epsilon = bound) {
                        let off = (f64::from(*got) - value).abs();
                        bail!(
                            "{told}: parameter {at} ({}) is {got}, expected {value:.7}\noff by {off:.1e}; rounding \
                             explains at most {bound:.1e}{}",
                            Layout { hidden: units.len() }.part(at),
                            self.likely_cause(rank, index, serial)
                        );
                    }
                }
                let (got, bound) = (steps[index].loss, serial.loss_bound(index));
                if abs_diff_ne!(f64::from(got), expected.loss, epsilon = bound) {
                    let off = (f64::from(got) - expected.loss).abs();
                    bail!(
                        "{told}: the loss is {got}, expected {:.6}\noff by {off:.1e}; rounding explains at most \
                         {bound:.1e}{}",
                        expected.loss,
                        match self.is_loss_of_row(rank, index, serial) {
                            true => {
                                "\nlikely cause: it is the loss of the rank's own row: average it over the column, \
                                 like the gradient"
                            }
                            false => "",
                        }
                    );
                }
            }
        }
        Ok(())
    }

    /// Returns whether a rank's loss is the loss of its own row's samples, with or without the weight.
    fn is_loss_of_row(&self, rank: usize, step: usize, serial: &Serial) -> bool {
        let batch = batches()[step].clone();
        let own = piece(&batch, true_coordinates(rank, self.mesh).data_rank, self.mesh.data);
        let weight = (own.len() * self.mesh.data) as f64 / batch.len() as f64;
        let (loss, _) = model(HIDDEN, serial.before(step)).loss_and_gradient(&self.samples, own);
        let got = f64::from(self.ranks[rank][step].loss);
        [loss, weight * loss].iter().any(|loss| abs_diff_eq!(got, *loss, epsilon = serial.loss_bound(step)))
    }

    /// Returns the known mistake that explains this step, on a separate line.
    fn likely_cause(&self, rank: usize, step: usize, serial: &Serial) -> String {
        let batch = batches()[step].clone();
        let Coordinates { data_rank, tensor_rank } = true_coordinates(rank, self.mesh);
        let units = part(HIDDEN, tensor_rank, self.mesh.tensor);
        let own = piece(&batch, data_rank, self.mesh.data);
        let weight = (own.len() * self.mesh.data) as f64 / batch.len() as f64;
        let before = serial.before(step);
        let alone = |model: &HostPerceptron, rows: Range<usize>, weight: f64| -> Vec<f64> {
            let (_, gradient) = model.loss_and_gradient(&self.samples, rows);
            gradient.into_iter().map(|slope| weight * slope).collect()
        };
        let whole = model(HIDDEN, before);
        let part_only = model(units.len(), &LAYOUT.of_units(before, units.clone()));
        let start = LAYOUT.of_units(before, units.clone());
        let explains = |gradient: Vec<f64>| {
            let pairs = self.ranks[rank][step].parameters.iter().zip(start.iter().zip(gradient));
            pairs.into_iter().all(|(got, (start, slope))| {
                let stepped = start - f64::from(LEARNING_RATE) * slope;
                abs_diff_eq!(f64::from(*got), stepped, epsilon = serial.bound(step + 1))
            })
        };
        let of_units = |gradient: Vec<f64>| LAYOUT.of_units(&gradient, units.clone());
        let right = of_units(serial.steps[step].gradient.clone());
        let rate = {
            let pairs = self.ranks[rank][step].parameters.iter().zip(&start).zip(&right);
            let along: f64 = pairs.map(|((&got, start), slope)| (start - f64::from(got)) * slope).sum();
            along / right.iter().map(|slope| slope * slope).sum::<f64>()
        };
        let own_row = alone(&whole, own.clone(), weight);
        // The mean over the hidden units on all ranks in the row, as if they were the same units.
        let over_the_row = || {
            let columns = self.mesh.tensor;
            let mut mean = vec![0.0; start.len()];
            for column in 0..columns {
                let gradient = LAYOUT.of_units(&own_row, part(HIDDEN, column, columns));
                mean.iter_mut().zip(gradient).for_each(|(mean, slope)| *mean += slope / columns as f64);
            }
            mean
        };
        // The biases of the classes are added to the scores this many times.
        let with_biases = |times: usize| {
            let mut parameters = before.to_vec();
            let biases = parameters.len() - CLASSES;
            parameters[biases..].iter_mut().for_each(|bias| *bias *= times as f64);
            of_units(alone(&model(HIDDEN, &parameters), batches()[step].clone(), 1.0))
        };
        // The sum over the rows may have been divided by something other than the number of rows.
        let rows = self.mesh.data;
        let divisors = (1..=rows * self.mesh.tensor).filter(|&divisor| divisor != rows);
        let divisor =
            || divisors.into_iter().find(|&divisor| explains(times(&right, rows as f64 / divisor as f64)));
        let cause = if explains(of_units(own_row.clone())) {
            "the step follows the gradient of the row's own samples: average it over the column before `descend`"
        } else if explains(alone(&part_only, batch, 1.0)) {
            "the scores come only from the rank's own hidden units: sum them over the row before `finish_scores`"
        } else if explains(vec![0.0; start.len()]) {
            "the step changed nothing"
        } else if explains(over_the_row()) {
            "the gradient was averaged over the row, whose ranks have different hidden units: average it over the \
             column"
        } else if explains(with_biases(0)) {
            "the classes' biases were never added to the scores: call `finish_scores` after the sum"
        } else if explains(with_biases(self.mesh.tensor)) {
            "the classes' biases were added to the scores once for each rank in the row: add them after the sum"
        } else if let Some(divisor) = divisor() {
            &format!(
                "the gradient is {rows}/{divisor} times the batch's gradient: the sum over {rows} rows was divided by \
                 {divisor}"
            )
        } else if explains(times(&right, rate / f64::from(LEARNING_RATE))) {
            &another_rate(rate)
        } else {
            return String::new();
        };
        format!("\nlikely cause: {cause}")
    }
}

fn model(hidden: usize, parameters: &[f64]) -> HostPerceptron {
    let mut model = HostPerceptron::new(hidden, 0);
    model.parameters_mut().copy_from_slice(parameters);
    model
}

/// The same training on the host, with entire batches and the entire model.
pub(super) struct Serial {
    start: Vec<f64>,
    steps: Vec<SerialStep>,
    /// The factor by which a small difference grows by the end.
    growth: f64,
    ranks: usize,
}

struct SerialStep {
    loss: f64,
    gradient: Vec<f64>,
    parameters: Vec<f64>,
}

impl Serial {
    /// Trains on the host. A step's errors grow in later steps. To measure this growth, a second run starts with all
    /// parameters shifted slightly, alternately up and down. Differences in other directions may grow more, so the
    /// bound allows for twice this growth.
    pub(super) fn of(training: &Training) -> Self {
        const LITTLE: f64 = 1e-6;
        let start: Vec<f64> = LAYOUT.initial(seed(0)).into_iter().map(f64::from).collect();
        let aside = |(index, value): (usize, &f64)| value + if index % 2 == 0 { LITTLE } else { -LITTLE };
        let moved: Vec<f64> = start.iter().enumerate().map(aside).collect();
        let (steps, moved) = (descend(&training.samples, &start), descend(&training.samples, &moved));
        let pairs = steps.iter().zip(&moved).flat_map(|(a, b)| a.parameters.iter().zip(&b.parameters));
        let apart = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        Self { start, steps, growth: 2.0 * apart / LITTLE, ranks: training.ranks.len() }
    }

    fn before(&self, step: usize) -> &[f64] {
        step.checked_sub(1).map_or(&self.start, |previous| &self.steps[previous].parameters)
    }

    /// Returns a bound on the error of a parameter after this many steps. A gradient's component is a mean over
    /// samples. Each sample's contribution is below 2 here, and results from at most PIXELS + HIDDEN + CLASSES
    /// consecutive additions. One more follows per sample, and one per rank in each direction of the mesh. Each
    /// addition rounds by at most 2⁻²⁴ of the summed values. The step itself rounds once.
    fn bound(&self, steps: usize) -> f64 {
        let per_step = f64::from(LEARNING_RATE) * self.roundings() * 2.0 + 1.0;
        self.growth * steps as f64 * per_step * UNIT_ROUNDOFF
    }

    /// Returns a bound on the error of a step's loss. It is the sum of the loss's own rounding error and the effect,
    /// through the gradient, of earlier differences in the parameters. Each sample's loss is below 5.
    fn loss_bound(&self, step: usize) -> f64 {
        let slopes: f64 = self.steps[step].gradient.iter().map(|slope| slope.abs()).sum();
        2.0 * 5.0 * self.roundings() * UNIT_ROUNDOFF + slopes * self.bound(step)
    }

    fn roundings(&self) -> f64 {
        let samples = BATCHES.into_iter().max().unwrap_or(0);
        (PIXELS + HIDDEN + CLASSES + samples + 2 * self.ranks) as f64
    }
}

fn descend(samples: &Samples, start: &[f64]) -> Vec<SerialStep> {
    let mut model = model(HIDDEN, start);
    let step = |batch: Range<usize>| {
        let (loss, gradient) = model.loss_and_gradient(samples, batch);
        model.descend(&gradient, LEARNING_RATE.into());
        SerialStep { loss, gradient, parameters: model.parameters().to_vec() }
    };
    batches().into_iter().map(step).collect()
}
