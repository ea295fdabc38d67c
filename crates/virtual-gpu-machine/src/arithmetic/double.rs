//! Double-precision arithmetic.

use super::map::{Apply, Each, write_each_chunk};
use super::rounding;
use crate::registers::{Longs, Span};
use virtual_gpu_ptx::instruction::{FloatMode, FloatOp};

/// Computes `d = op(a, b, c)` in the threads of `mask`; `spans` are `d`, `a`, `b`, `c`.
pub(crate) fn execute(
    op: FloatOp,
    mode: FloatMode,
    file: &mut [Longs],
    mask: &[u16],
    [d, from @ ..]: [Span; 4],
) {
    let compute = |[a, b, c]: [u64; 3]| scalar(op, mode, a, b, c);
    write_each_chunk!(file, mask, d, |chunk| Each::of(file, from, chunk).apply(compute));
}

/// Computes `op(a, b, c)` for one thread.
fn scalar(op: FloatOp, mode: FloatMode, a: u64, b: u64, c: u64) -> u64 {
    use FloatOp::*;
    let (x, y, z) = (f64::from_bits(a), f64::from_bits(b), f64::from_bits(c));
    let rounding = mode.rounding;
    let result = match op {
        Add => rounding::add_double(x, y, rounding),
        Sub => rounding::add_double(x, -y, rounding),
        Mul => rounding::mul_double(x, y, rounding),
        Fma => rounding::fma_double(x, y, z, rounding),
        Div | DivApprox => rounding::div_double(x, y, rounding),
        Min => min(x, y),
        Max => max(x, y),
        MinNan | MaxNan if x.is_nan() || y.is_nan() => f64::NAN,
        MinNan => min(x, y),
        MaxNan => max(x, y),
        Abs => return a & (u64::MAX >> 1),
        Neg => return a ^ 1 << 63,
        Rcp => rounding::div_double(1.0, x, rounding),
        Sqrt => rounding::sqrt_double(x, rounding),
        Rsqrt => 1.0 / x.sqrt(),
        Copysign => y.copysign(x),
        // Rejected for this type when the PTX is loaded.
        Ex2 | Lg2 | Sin | Cos | Tanh => f64::NAN,
    };
    result.to_bits()
}

/// Returns the smaller number; −0 is smaller than +0, and a number is preferred over NaN.
#[inline(always)]
pub(crate) fn min(a: f64, b: f64) -> f64 {
    if a == b {
        f64::from_bits(a.to_bits() | b.to_bits())
    } else if a < b || b.is_nan() {
        a
    } else {
        b
    }
}

/// Returns the larger number; +0 is larger than −0, and a number is preferred over NaN.
#[inline(always)]
pub(crate) fn max(a: f64, b: f64) -> f64 {
    if a == b {
        f64::from_bits(a.to_bits() & b.to_bits())
    } else if a > b || b.is_nan() {
        a
    } else {
        b
    }
}
