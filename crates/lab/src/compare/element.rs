//! The element types of buffers, and how two elements compare.

use std::fmt::Debug;

use approx::{AbsDiffEq, RelativeEq};
use half::{bf16, f16};

/// The unit roundoff of `f32`, half the distance from 1 to the next number. It bounds the relative error of one
/// rounding.
pub const UNIT_ROUNDOFF: f64 = f32::EPSILON as f64 / 2.0;

/// A number that a buffer may hold.
pub trait Element: Copy + Debug + PartialEq {
    /// Returns the bits. Two elements are equal if their bits are: a NaN equals itself, and −0 differs from 0.
    fn bits(self) -> u64;

    /// Returns the value, for distances. 64-bit integers beyond 2⁵³ are rounded, so compare those exactly.
    fn value(self) -> f64;

    /// Returns a guard value that no computation produces by chance, and that differs from one index to the next.
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

// Neighboring canaries differ by an odd prime, so that a shifted or copied guard does not look intact.
element!(f32, |x: f32| u64::from(x.to_bits()), f64::from, |index| -1.0e30 - 7919.0e24 * index as f32);
element!(f64, |x: f64| x.to_bits(), f64::from, |index| -1.0e300 - 7919.0e290 * index as f64);
element!(i32, |x: i32| u64::from(x.cast_unsigned()), f64::from, |index| -2_000_000_000 + 7919 * index as i32);
element!(u32, |x: u32| u64::from(x), f64::from, |index| 4_000_000_000 - 7919 * index as u32);
element!(i64, |x: i64| x.cast_unsigned(), |x| x as f64, |index| -9_000_000_000_000_000_000
    + 7919 * index as i64);
element!(u64, |x: u64| x, |x| x as f64, |index| 18_000_000_000_000_000_000 - 7919 * index as u64);
element!(u8, |x: u8| u64::from(x), f64::from, |index| 171_u8.wrapping_add(37_u8.wrapping_mul(index as u8)));
// The canaries start at -32768 and at -1.6e29; neighbors are 3 and 7 representable values apart.
element!(f16, |x: f16| u64::from(x.to_bits()), f64::from, |index| f16::from_bits(0xf800 + 3 * index as u16));
element!(bf16, |x: bf16| u64::from(x.to_bits()), f64::from, |index| bf16::from_bits(
    0xf000 + 7 * index as u16
));

/// An element that `approx` compares first by its bits, and then by its value.
///
/// Elements with equal bits are equal, so an infinity or a NaN equals itself. Otherwise, a NaN is not within any
/// distance of any element. Distances are those of [`Element::value`].
#[derive(Clone, Copy, Debug)]
pub struct Compared<T>(pub T);

impl<T: Element> PartialEq for Compared<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.bits() == other.0.bits()
    }
}

impl<T: Element> AbsDiffEq for Compared<T> {
    type Epsilon = f64;

    /// Returns 0, because a bound comes from the computation, never from the type alone.
    fn default_epsilon() -> f64 {
        0.0
    }

    fn abs_diff_eq(&self, other: &Self, epsilon: f64) -> bool {
        self == other || self.0.value().abs_diff_eq(&other.0.value(), epsilon)
    }
}

impl<T: Element> RelativeEq for Compared<T> {
    /// Returns 0, like [`Compared::default_epsilon`].
    fn default_max_relative() -> f64 {
        0.0
    }

    fn relative_eq(&self, other: &Self, epsilon: f64, max_relative: f64) -> bool {
        self == other || self.0.value().relative_eq(&other.0.value(), epsilon, max_relative)
    }
}

/// Formats two values, with their bits if the values look the same.
pub(crate) fn show<T: Element>(expected: T, got: T) -> (String, String) {
    let texts = (format!("{expected:?}"), format!("{got:?}"));
    if texts.0 == texts.1 {
        return (format!("{} (bits {:#x})", texts.0, expected.bits()), format!("bits {:#x}", got.bits()));
    }
    texts
}

#[cfg(test)]
mod tests {
    use approx::{abs_diff_eq, abs_diff_ne, relative_eq, relative_ne};

    use super::*;

    #[test]
    fn bits_decide_first_and_then_the_distance() {
        let [one, next] = [1.0_f32, 1.5].map(Compared);
        assert!(abs_diff_eq!(one, next, epsilon = 0.5) && abs_diff_ne!(one, next, epsilon = 0.49));
        assert!(relative_eq!(one, next, max_relative = 0.34) && relative_ne!(one, next, max_relative = 0.33));
        // These differ in their bits, but their distance is 0.
        let [zero, negative] = [0.0_f32, -0.0].map(Compared);
        assert!(zero != negative && abs_diff_eq!(zero, negative));
        let [nan, infinity] = [f16::NAN, f16::INFINITY].map(Compared);
        assert!(abs_diff_eq!(nan, nan) && relative_eq!(infinity, infinity));
        for other in [nan, infinity] {
            assert!(abs_diff_ne!(Compared(f16::MAX), other, epsilon = f64::MAX));
            assert!(relative_ne!(Compared(f16::MAX), other, max_relative = f64::MAX));
        }
    }

    #[test]
    fn canaries_differ_from_their_neighbors() {
        assert!((0..200).all(|i| f32::canary(i) != f32::canary(i + 1) && u8::canary(i) != u8::canary(i + 1)));
        let halves = |i| (f16::canary(i).value(), bf16::canary(i).value());
        assert!((0..200).all(|i| halves(i).0 > halves(i + 1).0 && halves(i).1 > halves(i + 1).1));
    }
}
