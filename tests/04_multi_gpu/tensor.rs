//! Two layers on the host, whole and in parts, as the reference for both tensor exercises.
//!
//! The inputs and weights are integers up to 9, and the layers are small. Every intermediate value, and every sum in
//! any order, is below 2²⁴, where an `f32` is exact. So comparisons are exact for every world size.

use std::ops::Range;

use cudarc::nccl::Comm;
use init::rendezvous::rendezvous;
use lab::{Guarded, Weights, irregular};

pub(crate) const SAMPLES: usize = 7;

/// The sizes of the two layers: the inputs, the hidden units, and the outputs.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) inputs: usize,
    pub(crate) hidden: usize,
    pub(crate) outputs: usize,
}

/// Sizes that are divisible by few world sizes.
pub(crate) const ODD: Sizes = Sizes { inputs: 23, hidden: 29, outputs: 19 };

/// One rank in a check.
pub(crate) struct Case<'a> {
    pub(crate) comm: &'a Comm,
    pub(crate) sizes: Sizes,
}

impl Case<'_> {
    /// Returns this rank's part of `0..len`.
    pub(crate) fn part(&self, len: usize) -> Range<usize> {
        part(len, self.comm.rank(), self.comm.world_size())
    }

    /// Returns a buffer of stale values.
    pub(crate) fn stale(&self, len: usize) -> anyhow::Result<Guarded<f32>> {
        Guarded::new(&self.comm.stream(), &irregular::integers(500 + self.comm.rank(), len))
    }
}

/// Returns `rank`'s part of `0..len`. The parts are equal if the length divides evenly. Otherwise, the last rank's part
/// is longer, often much longer.
pub(crate) fn part(len: usize, rank: usize, world_size: usize) -> Range<usize> {
    let each = if len.is_multiple_of(world_size) { len / world_size } else { len / (world_size + 1) };
    rank * each..if rank + 1 == world_size { len } else { (rank + 1) * each }
}

/// Runs `check` on every rank of a world, first with sizes that the world size divides, and then with other sizes.
pub(crate) fn on_all_ranks(
    world_size: usize,
    check: impl Fn(&Case<'_>) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let even = |size: usize| size.next_multiple_of(world_size);
    let Sizes { inputs, hidden, outputs } = ODD;
    let even = Sizes { inputs: even(inputs), hidden: even(hidden), outputs: even(outputs) };
    for sizes in [even, ODD] {
        rendezvous(&lab::streams(world_size)?, |comm| check(&Case { comm: &comm, sizes }))?;
    }
    Ok(())
}

/// Returns a layer of integers that differ for each seed.
pub(crate) fn layer(seed: usize, inputs: usize, outputs: usize) -> Weights {
    let mut values = irregular::small_integers(1000 + seed, (inputs + 1) * outputs);
    let bias = values.split_off(inputs * outputs);
    Weights { inputs, outputs, weights: values, bias }
}

/// Computes `input · weights`, for rows of `inputs` values.
pub(crate) fn product(layer: &Weights, input: &[f32]) -> Vec<f32> {
    let Weights { inputs, outputs, weights, .. } = layer;
    let of_row = |row: &[f32]| -> Vec<f32> {
        let sum = |column: usize| (0..*inputs).map(|i| row[i] * weights[i * outputs + column]).sum();
        (0..*outputs).map(sum).collect()
    };
    input.chunks_exact(*inputs).flat_map(of_row).collect()
}

/// Adds the layer's bias to each row, `times` times.
pub(crate) fn biased(layer: &Weights, values: &[f32], times: usize) -> Vec<f32> {
    let bias = layer.bias.iter().cycle();
    values.iter().zip(bias).map(|(value, bias)| value + times as f32 * bias).collect()
}

/// Computes `input · weights + bias`.
pub(crate) fn linear(layer: &Weights, input: &[f32]) -> Vec<f32> {
    biased(layer, &product(layer, input), 1)
}

pub(crate) fn relu(values: &[f32]) -> Vec<f32> {
    values.iter().map(|value| value.max(0.0)).collect()
}

/// Returns a layer with only these columns.
pub(crate) fn with_columns(layer: &Weights, columns: Range<usize>) -> Weights {
    let of = |matrix| columns_of(matrix, layer.outputs, columns.clone());
    let (weights, bias) = (of(&layer.weights), of(&layer.bias));
    Weights { outputs: columns.len(), weights, bias, ..layer.clone() }
}

/// Returns a layer with only these rows.
pub(crate) fn with_rows(layer: &Weights, rows: Range<usize>) -> Weights {
    let weights = kept(&layer.weights, layer.outputs, |row, _| rows.contains(&row));
    Weights { inputs: rows.len(), weights, ..layer.clone() }
}

/// Returns these columns of a row-major matrix with `width` columns.
pub(crate) fn columns_of(matrix: &[f32], width: usize, columns: Range<usize>) -> Vec<f32> {
    kept(matrix, width, |_, column| columns.contains(&column))
}

/// Returns the elements of a row-major matrix with `width` columns for which `keeps(row, column)` holds.
fn kept(matrix: &[f32], width: usize, keeps: impl Fn(usize, usize) -> bool) -> Vec<f32> {
    let elements = matrix.iter().enumerate().filter(|(at, _)| keeps(at / width, at % width));
    elements.map(|(_, value)| *value).collect()
}

/// Returns the gradient of the layer's weights: `inputᵀ · output_gradient`.
pub(crate) fn weights_gradient(layer: &Weights, input: &[f32], output_gradient: &[f32]) -> Vec<f32> {
    let samples = || input.chunks_exact(layer.inputs).zip(output_gradient.chunks_exact(layer.outputs));
    let of = |i: usize, o: usize| samples().map(|(input, slopes)| input[i] * slopes[o]).sum();
    (0..layer.inputs * layer.outputs).map(|at| of(at / layer.outputs, at % layer.outputs)).collect()
}

/// Returns the gradient of the layer's bias: the sum over the samples.
pub(crate) fn bias_gradient(layer: &Weights, output_gradient: &[f32]) -> Vec<f32> {
    added(output_gradient.chunks_exact(layer.outputs).map(<[f32]>::to_vec))
}

/// Returns the gradient of the layer's input: `output_gradient · weightsᵀ`.
pub(crate) fn input_gradient(layer: &Weights, output_gradient: &[f32]) -> Vec<f32> {
    let rows = || layer.weights.chunks_exact(layer.outputs);
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let of_sample = |slopes: &[f32]| rows().map(|row| dot(row, slopes)).collect::<Vec<_>>();
    output_gradient.chunks_exact(layer.outputs).flat_map(of_sample).collect()
}

/// Returns the sum of all parts.
pub(crate) fn added(parts: impl IntoIterator<Item = Vec<f32>>) -> Vec<f32> {
    let sum = |mut sum: Vec<f32>, part: Vec<f32>| {
        sum.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
        sum
    };
    parts.into_iter().reduce(sum).unwrap_or_default()
}
