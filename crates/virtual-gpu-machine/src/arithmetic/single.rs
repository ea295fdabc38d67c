//! Single-precision arithmetic.

use super::approximate;
use super::map::{Apply, Each, gather};
use super::rounding;
use crate::features::vectorized;
use crate::registers::{Span, Words};
use virtual_gpu_ptx::instruction::{FloatMode, FloatOp, Rounding};

/// The NaN that single-precision arithmetic returns.
pub(crate) const NAN: u32 = 0x7fff_ffff;

/// The mode of a plain instruction, which rounds to nearest.
const PLAIN: FloatMode =
    FloatMode { rounding: Rounding::Nearest, flush: false, saturate: false, relu: false };

/// The mode of an instruction with only `.ftz`, which fast-math code uses everywhere.
const FLUSHED: FloatMode = FloatMode { flush: true, ..PLAIN };

/// The mode of an instruction with only `.rm`: `expf` contains an `fma.rm`.
const DOWN: FloatMode = FloatMode { rounding: Rounding::Down, ..PLAIN };

/// Applies an operation's definition to numbers or to their bits, like [`Apply`].
trait ApplySingle {
    type Output;

    /// Applies an arithmetic definition: every NaN becomes the same NaN, and `.ftz` flushes the result.
    fn numbers<const N: usize>(self, definition: impl Fn([f32; N]) -> f32) -> Self::Output;

    /// Applies a definition that only moves bits: a NaN keeps its bits.
    fn bits<const N: usize>(self, definition: impl Fn([u32; N]) -> u32) -> Self::Output;
}

/// Passes the definition of `op` to `run`.
#[inline(always)]
fn define<A: ApplySingle>(op: FloatOp, rounding: Rounding, run: A) -> A::Output {
    use FloatOp::*;
    let is_nearest = rounding == Rounding::Nearest;
    match op {
        Add if is_nearest => run.numbers(|[a, b]| a + b),
        Add => run.numbers(|[a, b]| rounding::add_single(a, b, rounding)),
        Sub if is_nearest => run.numbers(|[a, b]| a - b),
        Sub => run.numbers(|[a, b]| rounding::add_single(a, -b, rounding)),
        Mul if is_nearest => run.numbers(|[a, b]| a * b),
        Mul => run.numbers(|[a, b]| rounding::mul_single(a, b, rounding)),
        Fma if is_nearest => run.numbers(|[a, b, c]: [f32; 3]| a.mul_add(b, c)),
        Fma => run.numbers(|[a, b, c]| rounding::fma_single(a, b, c, rounding)),
        Div if is_nearest => run.numbers(|[a, b]| a / b),
        Div => run.numbers(|[a, b]| rounding::div_single(a, b, rounding)),
        DivApprox => run.numbers(|[a, b]| div_approx(a, b)),
        Min => run.numbers(|[a, b]| min(a, b)),
        Max => run.numbers(|[a, b]| max(a, b)),
        MinNan => run.numbers(|[a, b]| if a.is_nan() || b.is_nan() { f32::NAN } else { min(a, b) }),
        MaxNan => run.numbers(|[a, b]| if a.is_nan() || b.is_nan() { f32::NAN } else { max(a, b) }),
        Abs => run.bits(|[a]| a & !SIGN),
        Neg => run.bits(|[a]| a ^ SIGN),
        Copysign => run.bits(|[a, b]| b & !SIGN | a & SIGN),
        Rcp if is_nearest => run.numbers(|[a]| 1.0 / a),
        Rcp => run.numbers(|[a]| rounding::div_single(1.0, a, rounding)),
        Sqrt if is_nearest => run.numbers(|[a]| a.sqrt()),
        Sqrt => run.numbers(|[a]| rounding::sqrt_single(a, rounding)),
        Rsqrt => run.numbers(|[a]| approximate::rsqrt(a)),
        Ex2 => run.numbers(|[a]| approximate::ex2(a)),
        Lg2 => run.numbers(|[a]| approximate::lg2(a)),
        Sin => run.numbers(|[a]| approximate::sin(a)),
        Cos => run.numbers(|[a]| approximate::cos(a)),
        Tanh => run.numbers(|[a]| approximate::tanh(a)),
    }
}

/// The sign bit.
const SIGN: u32 = 1 << 31;

/// All threads in a mask, without modifiers.
struct Plain<'f>(Each<'f, u32>);

impl ApplySingle for Plain<'_> {
    type Output = ();

    #[inline(always)]
    fn numbers<const N: usize>(self, definition: impl Fn([f32; N]) -> f32) {
        self.0.apply(|sources: [u32; N]| canonical(definition(gather(0.0, |n| f32::from_bits(sources[n])))));
    }

    #[inline(always)]
    fn bits<const N: usize>(self, definition: impl Fn([u32; N]) -> u32) {
        self.0.apply(definition);
    }
}

/// All threads in a mask, with `.ftz`.
struct Flushed<'f>(Each<'f, u32>);

impl ApplySingle for Flushed<'_> {
    type Output = ();

    #[inline(always)]
    fn numbers<const N: usize>(self, definition: impl Fn([f32; N]) -> f32) {
        self.0.apply(|sources: [u32; N]| {
            let sources = gather(0.0, |n| flush(f32::from_bits(sources[n])));
            canonical(flush(definition(sources)))
        });
    }

    #[inline(always)]
    fn bits<const N: usize>(self, definition: impl Fn([u32; N]) -> u32) {
        self.0.apply(|sources: [u32; N]| {
            let sources = gather(0, |n| flush(f32::from_bits(sources[n])).to_bits());
            flush(f32::from_bits(definition(sources))).to_bits()
        });
    }
}

/// One thread with any modifiers.
struct Modified {
    mode: FloatMode,
    sources: [u32; 3],
}

impl Modified {
    /// Returns the sources in the form that the definition receives.
    #[inline(always)]
    fn read<const N: usize>(&self) -> [f32; N] {
        gather(0.0, |n| {
            let value = f32::from_bits(self.sources[n]);
            if self.mode.flush { flush(value) } else { value }
        })
    }

    /// Returns the definition's result with the modifiers applied.
    #[inline(always)]
    fn write(&self, mut result: f32) -> f32 {
        if self.mode.flush {
            result = flush(result);
        }
        if self.mode.saturate { saturate(result) } else { result }
    }
}

impl ApplySingle for Modified {
    type Output = u32;

    #[inline(always)]
    fn numbers<const N: usize>(self, definition: impl Fn([f32; N]) -> f32) -> u32 {
        canonical(self.write(definition(self.read())))
    }

    #[inline(always)]
    fn bits<const N: usize>(self, definition: impl Fn([u32; N]) -> u32) -> u32 {
        let sources: [f32; N] = self.read();
        self.write(f32::from_bits(definition(gather(0, |n| sources[n].to_bits())))).to_bits()
    }
}

vectorized! {
    /// Computes `d = op(a, b, c)` in the threads of `mask`; `spans` are `d`, `a`, `b`, `c`.
    fn execute(op: FloatOp, mode: FloatMode, file: &mut [Words], mask: &[u16], spans: [Span; 4]) = execute_body
}

#[inline(always)]
fn execute_body(op: FloatOp, mode: FloatMode, file: &mut [Words], mask: &[u16], spans: [Span; 4]) {
    let each = Each { file, mask, spans };
    if mode == PLAIN {
        define(op, PLAIN.rounding, Plain(each));
    } else if mode == FLUSHED {
        define(op, FLUSHED.rounding, Flushed(each));
    } else if op == FloatOp::Fma && mode == DOWN {
        each.apply(|[a, b, c]| scalar(FloatOp::Fma, DOWN, a, b, c));
    } else {
        each.apply(|[a, b, c]| scalar(op, mode, a, b, c));
    }
}

/// Computes `op(a, b, c)` for one thread, with any modifiers.
#[inline(always)]
fn scalar(op: FloatOp, mode: FloatMode, a: u32, b: u32, c: u32) -> u32 {
    define(op, mode.rounding, Modified { mode, sources: [a, b, c] })
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
