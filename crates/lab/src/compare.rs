//! Whole buffers against what they should hold, with words that help when they don't.

use std::fmt::Debug;

use anyhow::bail;
use half::{bf16, f16};

/// A number that a buffer may hold.
pub trait Element: Copy + Debug + PartialEq {
    /// Its bits. Two elements are the same when these are: a NaN is itself, and −0 isn't 0.
    fn bits(self) -> u64;

    /// Its value, for distances. 64-bit integers beyond 2⁵³ are rounded: compare those exactly.
    fn value(self) -> f64;

    /// A value that no computation gives by chance, another one at each index: what guards are made of.
    fn canary(index: usize) -> Self;
}

macro_rules! element {
    ($type:ty, $bits:expr, $value:expr, $canary:expr) => {
        impl Element for $type {
            fn bits(self) -> u64 {
                $bits(self)
            }

            fn value(self) -> f64 {
                $value(self)
            }

            fn canary(index: usize) -> Self {
                $canary(index)
            }
        }
    };
}

// A canary is an odd prime apart from its neighbours, so that a shifted or copied guard doesn't look whole.
element!(f32, |x: f32| u64::from(x.to_bits()), f64::from, |index| -1.0e30 - 7919.0e24 * index as f32);
element!(f64, |x: f64| x.to_bits(), f64::from, |index| -1.0e300 - 7919.0e290 * index as f64);
element!(i32, |x: i32| u64::from(x.cast_unsigned()), f64::from, |index| -2_000_000_000 + 7919 * index as i32);
element!(u32, |x: u32| u64::from(x), f64::from, |index| 4_000_000_000 - 7919 * index as u32);
element!(i64, |x: i64| x.cast_unsigned(), |x| x as f64, |index| -9_000_000_000_000_000_000
    + 7919 * index as i64);
element!(u64, |x: u64| x, |x| x as f64, |index| 18_000_000_000_000_000_000 - 7919 * index as u64);
element!(u8, |x: u8| u64::from(x), f64::from, |index| 171_u8.wrapping_add(37_u8.wrapping_mul(index as u8)));
// From -32768, and from -1.6e29: each 3 representable values apart.
element!(f16, |x: f16| u64::from(x.to_bits()), f64::from, |index| f16::from_bits(0xf800 + 3 * index as u16));
element!(bf16, |x: bf16| u64::from(x.to_bits()), f64::from, |index| bf16::from_bits(
    0xf000 + 7 * index as u16
));

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
    /// `got` differs: rank, number of wrong elements, first index, expected, got and the likely cause.
    pub fn exactly(&self, got: &[T]) -> anyhow::Result<()> {
        self.check(got, |expected, got| expected.bits() == got.bits())
    }

    /// Compares every element, allowing a distance of `bound`. Say in the check where the bound comes from.
    ///
    /// # Errors
    /// As [`Self::exactly`]; a NaN is never within a bound.
    pub fn within(&self, bound: f64, got: &[T]) -> anyhow::Result<()> {
        self.check(got, |expected, got| {
            expected.bits() == got.bits() || (expected.value() - got.value()).abs() <= bound
        })
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
        bail!(text)
    }
}

/// Two values as text; with their bits, where the text alone shows no difference.
pub(crate) fn show<T: Element>(expected: T, got: T) -> (String, String) {
    let texts = (format!("{expected:?}"), format!("{got:?}"));
    if texts.0 == texts.1 {
        return (format!("{} (bits {:#x})", texts.0, expected.bits()), format!("bits {:#x}", got.bits()));
    }
    texts
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
             likely cause: these are rank 2's own values"
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

    #[test]
    fn canaries_differ_from_their_neighbours() {
        assert!((0..200).all(|i| f32::canary(i) != f32::canary(i + 1) && u8::canary(i) != u8::canary(i + 1)));
        let halves = |i| (f16::canary(i).value(), bf16::canary(i).value());
        assert!((0..200).all(|i| halves(i).0 > halves(i + 1).0 && halves(i).1 > halves(i + 1).1));
    }
}
