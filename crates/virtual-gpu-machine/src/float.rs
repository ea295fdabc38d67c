//! Single-precision arithmetic.

use super::approximate;
use super::features::vectorised;
use super::file::{Span, Words};
use super::rounding;
use super::word::map;
use virtual_gpu_ptx::instruction::{FloatMode, FloatOp, Rounding};

/// The NaN that single-precision arithmetic results in.
pub(super) const NAN: u32 = 0x7fff_ffff;

vectorised! {
    /// `d = op(a, b, c)` in the lanes of `mask`; `spans` are `d`, `a`, `b`, `c`.
    fn execute(op: FloatOp, mode: FloatMode, file: &mut [Words], mask: &[u16], spans: [Span; 4]) = execute_body
}

#[inline(always)]
fn execute_body(op: FloatOp, mode: FloatMode, file: &mut [Words], mask: &[u16], spans: [Span; 4]) {
    use FloatOp::*;
    macro_rules! run {
        ($f:expr) => {
            map(file, mask, spans, |a, b, c| {
                let f: fn(f32, f32, f32) -> f32 = $f;
                canonical(f(f32::from_bits(a), f32::from_bits(b), f32::from_bits(c)))
            })
        };
    }
    // With `.ftz` alone, as fast-maths code has everywhere.
    macro_rules! flushed {
        ($f:expr) => {
            map(file, mask, spans, |a, b, c| {
                let f: fn(f32, f32, f32) -> f32 = $f;
                let [a, b, c] = [a, b, c].map(|bits| flush(f32::from_bits(bits)));
                canonical(flush(f(a, b, c)))
            })
        };
    }
    let only_flushes = mode == FloatMode { flush: true, ..FloatMode::default() };
    match op {
        Add if mode.is_plain() => run!(|a, b, _| a + b),
        Sub if mode.is_plain() => run!(|a, b, _| a - b),
        Mul if mode.is_plain() => run!(|a, b, _| a * b),
        Fma if mode.is_plain() => run!(f32::mul_add),
        Div if mode.is_plain() => run!(|a, b, _| a / b),
        Min if mode.is_plain() => run!(|a, b, _| min(a, b)),
        Max if mode.is_plain() => run!(|a, b, _| max(a, b)),
        Ex2 if mode.is_plain() => run!(|a, _, _| approximate::ex2(a)),
        Lg2 if mode.is_plain() => run!(|a, _, _| approximate::lg2(a)),
        Rcp if mode.is_plain() => run!(|a, _, _| 1.0 / a),
        Sqrt if mode.is_plain() => run!(|a, _, _| a.sqrt()),
        // `expf` is made of this one.
        Fma if mode == FloatMode { rounding: Rounding::Down, ..FloatMode::default() } => {
            run!(|a, b, c| rounding::fma_single(a, b, c, Rounding::Down));
        }
        Rsqrt if mode.is_plain() => run!(|a, _, _| approximate::rsqrt(a)),
        Add if only_flushes => flushed!(|a, b, _| a + b),
        Sub if only_flushes => flushed!(|a, b, _| a - b),
        Mul if only_flushes => flushed!(|a, b, _| a * b),
        Fma if only_flushes => flushed!(f32::mul_add),
        Max if only_flushes => flushed!(|a, b, _| max(a, b)),
        Rcp if only_flushes => flushed!(|a, _, _| 1.0 / a),
        Ex2 if only_flushes => flushed!(|a, _, _| approximate::ex2(a)),
        Abs if !mode.flush => map(file, mask, spans, |a, _, _| a & 0x7fff_ffff),
        Neg if !mode.flush => map(file, mask, spans, |a, _, _| a ^ 0x8000_0000),
        _ => map(file, mask, spans, |a, b, c| scalar(op, mode, a, b, c)),
    }
}

#[inline(always)]
pub(super) fn canonical(value: f32) -> u32 {
    if value.is_nan() { NAN } else { value.to_bits() }
}

/// Subnormal numbers become zeros of their sign.
#[inline(always)]
pub(super) fn flush(value: f32) -> f32 {
    if value.abs() < f32::MIN_POSITIVE { f32::from_bits(value.to_bits() & 0x8000_0000) } else { value }
}

/// The smaller; −0 is smaller than +0, and a number wins over NaN.
#[inline(always)]
pub(super) fn min(a: f32, b: f32) -> f32 {
    if a == b {
        f32::from_bits(a.to_bits() | b.to_bits())
    } else if a < b || b.is_nan() {
        a
    } else {
        b
    }
}

/// The larger; +0 is larger than −0, and a number wins over NaN.
#[inline(always)]
pub(super) fn max(a: f32, b: f32) -> f32 {
    if a == b {
        f32::from_bits(a.to_bits() & b.to_bits())
    } else if a > b || b.is_nan() {
        a
    } else {
        b
    }
}

/// One lane, with any modifiers.
#[inline(always)]
pub(super) fn scalar(op: FloatOp, mode: FloatMode, a: u32, b: u32, c: u32) -> u32 {
    let [a, b, c] = [a, b, c].map(|bits| {
        let value = f32::from_bits(bits);
        if mode.flush { flush(value) } else { value }
    });
    let mut result = arithmetic(op, mode.rounding, a, b, c);
    if mode.flush {
        result = flush(result);
    }
    if mode.saturate {
        // NaN fails the first comparison.
        result = if result > 0.0 { result.min(1.0) } else { 0.0 };
    }
    match op {
        FloatOp::Abs | FloatOp::Neg | FloatOp::Copysign => result.to_bits(),
        _ => canonical(result),
    }
}

#[inline(always)]
fn arithmetic(op: FloatOp, rounding: Rounding, a: f32, b: f32, c: f32) -> f32 {
    use FloatOp::*;
    let is_nearest = rounding == Rounding::Nearest;
    match op {
        Add if is_nearest => a + b,
        Add => rounding::add_single(a, b, rounding),
        Sub if is_nearest => a - b,
        Sub => rounding::add_single(a, -b, rounding),
        Mul if is_nearest => a * b,
        Mul => rounding::mul_single(a, b, rounding),
        Fma if is_nearest => a.mul_add(b, c),
        Fma => rounding::fma_single(a, b, c, rounding),
        Div if is_nearest => a / b,
        Div => rounding::div_single(a, b, rounding),
        DivApprox => div_approx(a, b),
        Min => min(a, b),
        Max => max(a, b),
        MinNan => {
            if a.is_nan() || b.is_nan() {
                f32::NAN
            } else {
                min(a, b)
            }
        }
        MaxNan => {
            if a.is_nan() || b.is_nan() {
                f32::NAN
            } else {
                max(a, b)
            }
        }
        Abs => a.abs(),
        Neg => -a,
        Rcp => rounding::div_single(1.0, a, rounding),
        Sqrt => rounding::sqrt_single(a, rounding),
        Rsqrt => approximate::rsqrt(a),
        Ex2 => approximate::ex2(a),
        Lg2 => approximate::lg2(a),
        Sin => approximate::sin(a),
        Cos => approximate::cos(a),
        Tanh => approximate::tanh(a),
        Copysign => b.copysign(a),
    }
}

/// `div.approx`: a divisor above 2^126 has a reciprocal that is flushed, so the manual's result is 0, or NaN.
#[inline(always)]
fn div_approx(a: f32, b: f32) -> f32 {
    const LARGE: f32 = 8.507_059e37;
    if b.abs() > LARGE && b.is_finite() { a * 0.0_f32.copysign(b) } else { a / b }
}
