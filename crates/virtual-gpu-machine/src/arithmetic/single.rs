//! Single-precision arithmetic.

use super::approximate;
use super::map::{Apply, Rows, gather, write_each_chunk};
use super::rounding;
use crate::features::vectorized;
use crate::mask::FULL;
use crate::registers::{Span, Words};
use virtual_gpu_ptx::instruction::{FloatMode, FloatOp, Rounding};

/// The NaN that single-precision arithmetic returns.
pub(crate) const NAN: u32 = 0x7fff_ffff;

/// The sign bit.
const SIGN: u32 = 1 << 31;

/// Passes the definition of `op`, without `.ftz` and `.sat`, to `run`.
#[inline(always)]
fn define<A: Apply<u32>>(op: FloatOp, rounding: Rounding, run: A) -> A::Output {
    use FloatOp::*;
    let is_nearest = rounding == Rounding::Nearest;
    match op {
        Add if is_nearest => numbers(run, |[a, b]| a + b),
        Sub if is_nearest => numbers(run, |[a, b]| a - b),
        Mul if is_nearest => numbers(run, |[a, b]| a * b),
        Fma if is_nearest => numbers(run, |[a, b, c]: [f32; 3]| a.mul_add(b, c)),
        // `expf` contains an `fma.rm`.
        Fma if rounding == Rounding::Down => {
            numbers(run, |[a, b, c]| rounding::fma_single(a, b, c, Rounding::Down))
        }
        Div if is_nearest => numbers(run, |[a, b]| a / b),
        DivApprox => numbers(run, |[a, b]| div_approx(a, b)),
        Min => numbers(run, |[a, b]| min(a, b)),
        Max => numbers(run, |[a, b]| max(a, b)),
        MinNan => numbers(run, |[a, b]| if a.is_nan() || b.is_nan() { f32::NAN } else { min(a, b) }),
        MaxNan => numbers(run, |[a, b]| if a.is_nan() || b.is_nan() { f32::NAN } else { max(a, b) }),
        Abs => run.apply(|[a]| a & !SIGN),
        Neg => run.apply(|[a]| a ^ SIGN),
        Copysign => run.apply(|[a, b]| b & !SIGN | a & SIGN),
        Rcp if is_nearest => numbers(run, |[a]| 1.0 / a),
        Sqrt if is_nearest => numbers(run, |[a]| a.sqrt()),
        Rsqrt => numbers(run, |[a]| approximate::rsqrt(a)),
        Ex2 => numbers(run, |[a]| approximate::ex2(a)),
        Lg2 => numbers(run, |[a]| approximate::lg2(a)),
        Sin => numbers(run, |[a]| approximate::sin(a)),
        Cos => numbers(run, |[a]| approximate::cos(a)),
        Tanh => numbers(run, |[a]| approximate::tanh(a)),
        Add | Sub | Mul | Fma | Div | Rcp | Sqrt => numbers(run, |[a, b, c]| rounded(op, rounding, a, b, c)),
    }
}

/// Passes to `run` a definition for numbers: every NaN that it returns becomes the same NaN.
#[inline(always)]
fn numbers<A: Apply<u32>, const N: usize>(run: A, definition: impl Fn([f32; N]) -> f32) -> A::Output {
    run.apply(|sources: [u32; N]| canonical(definition(gather(0.0, |n| f32::from_bits(sources[n])))))
}

/// The definitions of the operations that round in other directions than to nearest.
#[inline(never)]
fn rounded(op: FloatOp, rounding: Rounding, a: f32, b: f32, c: f32) -> f32 {
    match op {
        FloatOp::Add => rounding::add_single(a, b, rounding),
        FloatOp::Sub => rounding::add_single(a, -b, rounding),
        FloatOp::Mul => rounding::mul_single(a, b, rounding),
        FloatOp::Fma => rounding::fma_single(a, b, c, rounding),
        FloatOp::Div => rounding::div_single(a, b, rounding),
        FloatOp::Rcp => rounding::div_single(1.0, a, rounding),
        FloatOp::Sqrt => rounding::sqrt_single(a, rounding),
        _ => unreachable!("doesn't round"),
    }
}

/// Computes `d = op(a, b, c)` in the threads of `mask`; `spans` are `d`, `a`, `b`, `c`.
pub(crate) fn execute(op: FloatOp, mode: FloatMode, file: &mut [Words], mask: &[u16], spans: [Span; 4]) {
    match mode.flush || mode.saturate {
        true => execute_adjusted(op, mode, file, mask, spans),
        false => execute_plain(op, mode.rounding, file, mask, spans),
    }
}

vectorized! {
    /// Executes an operation without `.ftz` and `.sat`.
    fn execute_plain(op: FloatOp, rounding: Rounding, file: &mut [Words], mask: &[u16], spans: [Span; 4]) = plain_body
}

#[inline(always)]
fn plain_body(op: FloatOp, rounding: Rounding, file: &mut [Words], mask: &[u16], [d, from @ ..]: [Span; 4]) {
    define(op, rounding, Rows { file, mask, d, from });
}

vectorized! {
    /// Executes an operation with `.ftz` or `.sat`.
    fn execute_adjusted(op: FloatOp, mode: FloatMode, file: &mut [Words], mask: &[u16], spans: [Span; 4]) = adjusted_body
}

#[inline(always)]
fn adjusted_body(op: FloatOp, mode: FloatMode, file: &mut [Words], mask: &[u16], [d, a, b, c]: [Span; 4]) {
    write_each_chunk!(file, mask, d, |chunk| {
        let mut four = [Words::zero(), file[a.at(chunk)], file[b.at(chunk)], file[c.at(chunk)]];
        if mode.flush {
            four.iter_mut().for_each(|source| *source = source.map(flush_bits));
        }
        execute_plain(op, mode.rounding, &mut four, &[FULL], [0, 1, 2, 3].map(Span::of));
        let mut result = four[0];
        if mode.flush {
            result = result.map(flush_bits);
        }
        if mode.saturate {
            result = result.map(|bits| saturate(f32::from_bits(bits)).to_bits());
        }
        result
    });
}

/// Returns the bits of a result; every NaN becomes the NaN that single-precision arithmetic returns.
#[inline(always)]
pub(crate) fn canonical(value: f32) -> u32 {
    if value.is_nan() { NAN } else { value.to_bits() }
}

/// `.sat`: clamps to 0..=1 and turns NaN into 0.
#[inline(always)]
pub(super) fn saturate(value: f32) -> f32 {
    // NaN fails the first comparison.
    let positive = if value > 0.0 { value } else { 0.0 };
    if positive > 1.0 { 1.0 } else { positive }
}

/// Rounds a single-precision number to 10 fraction bits, with ties away from zero.
pub(super) fn round_to_tf32(bits: u32) -> u32 {
    match f32::from_bits(bits).is_nan() {
        true => NAN,
        // A carry propagates into the exponent and can turn the largest numbers into infinity.
        false => bits.wrapping_add(1 << 12) & !0x1fff,
    }
}

/// Flushes subnormal numbers to zero with the same sign.
#[inline(always)]
pub(crate) fn flush(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { f32::from_bits(value.to_bits() & 0x8000_0000) } else { value }
}

/// Like [`flush`], for a number's bits.
#[inline(always)]
pub(super) fn flush_bits(bits: u32) -> u32 {
    flush(f32::from_bits(bits)).to_bits()
}

/// Returns the smaller number; −0 is smaller than +0, and a number is preferred over NaN.
#[inline(always)]
pub(crate) fn min(a: f32, b: f32) -> f32 {
    if a == b {
        f32::from_bits(a.to_bits() | b.to_bits())
    } else if a < b || b.is_nan() {
        a
    } else {
        b
    }
}

/// Returns the larger number; +0 is larger than −0, and a number is preferred over NaN.
#[inline(always)]
pub(crate) fn max(a: f32, b: f32) -> f32 {
    if a == b {
        f32::from_bits(a.to_bits() & b.to_bits())
    } else if a > b || b.is_nan() {
        a
    } else {
        b
    }
}

/// `div.approx`: the reciprocal of a divisor above 2^126 is flushed, so the manual's result is 0 or NaN.
#[inline(always)]
fn div_approx(a: f32, b: f32) -> f32 {
    const LARGE: f32 = 8.507_059e37;
    if b.abs() > LARGE && b.is_finite() { a * 0.0_f32.copysign(b) } else { a / b }
}
