//! `cvt`, if it involves a floating-point format or saturation.

use half::{bf16, f16};

use super::fp8::{from_fp8, to_fp8};
use super::map::write_each_chunk;
use super::rounding::{to_brain, to_half, to_single};
use super::single::{self, NAN};
use crate::features::vectorized;
use crate::mask::WIDTH;
use crate::registers::{Chunk, Files, Span, Words};
use virtual_gpu_ptx::instruction::{Conversion, FloatMode, FloatType, IntegerType, Rounding, Value};

vectorized! {
    /// Converts `a` into `d` in the threads of `mask`.
    fn execute(conversion: Conversion, files: &mut Files, mask: &[u16], d: Value, a: Value) = execute_body
}

#[inline(always)]
fn execute_body(conversion: Conversion, files: &mut Files, mask: &[u16], d: Value, a: Value) {
    // The most common conversions need neither doubles nor 128-bit integers.
    if let (Value::Word(d), Value::Word(a)) = (d, a) {
        let spans = [files.word(d), files.word(a)];
        let words = &mut files.words;
        match conversion {
            INT_TO_SINGLE => return convert_words(words, mask, spans, |a| (a as i32 as f32).to_bits()),
            UNSIGNED_TO_SINGLE => return convert_words(words, mask, spans, |a| (a as f32).to_bits()),
            SINGLE_TO_INT => return convert_words(words, mask, spans, |a| f32::from_bits(a) as i32 as u32),
            SATURATED => {
                return convert_words(words, mask, spans, |a| single::saturate(f32::from_bits(a)).to_bits());
            }
            _ => {}
        }
    }
    any_body(conversion, files, mask, d, a);
}

/// Converts a 32-bit register into another, with `convert` for each thread.
#[inline(always)]
fn convert_words(file: &mut [Words], mask: &[u16], [d, a]: [Span; 2], convert: impl Fn(u32) -> u32) {
    write_each_chunk!(file, mask, d, |chunk| file[a.at(chunk)].map(&convert));
}

const INT: IntegerType = IntegerType { bits: 32, signed: true };
const UNSIGNED: IntegerType = IntegerType { bits: 32, signed: false };
const PLAIN: FloatMode =
    FloatMode { rounding: Rounding::Nearest, flush: false, saturate: false, relu: false };
const INT_TO_SINGLE: Conversion = Conversion::IntegerToFloat {
    from: INT,
    to: FloatType::F32,
    rounding: Rounding::Nearest,
    saturate: false,
};
const UNSIGNED_TO_SINGLE: Conversion = Conversion::IntegerToFloat {
    from: UNSIGNED,
    to: FloatType::F32,
    rounding: Rounding::Nearest,
    saturate: false,
};
const SINGLE_TO_INT: Conversion =
    Conversion::FloatToInteger { from: FloatType::F32, to: INT, rounding: Rounding::Zero, flush: false };
/// `cvt.sat.f32.f32`, which `expf` uses.
const SATURATED: Conversion = Conversion::FloatToFloat {
    from: FloatType::F32,
    to: FloatType::F32,
    rounding: Rounding::Nearest,
    to_integer: false,
    mode: FloatMode { saturate: true, ..PLAIN },
};

#[inline(always)]
fn any_body(conversion: Conversion, files: &mut Files, mask: &[u16], d: Value, a: Value) {
    for (chunk, &active) in mask.iter().enumerate() {
        if active == 0 {
            continue;
        }
        let mut source = Chunk::zero();
        match a {
            Value::Word(a) => {
                let words = &files.words[files.word(a).at(chunk)];
                for i in 0..WIDTH {
                    source.0[i] = u64::from(words.0[i]);
                }
            }
            Value::Long(a) => source = files.longs[files.long(a).at(chunk)],
        }
        let mut result = Chunk::zero();
        for i in 0..WIDTH {
            result.0[i] = scalar(conversion, source.0[i]);
        }
        match d {
            Value::Word(d) => {
                let at = files.word(d).at(chunk);
                let mut words = Chunk::zero();
                for i in 0..WIDTH {
                    words.0[i] = result.0[i] as u32;
                }
                files.words[at].take(words, active);
            }
            Value::Long(d) => {
                let at = files.long(d).at(chunk);
                files.longs[at].take(result, active);
            }
        }
    }
}

/// Converts a single value, given in the low bits.
#[inline(always)]
pub(crate) fn scalar(conversion: Conversion, value: u64) -> u64 {
    match conversion {
        Conversion::FloatToFloat { from, to, rounding, to_integer, mode } => {
            float_to_float(from, to, rounding, to_integer, mode, value)
        }
        Conversion::FloatToInteger { from, to, rounding, flush } => {
            let value = read_float(from, value, flush);
            if value.is_nan() {
                let is_top_bit = from == FloatType::F64 || to.bits == 64;
                return if is_top_bit { 1 << (to.bits - 1) } else { 0 };
            }
            float_to_integer(value, to, rounding)
        }
        Conversion::IntegerToFloat { from, to, rounding, saturate } => {
            integer_to_float(read_integer(from, value), to, rounding, saturate)
        }
        Conversion::FloatToFp8 { from, to, relu } => {
            let value = read_float(from, value, false);
            u64::from(to_fp8(if relu && value <= 0.0 { 0.0 } else { value }, to))
        }
        Conversion::Fp8ToHalf { from, relu } => {
            let value = from_fp8(value as u8, from);
            let value = if relu && value <= 0.0 { 0.0 } else { value };
            write_float(value, FloatType::F16, Rounding::Nearest, false)
        }
        Conversion::IntegerToInteger { from, to } => {
            let (low, high) = limits(to);
            read_integer(from, value).clamp(low, high) as u64
        }
    }
}

fn read_integer(kind: IntegerType, value: u64) -> i128 {
    let shift = 64 - u32::from(kind.bits);
    match kind.signed {
        true => i128::from((value << shift) as i64 >> shift),
        false => i128::from(value << shift >> shift),
    }
}

fn limits(kind: IntegerType) -> (i128, i128) {
    match kind.signed {
        true => (-(1 << (kind.bits - 1)), (1 << (kind.bits - 1)) - 1),
        false => (0, (1 << kind.bits) - 1),
    }
}

/// Reads a value as a double, which can represent every format exactly.
#[inline(always)]
fn read_float(kind: FloatType, value: u64, flush: bool) -> f64 {
    match kind {
        FloatType::F32 => {
            let single = f32::from_bits(value as u32);
            f64::from(if flush { single::flush(single) } else { single })
        }
        FloatType::F64 => f64::from_bits(value),
        FloatType::F16 | FloatType::F16x2 => f16::from_bits(value as u16).to_f64(),
        FloatType::Bf16 | FloatType::Bf16x2 => bf16::from_bits(value as u16).to_f64(),
    }
}

#[inline(always)]
fn round(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => value.round_ties_even(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

/// Converts to an integer. Out-of-range values become the nearest value in range.
#[inline(always)]
fn float_to_integer(value: f64, to: IntegerType, rounding: Rounding) -> u64 {
    let rounded = round(value, rounding);
    match (to.bits, to.signed) {
        (64, true) => rounded as i64 as u64,
        (64, false) => rounded as u64,
        (32, true) => rounded as i32 as u32 as u64,
        (32, false) => u64::from(rounded as u32),
        (16, true) => rounded as i16 as u16 as u64,
        (16, false) => u64::from(rounded as u16),
        (_, true) => rounded as i8 as u8 as u64,
        (_, false) => u64::from(rounded as u8),
    }
}

#[inline(always)]
fn float_to_float(
    from: FloatType,
    to: FloatType,
    rounding: Rounding,
    to_integer: bool,
    mode: FloatMode,
    bits: u64,
) -> u64 {
    let mut value = read_float(from, bits, mode.flush);
    if to_integer {
        let rounded = round(value, rounding);
        // −0.5 rounds to −0.
        value = if rounded == 0.0 { rounded.copysign(value) } else { rounded };
    }
    if mode.saturate {
        value = if value > 0.0 { value.min(1.0) } else { 0.0 };
    }
    if mode.relu && value <= 0.0 {
        value = 0.0;
    }
    write_float(value, to, if to_integer { Rounding::Nearest } else { rounding }, mode.flush)
}

#[inline(always)]
fn write_float(value: f64, to: FloatType, rounding: Rounding, flush: bool) -> u64 {
    match to {
        FloatType::F64 => value.to_bits(),
        _ if value.is_nan() => {
            if to == FloatType::F32 {
                u64::from(NAN)
            } else {
                0x7fff
            }
        }
        FloatType::F32 => {
            let single = to_single(value, rounding);
            u64::from(if flush { single::flush(single) } else { single }.to_bits())
        }
        FloatType::F16 | FloatType::F16x2 => u64::from(to_half(value, rounding)),
        FloatType::Bf16 | FloatType::Bf16x2 => u64::from(to_brain(value, rounding)),
    }
}

/// Converts an integer of up to 64 bits, rounding once.
fn integer_to_float(value: i128, to: FloatType, rounding: Rounding, saturate: bool) -> u64 {
    let value = if saturate { value.clamp(0, 1) } else { value };
    if to == FloatType::F64 {
        let nearest = value as f64;
        // This is exact: a 64-bit integer and its nearest double both fit easily into an i128.
        let error = value - nearest as i128;
        let toward_larger = match rounding {
            Rounding::Nearest => return nearest.to_bits(),
            Rounding::Zero => value < 0,
            Rounding::Down => false,
            Rounding::Up => true,
        };
        let rounded = match toward_larger {
            true if error > 0 => nearest.next_up(),
            false if error < 0 => nearest.next_down(),
            _ => nearest,
        };
        return rounded.to_bits();
    }
    write_float(odd_double(value), to, rounding, false)
}

/// Converts to a double, rounded to odd.
fn odd_double(value: i128) -> f64 {
    let nearest = value as f64;
    let error = value - nearest as i128;
    if error == 0 || nearest.to_bits() & 1 == 1 {
        return nearest;
    }
    if (error > 0) == (value > 0) {
        f64::from_bits(nearest.to_bits() + 1)
    } else {
        f64::from_bits(nearest.to_bits() - 1)
    }
}
