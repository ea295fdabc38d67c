//! The positions of the parameters in their flat buffer, and their initial values.

use std::ops::Range;

use crate::digits::{CLASSES, PIXELS};
use crate::random::SplitMix64;

/// The order of the parameters, and of their gradients, in a flat buffer: `w1 | b1 | w2 | b2`.
///
/// `w1` is [`PIXELS`] × hidden, `w2` is hidden × [`CLASSES`], both row-major; a layer computes `x · w + b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The number of hidden units.
    pub hidden: usize,
}

impl Layout {
    /// Returns the range of the first layer's weights.
    pub fn w1(self) -> Range<usize> {
        0..PIXELS * self.hidden
    }

    /// Returns the range of the first layer's biases, one per hidden unit.
    pub fn b1(self) -> Range<usize> {
        let start = self.w1().end;
        start..start + self.hidden
    }

    /// Returns the range of the second layer's weights.
    pub fn w2(self) -> Range<usize> {
        let start = self.b1().end;
        start..start + self.hidden * CLASSES
    }

    /// Returns the range of the second layer's biases, one per class.
    pub fn b2(self) -> Range<usize> {
        let start = self.w2().end;
        start..start + CLASSES
    }

    /// Returns the number of parameters.
    pub fn parameters(self) -> usize {
        self.b2().end
    }

    /// Returns the name of the part that contains `index`, for messages.
    pub fn part(self, index: usize) -> &'static str {
        let parts = [(self.w1(), "w1"), (self.b1(), "b1"), (self.w2(), "w2"), (self.b2(), "b2")];
        parts.into_iter().find(|(range, _)| range.contains(&index)).map_or("no parameter", |(_, name)| name)
    }

    /// Selects the parameters of a perceptron that has only these `units` of the hidden layer: their columns of `w1`,
    /// their biases, their rows of `w2`, and all of `b2`.
    ///
    /// # Panics
    /// Panics if there are no such units.
    pub fn of_units<T: Copy>(self, parameters: &[T], units: Range<usize>) -> Vec<T> {
        let (w1, b1) = (&parameters[self.w1()], &parameters[self.b1()]);
        let (w2, b2) = (&parameters[self.w2()], &parameters[self.b2()]);
        let columns = w1.chunks_exact(self.hidden).flat_map(|row| &row[units.clone()]);
        let rows = &w2[units.start * CLASSES..units.end * CLASSES];
        columns.chain(&b1[units.clone()]).chain(rows).chain(b2).copied().collect()
    }

    /// Returns initial parameters, which depend only on the seed. Weights are uniform in ±√(6 / inputs), which
    /// preserves the scale of activations through ReLU layers (K. He and others, "Delving Deep into Rectifiers", 2015,
    /// arXiv 1502.01852). Biases are 0.
    pub fn initial(self, seed: u64) -> Vec<f32> {
        let mut random = SplitMix64::new(seed);
        let mut parameters = vec![0.0; self.parameters()];
        for (weights, inputs) in [(self.w1(), PIXELS), (self.w2(), self.hidden)] {
            let bound = (6.0 / inputs as f32).sqrt();
            parameters[weights].fill_with(|| random.uniform(-bound, bound));
        }
        parameters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_units_selects_the_parameters_of_the_units() {
        let (whole, part) = (Layout { hidden: 5 }, Layout { hidden: 2 });
        // Each parameter's value is its index.
        let parameters: Vec<f32> = (0..whole.parameters()).map(|index| index as f32).collect();
        let own = whole.of_units(&parameters, 1..3);
        assert_eq!(own.len(), part.parameters());
        assert_eq!(own[part.w1()][..4], [1.0, 2.0, 6.0, 7.0]);
        assert_eq!(own[part.b1()], parameters[whole.b1()][1..3]);
        assert_eq!(own[part.w2()], parameters[whole.w2()][10..30]);
        assert_eq!(own[part.b2()], parameters[whole.b2()]);
    }
}
