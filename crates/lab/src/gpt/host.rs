//! The same GPT on the host, in double precision, as a reference for the GPUs' results.

use test_data::vector::add_scaled;

use super::layout::{GptShape, Kind};
use super::text::Batch;

/// A small number that keeps the norm of a constant row finite, as in `transformer.cu`.
const EPSILON: f64 = 1e-5;
/// 2 · √(2 / π), as in `transformer.cu`.
const GELU: f64 = 1.595_769_121_6;

/// A GPT in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct HostGpt {
    shape: GptShape,
    parameters: Vec<f64>,
}

/// What the backward pass of a layer needs from its forward pass. Each has a row per token.
struct Pass {
    normed: Vec<f64>,
    /// One divided by the standard deviation of each row.
    inverse: Vec<f64>,
    scaled: Vec<f64>,
    wide: Vec<f64>,
    /// The weights of an attention, head by head.
    weights: Vec<f64>,
    inner: Vec<f64>,
}

impl HostGpt {
    /// Creates a GPT with these parameters.
    pub fn new(shape: GptShape, parameters: &[f32]) -> Self {
        Self { shape, parameters: parameters.iter().map(|&value| f64::from(value)).collect() }
    }

    /// Returns all parameters, in the order of [`GptShape`].
    pub fn parameters(&self) -> &[f64] {
        &self.parameters
    }

    /// Returns a mutable slice of all parameters.
    pub fn parameters_mut(&mut self) -> &mut [f64] {
        &mut self.parameters
    }

    /// Returns the mean loss over all tokens of the batch (cross-entropy, in nats), and its gradient.
    ///
    /// # Panics
    /// Panics if the batch has another context than the shape, or a token that is not in the vocabulary.
    pub fn loss_and_gradient(&self, batch: &Batch) -> (f64, Vec<f64>) {
        let Self { shape, .. } = self;
        let (tokens, width) = (batch.tokens.len(), shape.width);
        let (last, mut gradient) = (shape.layers() - 1, vec![0.0; self.parameters.len()]);
        let mut residual = self.embed(batch);
        let mut passes = Vec::new();
        for layer in 1..=last {
            let pass = self.pass(layer, &residual);
            if layer < last {
                let [_, _, second] = self.matrices(layer);
                let branch = product(&pass.inner, second, shape.inner(layer), width);
                add_scaled(&mut residual, &branch, 1.0);
            }
            passes.push(pass);
        }

        let mut of_residual = vec![0.0; tokens * width];
        let mut loss = 0.0;
        for layer in (1..=last).rev() {
            let pass = &passes[layer - 1];
            let of_wide = if layer == last {
                let (value, of_logits) = cross_entropy(&pass.wide, &batch.targets);
                loss = value;
                of_logits
            } else {
                let [_, _, second] = self.matrices(layer);
                let inner = shape.inner(layer);
                let of_inner = product(&of_residual, &transposed(second, inner), width, inner);
                let [_, _, of_second] = parts_mut(shape, layer, &mut gradient);
                of_second.copy_from_slice(&product(
                    &transposed(&pass.inner, tokens),
                    &of_residual,
                    tokens,
                    width,
                ));
                self.inner_gradient(layer, pass, &of_inner)
            };
            let [gain, first, _] = self.matrices(layer);
            let wide = shape.wide(layer);
            let of_scaled = product(&of_wide, &transposed(first, width), wide, width);
            let [of_gain, of_first, _] = parts_mut(shape, layer, &mut gradient);
            of_first.copy_from_slice(&product(&transposed(&pass.scaled, tokens), &of_wide, tokens, wide));
            norm_gradient(pass, gain, &of_scaled, of_gain, &mut of_residual);
        }
        let [of_tokens, of_positions, _] = parts_mut(shape, 0, &mut gradient);
        for (index, row) in of_residual.chunks_exact(width).enumerate() {
            let (token, position) = (batch.tokens[index] as usize, index % shape.context);
            add_scaled(&mut of_tokens[token * width..][..width], row, 1.0);
            add_scaled(&mut of_positions[position * width..][..width], row, 1.0);
        }
        (loss, gradient)
    }

    fn embed(&self, batch: &Batch) -> Vec<f64> {
        assert_eq!(batch.context, self.shape.context, "the batch has another context");
        let width = self.shape.width;
        let [of_tokens, of_positions, _] = self.matrices(0);
        let rows = batch.tokens.iter().enumerate().flat_map(|(index, &token)| {
            let token = &of_tokens[token as usize * width..][..width];
            let position = &of_positions[index % batch.context * width..][..width];
            token.iter().zip(position).map(|(token, position)| token + position)
        });
        rows.collect()
    }

    /// Computes a layer after the embedding, up to what its second matrix takes.
    fn pass(&self, layer: usize, residual: &[f64]) -> Pass {
        let shape = &self.shape;
        let [gain, first, _] = self.matrices(layer);
        let (mut normed, mut inverse, mut scaled) = (Vec::new(), Vec::new(), Vec::new());
        for row in residual.chunks_exact(shape.width) {
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            let variance = row.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / row.len() as f64;
            let scale = 1.0 / (variance + EPSILON).sqrt();
            inverse.push(scale);
            normed.extend(row.iter().map(|value| (value - mean) * scale));
            scaled.extend(row.iter().zip(gain).map(|(value, gain)| (value - mean) * scale * gain));
        }
        let wide = product(&scaled, first, shape.width, shape.wide(layer));
        let (inner, weights) = match shape.kind(layer) {
            Kind::Attention => self.attend(&wide),
            Kind::Mlp => (wide.iter().map(|&value| value * gate(value)).collect(), Vec::new()),
            Kind::Embedding | Kind::Output => (Vec::new(), Vec::new()),
        };
        Pass { normed, inverse, scaled, wide, weights, inner }
    }

    /// Returns the attention's result and its weights.
    fn attend(&self, qkv: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let GptShape { context, head_width, .. } = self.shape;
        let (mut out, mut weights) = (Vec::new(), Vec::new());
        for index in 0..qkv.len() / (3 * head_width) {
            let position = self.position(index);
            let query = &row(qkv, index, head_width)[..head_width];
            let mut own: Vec<f64> = (0..=position)
                .map(|other| {
                    let key = &row(qkv, self.same_head(index, other), head_width)[head_width..2 * head_width];
                    dot(query, key) / (head_width as f64).sqrt()
                })
                .collect();
            softmax(&mut own);
            let mut sum = vec![0.0; head_width];
            for (other, weight) in own.iter().enumerate() {
                let value = &row(qkv, self.same_head(index, other), head_width)[2 * head_width..];
                add_scaled(&mut sum, value, *weight);
            }
            own.resize(context, 0.0);
            out.extend(sum);
            weights.extend(own);
        }
        (out, weights)
    }

    /// Returns the gradient of `pass.wide` from that of `pass.inner`.
    fn inner_gradient(&self, layer: usize, pass: &Pass, of_inner: &[f64]) -> Vec<f64> {
        if self.shape.kind(layer) == Kind::Mlp {
            let slopes = pass.wide.iter().map(|&x| {
                let gate = gate(x);
                gate + x * gate * (1.0 - gate) * GELU * (1.0 + 3.0 * 0.044715 * x * x)
            });
            return slopes.zip(of_inner).map(|(slope, of_value)| slope * of_value).collect();
        }
        let GptShape { context, head_width: width, .. } = self.shape;
        let (qkv, mut of_qkv) = (&pass.wide, vec![0.0; pass.wide.len()]);
        for (index, of_out) in of_inner.chunks_exact(width).enumerate() {
            let weights = &pass.weights[index * context..][..=self.position(index)];
            let others: Vec<usize> = (0..weights.len()).map(|other| self.same_head(index, other)).collect();
            let slopes: Vec<f64> =
                others.iter().map(|&other| dot(of_out, &row(qkv, other, width)[2 * width..])).collect();
            let mean = dot(&slopes, weights);
            for ((&other, slope), weight) in others.iter().zip(slopes).zip(weights) {
                let of_score = weight * (slope - mean) / (width as f64).sqrt();
                let (own, key) = (row(qkv, index, width), &row(qkv, other, width)[width..2 * width]);
                add_scaled(&mut of_qkv[index * 3 * width..][..width], key, of_score);
                add_scaled(&mut of_qkv[other * 3 * width + width..][..width], &own[..width], of_score);
                add_scaled(&mut of_qkv[other * 3 * width + 2 * width..][..width], of_out, *weight);
            }
        }
        of_qkv
    }

    /// Returns the position in its sequence of a head's token.
    fn position(&self, index: usize) -> usize {
        index / self.shape.heads % self.shape.context
    }

    /// Returns the index of the same head of another token of the sequence.
    fn same_head(&self, index: usize, other: usize) -> usize {
        let GptShape { heads, context, .. } = self.shape;
        let token = index / heads;
        (token - token % context + other) * heads + index % heads
    }

    /// Returns the matrices of a layer.
    fn matrices(&self, layer: usize) -> [&[f64]; 3] {
        let [one, other, _] = self.shape.lens(layer);
        let (first, rest) = self.parameters[self.shape.range(layer)].split_at(one);
        let (second, third) = rest.split_at(other);
        [first, second, third]
    }
}

/// Returns the gradients of a layer's matrices.
fn parts_mut<'a>(shape: &GptShape, layer: usize, gradient: &'a mut [f64]) -> [&'a mut [f64]; 3] {
    let [one, other, _] = shape.lens(layer);
    let (first, rest) = gradient[shape.range(layer)].split_at_mut(one);
    let (second, third) = rest.split_at_mut(other);
    [first, second, third]
}

/// Returns the query, the key, and the value of a head.
fn row(qkv: &[f64], index: usize, width: usize) -> &[f64] {
    &qkv[index * 3 * width..][..3 * width]
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// Returns `a · b`, where `a` has `inner` columns, and `b` has `inner` rows and `columns` columns.
fn product(a: &[f64], b: &[f64], inner: usize, columns: usize) -> Vec<f64> {
    let mut result = vec![0.0; a.len() / inner * columns];
    for (out, row) in result.chunks_exact_mut(columns).zip(a.chunks_exact(inner)) {
        for (factor, values) in row.iter().zip(b.chunks_exact(columns)) {
            add_scaled(out, values, *factor);
        }
    }
    result
}

/// Returns the transpose of a matrix with this number of rows.
fn transposed(matrix: &[f64], rows: usize) -> Vec<f64> {
    let columns = matrix.len() / rows;
    (0..matrix.len()).map(|index| matrix[index % rows * columns + index / rows]).collect()
}

fn softmax(scores: &mut [f64]) {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
    let sum: f64 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
}

fn gate(x: f64) -> f64 {
    1.0 / (1.0 + (-GELU * (x + 0.044715 * x * x * x)).exp())
}

/// Returns the mean loss, and the gradient of the logits.
fn cross_entropy(logits: &[f64], targets: &[u32]) -> (f64, Vec<f64>) {
    let (mut loss, mut gradient, count) = (0.0, logits.to_vec(), targets.len() as f64);
    let vocabulary = logits.len() / targets.len();
    for (row, &target) in gradient.chunks_exact_mut(vocabulary).zip(targets) {
        softmax(row);
        loss -= row[target as usize].ln() / count;
        row[target as usize] -= 1.0;
        row.iter_mut().for_each(|value| *value /= count);
    }
    (loss, gradient)
}

/// Computes the gradient of a norm's gain, and adds that of its input.
fn norm_gradient(pass: &Pass, gain: &[f64], of_scaled: &[f64], of_gain: &mut [f64], of_residual: &mut [f64]) {
    let width = gain.len();
    let rows = pass.normed.chunks_exact(width).zip(of_scaled.chunks_exact(width));
    for (((normed, of_row), inverse), of_input) in
        rows.zip(&pass.inverse).zip(of_residual.chunks_exact_mut(width))
    {
        let slopes: Vec<f64> = of_row.iter().zip(gain).map(|(slope, gain)| slope * gain).collect();
        let mean = slopes.iter().sum::<f64>() / width as f64;
        let projection = dot(&slopes, normed) / width as f64;
        for column in 0..width {
            of_gain[column] += of_row[column] * normed[column];
            of_input[column] += inverse * (slopes[column] - mean - normed[column] * projection);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::Text;
    use super::*;

    #[test]
    fn the_gradient_matches_finite_differences() {
        let text = Text::sonnets();
        let vocabulary = text.alphabet.len();
        let shape =
            GptShape { vocabulary, context: 5, width: 6, heads: 2, head_width: 3, hidden: 8, blocks: 2 };
        let mut model = HostGpt::new(shape, &shape.initial(3));
        let batch = text.batch(1, 3, shape.context);
        let (loss, gradient) = model.loss_and_gradient(&batch);
        assert!(
            (loss - (vocabulary as f64).ln()).abs() < 1.5,
            "the loss starts near that of a guess: {loss}"
        );
        let step = 1e-5;
        for (index, expected) in gradient.iter().enumerate() {
            let mut loss_at = |offset: f64| {
                let parameter = model.parameters[index];
                model.parameters[index] = parameter + offset;
                let (loss, _) = model.loss_and_gradient(&batch);
                model.parameters[index] = parameter;
                loss
            };
            // The error of a central difference is step² / 6 times the third derivative, about 1e-10 here.
            let slope = (loss_at(step) - loss_at(-step)) / (2.0 * step);
            assert!((slope - expected).abs() < 1e-8, "parameter {index}: {slope}, but {expected}");
        }
    }

    #[test]
    fn it_learns_the_sonnets() {
        let text = Text::sonnets();
        let vocabulary = text.alphabet.len();
        let shape =
            GptShape { vocabulary, context: 8, width: 16, heads: 2, head_width: 8, hidden: 32, blocks: 1 };
        let mut model = HostGpt::new(shape, &shape.initial(1));
        let held_out = text.batch(0, 16, shape.context);
        let before = model.loss_and_gradient(&held_out).0;
        for step in 1..60 {
            let (_, gradient) = model.loss_and_gradient(&text.batch(step, 16, shape.context));
            add_scaled(&mut model.parameters, &gradient, -0.5);
        }
        let after = model.loss_and_gradient(&held_out).0;
        assert!(after < before - 1.0, "the loss went from {before} to {after}");
    }
}
