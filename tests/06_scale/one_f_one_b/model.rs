//! The model that the pipeline trains, its data, and its gradients as one GPU computes them.
//!
//! Each stage is a linear layer. All values are integers; the reference asserts that no sum, in any order, can exceed
//! 2²⁴, so every comparison is exact.

use lab::{Weights, irregular};

/// The number of samples of a micro-batch. The last micro-batch has one less, like the remainder of a batch.
pub(super) const SAMPLES: usize = 3;

pub(super) fn samples(micro_batch: usize, micro_batches: usize) -> usize {
    if micro_batch + 1 == micro_batches { SAMPLES - 1 } else { SAMPLES }
}

/// Returns the number of inputs of a stage, and of outputs of the stage before it.
pub(super) fn width(stage: usize) -> usize {
    3 + 2 * stage % 5
}

/// Returns a stage's layer. Most weights are 0, so that the numbers stay small.
pub(super) fn layer(stage: usize) -> Weights {
    let (inputs, outputs) = (width(stage), width(stage + 1));
    let sparse = |values: Vec<f32>| -> Vec<f32> {
        values.into_iter().map(|value| if value.abs() > 5.0 { value.signum() } else { 0.0 }).collect()
    };
    Weights {
        inputs,
        outputs,
        weights: sparse(irregular::small_integers(200 + stage, inputs * outputs)),
        bias: irregular::small_integers(300 + stage, outputs),
    }
}

/// Returns the data of a micro-batch.
pub(super) fn data(micro_batch: usize, micro_batches: usize) -> Vec<f32> {
    irregular::small_integers(micro_batch, samples(micro_batch, micro_batches) * width(0))
}

/// Returns what the last stage should compute. The loss is half the sum of the squared differences.
pub(super) fn target(micro_batch: usize, micro_batches: usize, stages: usize) -> Vec<f32> {
    irregular::small_integers(100 + micro_batch, samples(micro_batch, micro_batches) * width(stages))
}

/// The gradients of a layer.
pub(super) struct Gradients {
    pub(super) weights: Vec<f32>,
    pub(super) bias: Vec<f32>,
}

/// Computes the gradients of all stages on the host, over all micro-batches.
pub(super) fn serial(stages: usize, micro_batches: usize) -> Vec<Gradients> {
    let layers: Vec<Weights> = (0..stages).map(layer).collect();
    let mut weights: Vec<Vec<f64>> = layers.iter().map(|layer| vec![0.0; layer.weights.len()]).collect();
    let mut biases: Vec<Vec<f64>> = layers.iter().map(|layer| vec![0.0; layer.bias.len()]).collect();
    // No sum can have a larger magnitude, in any order.
    let mut reach = vec![0.0_f64; stages];
    for at in 0..micro_batches {
        let mut inputs = vec![widened(&data(at, micro_batches))];
        for (stage, layer) in layers.iter().enumerate() {
            let mut output = product(&inputs[stage], &widened(&layer.weights), layer.inputs);
            output.chunks_mut(layer.outputs).for_each(|row| add(row, &widened(&layer.bias)));
            inputs.push(output);
        }
        let mut gradient = inputs.pop().unwrap_or_default();
        add(&mut gradient, &widened(&negative(target(at, micro_batches, stages))));
        for (stage, layer) in layers.iter().enumerate().rev() {
            let (rows, input) = (samples(at, micro_batches), transposed(&inputs[stage], layer.inputs));
            add(&mut weights[stage], &product(&input, &gradient, rows));
            gradient.chunks(layer.outputs).for_each(|row| add(&mut biases[stage], row));
            reach[stage] += product(&magnitudes(&input), &magnitudes(&gradient), rows).iter().sum::<f64>();
            gradient =
                product(&gradient, &transposed(&widened(&layer.weights), layer.outputs), layer.outputs);
        }
    }
    assert!(reach.iter().all(|&reach| reach < f64::from(1 << 24)), "the reference is not exact: {reach:?}");
    let rounded = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect();
    let both = weights.into_iter().zip(biases);
    both.map(|(weights, bias)| Gradients { weights: rounded(weights), bias: rounded(bias) }).collect()
}

pub(super) fn negative(values: Vec<f32>) -> Vec<f32> {
    values.into_iter().map(|value| -value).collect()
}

fn widened(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

fn magnitudes(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| value.abs()).collect()
}

fn add(to: &mut [f64], values: &[f64]) {
    to.iter_mut().zip(values).for_each(|(to, value)| *to += value);
}

/// Transposes a row-major matrix.
fn transposed(matrix: &[f64], columns: usize) -> Vec<f64> {
    (0..columns).flat_map(|column| matrix.iter().skip(column).step_by(columns).copied()).collect()
}

/// Multiplies row-major matrices. The first one has `inner` columns, and the second one `inner` rows.
fn product(one: &[f64], other: &[f64], inner: usize) -> Vec<f64> {
    let columns = transposed(other, other.len() / inner);
    let dot = |row: &[f64], column: &[f64]| -> f64 { row.iter().zip(column).map(|(a, b)| a * b).sum() };
    one.chunks(inner).flat_map(|row| columns.chunks(inner).map(move |column| dot(row, column))).collect()
}
