//! Whole buffers against what they should hold, with words that help when they don't.

mod element;
mod picture;

use anyhow::bail;
use approx::AbsDiffEq;

pub(crate) use element::show;
pub use element::{Compared, Element, UNIT_ROUNDOFF};
pub(crate) use picture::is_picture;

/// What a buffer of one rank should hold, and what it may hold by mistake.
#[derive(Debug)]
pub struct Expected<'a, T> {
    rank: usize,
    buffer: &'a str,
    values: &'a [T],
    mistakes: Vec<(Vec<T>, String)>,
}

impl<'a, T: Element> Expected<'a, T> {
    /// Expects `values` in the `buffer` (its name, for the message) of `rank`.
    pub fn new(rank: usize, buffer: &'a str, values: &'a [T]) -> Self {
        Self { rank, buffer, values, mistakes: Vec::new() }
    }

    /// If the buffer holds these values instead, `cause` is likely why.
    #[must_use]
    pub fn if_instead(mut self, values: &[T], cause: impl Into<String>) -> Self {
        self.mistakes.push((values.to_vec(), cause.into()));
        self
    }

    /// Compares every bit: for data on which the computation rounds nothing.
    ///
    /// # Errors
    /// `got` differs: rank, number of wrong elements, first index, expected, got and the likely cause. A table shows the elements
    /// around the first wrong one.
    pub fn exactly(&self, got: &[T]) -> anyhow::Result<()> {
        self.check(got, |expected, got| Compared(expected) == Compared(got))
    }

    /// Compares every element, allowing a distance of `bound`. Say in the check where the bound comes from.
    ///
    /// # Errors
    /// As [`Self::exactly`]; a NaN is never within a bound.
    pub fn within(&self, bound: f64, got: &[T]) -> anyhow::Result<()> {
        self.check(got, |expected, got| Compared(expected).abs_diff_eq(&Compared(got), bound))
    }

    fn check(&self, got: &[T], same: impl Fn(T, T) -> bool) -> anyhow::Result<()> {
        let Self { rank, buffer, values, .. } = self;
        if got.len() != values.len() {
            bail!("rank {rank}: {buffer} has {} elements, expected {}", got.len(), values.len());
        }
        let all_same = |expected: &[T]| {
            expected.len() == got.len()
                && expected.iter().zip(got).all(|(&expected, &got)| same(expected, got))
        };
        let wrong: Vec<usize> = (0..got.len()).filter(|&index| !same(values[index], got[index])).collect();
        let Some(&first) = wrong.first() else { return Ok(()) };
        let (expected, found) = show(values[first], got[first]);
        let mut text = format!(
            "rank {rank}: {buffer} is wrong at {} of {} elements, first at index {first}: expected {expected}, got {found}",
            wrong.len(),
            got.len()
        );
        if let Some((_, cause)) = self.mistakes.iter().find(|(values, _)| all_same(values)) {
            text.push_str(&format!("\n  likely cause: {cause}"));
        } else if first > 0 {
            text.push_str(&format!("\n  the {first} elements before it are right"));
        }
        text.push_str(&picture::picture(values, got, &wrong));
        bail!(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_rank_index_values_and_cause() {
        let error = Expected::new(2, "the sum", &[6.0_f32, 7.0, 8.0])
            .if_instead(&[6.0, 2.0, 3.0], "these are rank 2's own values")
            .exactly(&[6.0, 2.0, 3.0])
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "rank 2: the sum is wrong at 2 of 3 elements, first at index 1: expected 7.0, got 2.0\n  \
             likely cause: these are rank 2's own values\n  \
             index    │   0    1    2\n  \
             expected │ 6.0  7.0  8.0\n  \
             got      │ 6.0  2.0  3.0\n           \
             │      ^^^  ^^^"
        );
    }

    #[test]
    fn one_bit_of_a_nan_is_a_difference_and_is_shown() {
        let (quiet, other) = (f32::from_bits(0x7fc0_0000), f32::from_bits(0x7fc0_0001));
        assert!(Expected::new(0, "it", &[quiet]).exactly(&[quiet]).is_ok());
        let error = Expected::new(0, "it", &[quiet]).exactly(&[other]).unwrap_err().to_string();
        assert!(error.contains("(bits 0x7fc00000), got bits 0x7fc00001"), "{error}");
    }

    #[test]
    fn a_bound_holds_on_both_sides_and_never_for_nan() {
        let expected = [1.0_f32];
        let of = Expected::new(0, "it", &expected);
        assert!(of.within(0.5, &[1.5]).is_ok() && of.within(0.5, &[0.5]).is_ok());
        assert!(of.within(0.5, &[1.75]).is_err());
        assert!(of.within(f64::INFINITY, &[f32::NAN]).is_err());
    }

    #[test]
    fn a_length_is_compared_before_any_value() {
        let error = Expected::new(1, "it", &[1_u8, 2]).exactly(&[1]).unwrap_err().to_string();
        assert_eq!(error, "rank 1: it has 1 elements, expected 2");
    }
}
