//! The same perceptron on the host, one sample at a time and in double precision, as a reference for the GPUs' results.

use std::ops::Range;

use test_data::vector::add_scaled;

use super::layout::Layout;
use crate::digits::{CLASSES, PIXELS, Samples};

/// A perceptron in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct HostPerceptron {
    layout: Layout,
    parameters: Vec<f64>,
}

/// The results of one pass through the network.
struct Pass {
    hidden: Vec<f64>,
    probabilities: Vec<f64>,
}

impl HostPerceptron {
    /// Creates the perceptron that `Perceptron::new` creates with these arguments.
    pub fn new(hidden: usize, seed: u64) -> Self {
        let layout = Layout { hidden };
        Self { layout, parameters: layout.initial(seed).into_iter().map(f64::from).collect() }
    }

    /// Returns the positions of the parameters.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns all parameters, in the order of [`Layout`].
    pub fn parameters(&self) -> &[f64] {
        &self.parameters
    }

    /// Returns a mutable slice of all parameters.
    pub fn parameters_mut(&mut self) -> &mut [f64] {
        &mut self.parameters
    }

    /// Returns the mean loss (cross-entropy, in nats) over the samples in `rows`, and its gradient in the order of
    /// [`Layout`]. Both are 0 if `rows` is empty.
    ///
    /// # Panics
    /// Panics if there are no such samples.
    pub fn loss_and_gradient(&self, samples: &Samples, rows: Range<usize>) -> (f64, Vec<f64>) {
        let count = rows.len().max(1) as f64;
        let mut gradient = vec![0.0; self.layout.parameters()];
        let mut loss = 0.0;
        for row in rows {
            let (image, label) = (samples.image(row), samples.labels[row] as usize);
            let pass = self.pass(image);
            loss -= pass.probabilities[label].ln();
            self.add_gradient(&mut gradient, image, label, &pass);
        }
        gradient.iter_mut().for_each(|value| *value /= count);
        (loss / count, gradient)
    }

    /// Takes a step of gradient descent: `parameters -= learning_rate · gradient`.
    pub fn descend(&mut self, gradient: &[f64], learning_rate: f64) {
        for (parameter, slope) in self.parameters.iter_mut().zip(gradient) {
            *parameter -= learning_rate * slope;
        }
    }

    /// Returns the fraction of the samples whose most probable class is their label, or 0 if there are no samples.
    pub fn accuracy(&self, samples: &Samples) -> f64 {
        let best = |values: &[f64]| (0..CLASSES).rev().max_by(|&a, &b| values[a].total_cmp(&values[b]));
        let is_right = |row: &usize| {
            best(&self.pass(samples.image(*row)).probabilities) == Some(samples.labels[*row] as usize)
        };
        (0..samples.len()).filter(is_right).count() as f64 / samples.len().max(1) as f64
    }

    fn pass(&self, image: &[f32]) -> Pass {
        let layout = self.layout;
        let pixels: Vec<f64> = image.iter().map(|&pixel| f64::from(pixel)).collect();
        let mut hidden = self.linear(&pixels, layout.w1(), layout.b1());
        hidden.iter_mut().for_each(|value| *value = value.max(0.0));
        let logits = self.linear(&hidden, layout.w2(), layout.b2());
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let exponentials: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
        let sum: f64 = exponentials.iter().sum();
        Pass { hidden, probabilities: exponentials.into_iter().map(|value| value / sum).collect() }
    }

    /// Computes `input · weights + bias`.
    fn linear(&self, input: &[f64], weights: Range<usize>, bias: Range<usize>) -> Vec<f64> {
        let mut output = self.parameters[bias].to_vec();
        let columns = output.len();
        for (value, row) in input.iter().zip(self.parameters[weights].chunks_exact(columns)) {
            add_scaled(&mut output, row, *value);
        }
        output
    }

    /// Adds the gradient of one sample's loss. For softmax with cross-entropy, ∂loss/∂logit is probability − 1 at the
    /// label and the probability elsewhere. Through a linear layer, ∂/∂w = inputᵀ · ∂/∂output and ∂/∂input = ∂/∂output
    /// · wᵀ.
    fn add_gradient(&self, gradient: &mut [f64], image: &[f32], label: usize, pass: &Pass) {
        let layout = self.layout;
        let mut of_logits = pass.probabilities.clone();
        of_logits[label] -= 1.0;
        add_scaled(&mut gradient[layout.b2()], &of_logits, 1.0);

        let mut of_hidden = vec![0.0; layout.hidden];
        let weights = self.parameters[layout.w2()].chunks_exact(CLASSES);
        let slopes = gradient[layout.w2()].chunks_exact_mut(CLASSES);
        for (((value, weights), slopes), of_value) in
            pass.hidden.iter().zip(weights).zip(slopes).zip(&mut of_hidden)
        {
            add_scaled(slopes, &of_logits, *value);
            if *value > 0.0 {
                *of_value = weights.iter().zip(&of_logits).map(|(weight, slope)| weight * slope).sum();
            }
        }
        add_scaled(&mut gradient[layout.b1()], &of_hidden, 1.0);

        for (pixel, slopes) in image.iter().zip(gradient[layout.w1()].chunks_exact_mut(layout.hidden)) {
            add_scaled(slopes, &of_hidden, f64::from(*pixel));
        }
        debug_assert_eq!(image.len(), PIXELS);
    }
}

#[cfg(test)]
mod tests {
    use approx::{abs_diff_eq, assert_abs_diff_eq};

    use super::*;
    use crate::digits::Digits;

    #[test]
    fn the_gradient_matches_finite_differences() {
        let samples = Digits::load().unwrap().train;
        let mut model = HostPerceptron::new(7, 3);
        // Biases differ from 0, so that no unit is exactly at ReLU's kink.
        let layout = model.layout();
        for (at, index) in layout.b1().chain(layout.b2()).enumerate() {
            model.parameters_mut()[index] = 0.03 * (at as f64 - 6.5);
        }
        let rows = 40..51;
        let (_, gradient) = model.loss_and_gradient(&samples, rows.clone());
        let step = 1e-5;
        for (index, expected) in gradient.iter().enumerate() {
            let mut loss_at = |offset: f64| {
                let parameter = model.parameters()[index];
                model.parameters_mut()[index] = parameter + offset;
                let (loss, _) = model.loss_and_gradient(&samples, rows.clone());
                model.parameters_mut()[index] = parameter;
                loss
            };
            // The error of a central difference is step² / 6 times the third derivative, about 1e-10 here.
            let slope = (loss_at(step) - loss_at(-step)) / (2.0 * step);
            let part = layout.part(index);
            assert!(abs_diff_eq!(slope, *expected, epsilon = 1e-8), "{part} {index}: {slope} {expected}");
        }
    }

    #[test]
    fn the_whole_is_the_weighted_mean_of_its_uneven_parts() {
        let samples = Digits::load().unwrap().train;
        let model = HostPerceptron::new(5, 1);
        let (loss, gradient) = model.loss_and_gradient(&samples, 0..7);
        let (first, second) =
            (model.loss_and_gradient(&samples, 0..5), model.loss_and_gradient(&samples, 5..7));
        let mean = |first: f64, second: f64| (5.0 * first + 2.0 * second) / 7.0;
        assert_abs_diff_eq!(mean(first.0, second.0), loss, epsilon = 1e-14);
        for (index, whole) in gradient.iter().enumerate() {
            assert_abs_diff_eq!(mean(first.1[index], second.1[index]), *whole, epsilon = 1e-14);
        }
        let (loss, gradient) = model.loss_and_gradient(&samples, 3..3);
        assert_eq!((loss, gradient.iter().any(|&value| value != 0.0)), (0.0, false));
    }

    #[test]
    fn it_learns_the_digits() {
        let digits = Digits::load().unwrap();
        let mut model = HostPerceptron::new(16, 5);
        for _ in 0..8 {
            for start in (0..digits.train.len()).step_by(16) {
                let rows = start..(start + 16).min(digits.train.len());
                let (_, gradient) = model.loss_and_gradient(&digits.train, rows);
                model.descend(&gradient, 0.3);
            }
        }
        let accuracy = model.accuracy(&digits.test);
        assert!(accuracy > 0.95, "{accuracy}");
    }
}
