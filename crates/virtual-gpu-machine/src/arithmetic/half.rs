//! Sixteen-bit floating-point arithmetic, computed at higher precision and rounded once.

use half::{bf16, f16};

use super::approximate;
use super::double::{max, min};
use super::map::{Apply, Each, write_each_chunk};
use super::rounding::{add_odd, to_brain, to_half};
use crate::registers::{Span, Words};
use virtual_gpu_ptx::instruction::{FloatMode, FloatOp, FloatType, Rounding};

/// Computes `d = op(a, b, c)` in the threads of `mask`; `spans` are `d`, `a`, `b`, `c`.
pub(crate) fn execute(
    op: FloatOp,
    kind: FloatType,
    mode: FloatMode,
    file: &mut [Words],
    mask: &[u16],
    [d, from @ ..]: [Span; 4],
) {
    let is_pair = matches!(kind, FloatType::F16x2 | FloatType::Bf16x2);
    let compute = |[a, b, c]: [u32; 3]| {
        let low = scalar(op, kind, mode, a as u16, b as u16, c as u16);
        let high = match is_pair {
            true => scalar(op, kind, mode, (a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16),
            false => 0,
        };
        u32::from(low) | u32::from(high) << 16
    };
    write_each_chunk!(file, mask, d, |chunk| Each::of(file, from, chunk).apply(compute));
}

/// Computes one value.
pub(crate) fn scalar(op: FloatOp, kind: FloatType, mode: FloatMode, a: u16, b: u16, c: u16) -> u16 {
    use FloatOp::*;
    match op {
        Abs => return a & 0x7fff,
        Neg => return a ^ 0x8000,
        _ => {}
    }
    let is_brain = matches!(kind, FloatType::Bf16 | FloatType::Bf16x2);
    let widen = |bits: u16| match is_brain {
        true => bf16::from_bits(bits).to_f64(),
        false => flush(f16::from_bits(bits).to_f64(), mode),
    };
    let (x, y, z) = (widen(a), widen(b), widen(c));
    let is_nan = x.is_nan() || y.is_nan();
    let mut result = match op {
        Add => add_odd(x, y),
        Sub => add_odd(x, -y),
        Mul => x * y,
        Fma => add_odd(x * y, z),
        Min => min(x, y),
        Max => max(x, y),
        MinNan if !is_nan => min(x, y),
        MaxNan if !is_nan => max(x, y),
        Ex2 => f64::from(approximate::ex2(x as f32)),
        Tanh => f64::from(approximate::tanh(x as f32)),
        _ => f64::NAN,
    };
    if mode.saturate {
        result = if result > 0.0 { result.min(1.0) } else { 0.0 };
    }
    // A NaN remains a NaN.
    if mode.relu && result <= 0.0 {
        result = 0.0;
    }
    match is_brain {
        _ if result.is_nan() => 0x7fff,
        true => to_brain(result, Rounding::Nearest),
        false => to_half(flush(result, mode), Rounding::Nearest),
    }
}

/// Flushes a number below 2^-14 to zero, as `.ftz` does for half precision.
fn flush(value: f64, mode: FloatMode) -> f64 {
    if mode.flush && value.abs() < 6.103_515_625e-5 { 0.0_f64.copysign(value) } else { value }
}
