//! A few steps of gradient descent on several GPUs and on the host, and bounds on the rounding difference between them.
//!
//! The loss is half the squared distance from a target, averaged over the samples. So its gradient is (output − target)
//! / samples.

use std::ops::Range;

use approx::abs_diff_eq;
use cudarc::nccl::ReduceOp;
use init::rendezvous::rendezvous;
use lab::compare::UNIT_ROUNDOFF;
use lab::{Kernels, Mlp, Readable, Weights, ensure, irregular};

use super::super::tensor::{ODD, SAMPLES, Sizes, part, with_columns, with_rows};
use crate::multi_gpu::tensor_backward::mlp_backward;

pub(super) const STEPS: usize = 4;
const LEARNING_RATE: f32 = 0.25;

/// The results of one rank's step.
pub(super) struct Step {
    first: Weights,
    second: Weights,
    input_gradient: Vec<f32>,
}

/// Returns a layer of positive and negative fractions, small enough to keep outputs near 1.
fn fractions(seed: usize, inputs: usize, outputs: usize) -> Weights {
    let mut values = irregular::fractions(seed, (inputs + 1) * outputs);
    values.iter_mut().for_each(|value| *value /= (inputs as f32).sqrt());
    let bias = values.split_off(inputs * outputs);
    Weights { inputs, outputs, weights: values, bias }
}

fn layers() -> (Weights, Weights) {
    let Sizes { inputs, hidden, outputs } = ODD;
    (fractions(1, inputs, hidden), fractions(2, hidden, outputs))
}

fn input(step: usize) -> Vec<f32> {
    irregular::fractions(100 + step, SAMPLES * ODD.inputs)
}

fn target(step: usize) -> Vec<f32> {
    irregular::fractions(200 + step, SAMPLES * ODD.outputs)
}

/// Trains on GPUs, and returns each rank's results after each step. The check itself computes the forward pass.
pub(super) fn train(world_size: usize) -> anyhow::Result<Vec<Vec<Step>>> {
    let (first, second) = layers();
    rendezvous(&lab::streams(world_size)?, |comm| {
        let stream = comm.stream();
        let kernels = Kernels::load(stream.context())?;
        let units = part(ODD.hidden, comm.rank(), world_size);
        let own = (with_columns(&first, units.clone()), with_rows(&second, units));
        let mut mlp = Mlp::new(&stream, &own.0, &own.1, SAMPLES)?;
        let mut output = stream.alloc_zeros::<f32>(SAMPLES * ODD.outputs)?;
        let mut back = stream.alloc_zeros::<f32>(SAMPLES * ODD.inputs)?;
        let mut steps = Vec::new();
        for step in 0..STEPS {
            let input = stream.clone_htod(&input(step))?;
            mlp.first.multiply(&input.as_view(), &mut mlp.hidden.as_view_mut())?;
            mlp.first.add_bias(&mut mlp.hidden.as_view_mut())?;
            mlp.relu()?;
            mlp.second.multiply(&mlp.hidden.as_view(), &mut output.as_view_mut())?;
            comm.all_reduce_in_place(&mut output, &ReduceOp::Sum).readable()?;
            mlp.second.add_bias(&mut output.as_view_mut())?;
            kernels.axpy(&stream, &mut output, &stream.clone_htod(&target(step))?, -1.0)?;
            kernels.scale(&stream, &mut output, 1.0 / SAMPLES as f32)?;
            mlp_backward(&comm, &mut mlp, &input.as_view(), &output.as_view(), &mut back.as_view_mut())?;
            mlp.first.descend(LEARNING_RATE)?;
            mlp.second.descend(LEARNING_RATE)?;
            steps.push(Step {
                first: mlp.first.to_host()?,
                second: mlp.second.to_host()?,
                input_gradient: stream.clone_dtoh(&back)?,
            });
        }
        Ok(steps)
    })
}

/// The same training on the host.
pub(super) struct Serial {
    steps: Vec<SerialStep>,
    /// The factor by which a small difference grows by the end.
    growth: f64,
}

/// The results of a step, each with a bound on the error caused by the GPUs' rounding in this step.
struct SerialStep {
    layers: [SerialLayer; 2],
    input_gradient: Matrix,
}

#[derive(Clone)]
struct SerialLayer {
    weights: Matrix,
    bias: Matrix,
}

impl SerialLayer {
    fn new(layer: &Weights, moved_by: f64) -> Self {
        let Weights { outputs, weights, bias, .. } = layer;
        let matrix = |values| Matrix::new(*outputs, values).moved(moved_by);
        Self { weights: matrix(weights), bias: matrix(bias) }
    }

    fn forget_rounding(&mut self) {
        let all = self.weights.values.iter_mut().chain(&mut self.bias.values);
        all.for_each(|value| value.off = 0.0);
    }

    fn forward(&self, input: &Matrix) -> Matrix {
        input.times(&self.weights).plus_each(&self.bias)
    }

    /// Takes a step of gradient descent, and returns the gradient of the input.
    fn backward(&mut self, input: &Matrix, output_gradient: &Matrix) -> Matrix {
        let input_gradient = output_gradient.times(&self.weights.transposed());
        let ones = Matrix::new(SAMPLES, &[1.0; SAMPLES]);
        self.weights.descend(&input.transposed().times(output_gradient));
        self.bias.descend(&ones.times(output_gradient));
        input_gradient
    }
}

impl Serial {
    /// Trains on the host. A step's errors grow in later steps. To measure this growth, a second run starts with all
    /// parameters shifted slightly, alternately up and down. Differences in other directions may grow more, so the
    /// bound allows for twice this growth.
    pub(super) fn run() -> Self {
        const LITTLE: f64 = 1e-6;
        let (steps, moved) = (Self::steps(0.0), Self::steps(LITTLE));
        let apart = steps.iter().zip(&moved).map(|(step, moved)| step.distance(moved)).fold(0.0, f64::max);
        Self { steps, growth: 2.0 * apart / LITTLE }
    }

    fn steps(moved_by: f64) -> Vec<SerialStep> {
        let (first, second) = layers();
        let [mut first, mut second] = [first, second].map(|layer| SerialLayer::new(&layer, moved_by));
        let mut steps = Vec::new();
        for step in 0..STEPS {
            first.forget_rounding();
            second.forget_rounding();
            let input = Matrix::new(ODD.inputs, &input(step));
            let before_relu = first.forward(&input);
            let hidden = before_relu.map(|value| Bounded { value: value.value.max(0.0), off: value.off });
            let target = Matrix::new(ODD.outputs, &target(step));
            let output_gradient = second.forward(&hidden).zip(&target, |output, target| {
                let (value, size) = (output.value - target.value, output.size() + target.size());
                // The difference, 1 / samples, and the product round once each.
                Bounded { value, off: output.off + 3.0 * UNIT_ROUNDOFF * size }.over(SAMPLES as f64)
            });
            let hidden_gradient = second.backward(&hidden, &output_gradient);
            let hidden_gradient = hidden_gradient.zip(&before_relu, Bounded::bend);
            let input_gradient = first.backward(&input, &hidden_gradient);
            steps.push(SerialStep { layers: [first.clone(), second.clone()], input_gradient });
        }
        steps
    }

    /// Compares the results after a step on the rank that has these hidden units.
    pub(super) fn compare(&self, step: usize, units: Range<usize>, got: &Step) -> anyhow::Result<()> {
        let SerialStep { layers: [first, second], input_gradient } = &self.steps[step];
        let earlier = self.growth * self.steps[..step].iter().map(SerialStep::rounding).sum::<f64>();
        let columns = |matrix: &Matrix| matrix.transposed().rows(units.clone()).transposed();
        for (name, expected, got) in [
            ("the input's gradient", input_gradient.clone(), &got.input_gradient),
            ("the second layer's weights", second.weights.rows(units.clone()), &got.second.weights),
            ("the second layer's bias", second.bias.clone(), &got.second.bias),
            ("the first layer's weights", columns(&first.weights), &got.first.weights),
            ("the first layer's bias", columns(&first.bias), &got.first.bias),
        ] {
            expected.compare(name, earlier, got)?;
        }
        Ok(())
    }
}

impl SerialStep {
    fn matrices(&self) -> [&Matrix; 5] {
        let [first, second] = &self.layers;
        [&first.weights, &first.bias, &second.weights, &second.bias, &self.input_gradient]
    }

    /// Returns the largest difference.
    fn distance(&self, other: &Self) -> f64 {
        let pairs = self.matrices().into_iter().zip(other.matrices());
        pairs.map(|(matrix, other)| matrix.distance(other)).fold(0.0, f64::max)
    }

    /// Returns the bound on a parameter's rounding error in this step.
    fn rounding(&self) -> f64 {
        let parameters = self.matrices().into_iter().take(4).flat_map(|matrix| &matrix.values);
        parameters.map(|value| value.off).fold(0.0, f64::max)
    }
}

/// A number, and a bound on the GPUs' rounding error in it. The bound is computed along with the number, from all of
/// its operands.
#[derive(Clone, Copy)]
struct Bounded {
    value: f64,
    off: f64,
}

impl Bounded {
    /// Returns the largest magnitude that the GPUs' number may have.
    fn size(self) -> f64 {
        self.value.abs() + self.off
    }

    fn over(self, divisor: f64) -> Self {
        Self { value: self.value / divisor, off: self.off / divisor }
    }

    /// Computes the backward pass of ReLU. If rounding can change the sign of the value, the slope may be 0 or 1.
    fn bend(self, before_relu: Self) -> Self {
        let value = if before_relu.value > 0.0 { self.value } else { 0.0 };
        let undecided = before_relu.value.abs() <= before_relu.off;
        let off = match (undecided, before_relu.value > 0.0) {
            (true, _) => self.size(),
            (false, true) => self.off,
            (false, false) => 0.0,
        };
        Self { value, off }
    }
}

/// The maximum number of extra additions in a sum over ranks, in any order. No check has more ranks.
const MOST_RANKS: f64 = 16.0;

/// A row-major matrix.
#[derive(Clone)]
struct Matrix {
    columns: usize,
    values: Vec<Bounded>,
}

impl Matrix {
    fn new(columns: usize, values: &[f32]) -> Self {
        let exact = |&value: &f32| Bounded { value: value.into(), off: 0.0 };
        Self { columns, values: values.iter().map(exact).collect() }
    }

    /// Shifts all values, alternately up and down.
    fn moved(mut self, by: f64) -> Self {
        for (index, value) in self.values.iter_mut().enumerate() {
            value.value += if index % 2 == 0 { by } else { -by };
        }
        self
    }

    fn distance(&self, other: &Self) -> f64 {
        let pairs = self.values.iter().zip(&other.values);
        pairs.map(|(a, b)| (a.value - b.value).abs()).fold(0.0, f64::max)
    }

    fn rows(&self, rows: Range<usize>) -> Self {
        let values = self.values[rows.start * self.columns..rows.end * self.columns].to_vec();
        Self { columns: self.columns, values }
    }

    fn transposed(&self) -> Self {
        let rows = self.values.len() / self.columns;
        let at = |index: usize| self.values[index % rows * self.columns + index / rows];
        Self { columns: rows, values: (0..self.values.len()).map(at).collect() }
    }

    /// Computes a matrix product. A sum of n products rounds n times, and once more for each rank that it is spread
    /// over. Each rounding is at most [`UNIT_ROUNDOFF`] times the sum of the products' magnitudes.
    fn times(&self, other: &Self) -> Self {
        let other = other.transposed();
        let dot = |row: &[Bounded], column: &[Bounded]| {
            let mut sum = Bounded { value: 0.0, off: 0.0 };
            let mut size = 0.0;
            for (a, b) in row.iter().zip(column) {
                sum.value += a.value * b.value;
                sum.off += a.value.abs() * b.off + a.off * b.size();
                size += a.size() * b.size();
            }
            sum.off += (row.len() as f64 + MOST_RANKS) * UNIT_ROUNDOFF * size;
            sum
        };
        let rows = self.values.chunks_exact(self.columns);
        let columns = || other.values.chunks_exact(other.columns);
        let values = rows.flat_map(|row| columns().map(|column| dot(row, column)).collect::<Vec<_>>());
        Self { columns: other.values.len() / other.columns, values: values.collect() }
    }

    /// Adds a bias to each row.
    fn plus_each(&self, bias: &Self) -> Self {
        let add = |(a, b): (&Bounded, &Bounded)| {
            let off = a.off + b.off + UNIT_ROUNDOFF * (a.size() + b.size());
            Bounded { value: a.value + b.value, off }
        };
        let values = self.values.iter().zip(bias.values.iter().cycle()).map(add).collect();
        Self { columns: self.columns, values }
    }

    /// Takes a step. The product and the difference round once each.
    fn descend(&mut self, gradient: &Self) {
        let rate = f64::from(LEARNING_RATE);
        for (value, slope) in self.values.iter_mut().zip(&gradient.values) {
            value.off += rate * slope.off + 2.0 * UNIT_ROUNDOFF * (value.size() + rate * slope.size());
            value.value -= rate * slope.value;
        }
    }

    fn map(&self, change: impl Fn(Bounded) -> Bounded) -> Self {
        Self { columns: self.columns, values: self.values.iter().copied().map(change).collect() }
    }

    fn zip(&self, other: &Self, change: impl Fn(Bounded, Bounded) -> Bounded) -> Self {
        let values = self.values.iter().zip(&other.values).map(|(&a, &b)| change(a, b));
        Self { columns: self.columns, values: values.collect() }
    }

    /// Compares the values. `earlier` is the bound on the error from earlier steps.
    fn compare(&self, name: &str, earlier: f64, got: &[f32]) -> anyhow::Result<()> {
        ensure!(
            got.len() == self.values.len(),
            "{name}: {} values, expected {}",
            got.len(),
            self.values.len()
        );
        for (index, (got, Bounded { value, off })) in got.iter().zip(&self.values).enumerate() {
            let (distance, bound) = ((f64::from(*got) - value).abs(), off + earlier);
            ensure!(
                abs_diff_eq!(f64::from(*got), *value, epsilon = bound),
                "{name}: {got} at index {index}, expected {value:.7}\noff by {distance:.1e}; rounding explains at most \
                 {bound:.1e}\nthe checks for a single pass report which gradient is wrong, and why"
            );
        }
        Ok(())
    }
}
