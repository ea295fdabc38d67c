//! Comparisons.

use half::{bf16, f16};

use super::predicate::combine;
use super::single::flush;
use crate::features::vectorized;
use crate::mask::WIDTH;
use crate::registers::Files;
use virtual_gpu_ptx::instruction::{BoolOp, CompareAs, Comparison, Condition, Predicate, Slot, Value};

/// A comparison's sources and destinations.
#[derive(Clone, Copy)]
pub(crate) struct Compare {
    pub(crate) comparison: Comparison,
    pub(crate) kind: CompareAs,
    pub(crate) a: Value,
    pub(crate) b: Value,
    pub(crate) combine: BoolOp,
    pub(crate) c: Option<Condition>,
    pub(crate) d: Option<Predicate>,
    pub(crate) complement: Option<Predicate>,
}

vectorized! {
    /// Executes `setp` in the threads of `mask`.
    fn compare(what: Compare, files: &mut Files, mask: &[u16]) = compare_body
}

#[inline(always)]
fn compare_body(what: Compare, files: &mut Files, mask: &[u16]) {
    match (what.a, what.b) {
        (Value::Long(a), Value::Long(b)) => compare_longs(what, files, mask, a, b),
        (Value::Word(a), Value::Word(b)) => compare_words(what, files, mask, a, b),
        _ => {}
    }
}

/// Compares values of any comparable type. With NaN, only `Nan` and the comparisons that end in `u` hold.
#[inline(always)]
#[expect(
    clippy::double_comparisons,
    clippy::neg_cmp_op_on_partial_ord,
    reason = "NaN is neither less nor more"
)]
fn holds<T: PartialOrd>(comparison: Comparison, a: T, b: T) -> bool {
    match comparison {
        Comparison::Eq => a == b,
        Comparison::Ne => a < b || a > b,
        Comparison::Lt => a < b,
        Comparison::Le => a <= b,
        Comparison::Gt => a > b,
        Comparison::Ge => a >= b,
        Comparison::Equ => !(a < b || a > b),
        Comparison::Neu => a != b,
        Comparison::Ltu => !(a >= b),
        Comparison::Leu => !(a > b),
        Comparison::Gtu => !(a <= b),
        Comparison::Geu => !(a < b),
        Comparison::Num => a.partial_cmp(&b).is_some(),
        Comparison::Nan => a.partial_cmp(&b).is_none(),
    }
}

/// Turns the comparison into a constant of the loop over threads.
macro_rules! each_comparison {
    ($comparison:expr, |$constant:ident| $body:expr) => {
        each_comparison!(
            @ $comparison, $constant, $body, Eq Ne Lt Le Gt Ge Equ Neu Ltu Leu Gtu Geu Num Nan
        )
    };
    (@ $comparison:expr, $constant:ident, $body:expr, $($name:ident)*) => {
        match $comparison {
            $(Comparison::$name => {
                const $constant: Comparison = Comparison::$name;
                $body
            })*
        }
    };
}

fn flush_half(value: f16) -> f16 {
    if value.is_normal() || value.is_nan() || value.is_infinite() { value } else { f16::ZERO }
}

#[inline(always)]
fn compare_words(what: Compare, files: &mut Files, mask: &[u16], a: Slot, b: Slot) {
    macro_rules! run {
        ($convert:expr) => {
            each_comparison!(what.comparison, |OP| words(what, files, mask, a, b, |a, b| {
                let convert = $convert;
                holds(OP, convert(a), convert(b))
            }))
        };
    }
    match what.kind {
        CompareAs::Signed => run!(|bits| bits as i32),
        CompareAs::Unsigned => run!(|bits: u32| bits),
        CompareAs::F32 => run!(f32::from_bits),
        CompareAs::F32Flush => run!(|bits| flush(f32::from_bits(bits))),
        CompareAs::Signed16 => run!(|bits| bits as u16 as i16),
        CompareAs::Unsigned16 => run!(|bits| bits as u16),
        CompareAs::F16 => words(what, files, mask, a, b, |a, b| {
            holds(what.comparison, f16::from_bits(a as u16).to_f32(), f16::from_bits(b as u16).to_f32())
        }),
        CompareAs::F16Flush => words(what, files, mask, a, b, |a, b| {
            let value = |bits: u32| flush_half(f16::from_bits(bits as u16)).to_f32();
            holds(what.comparison, value(a), value(b))
        }),
        CompareAs::Bf16 => words(what, files, mask, a, b, |a, b| {
            holds(what.comparison, bf16::from_bits(a as u16).to_f32(), bf16::from_bits(b as u16).to_f32())
        }),
        CompareAs::F64 => {}
    }
}

#[inline(always)]
fn words(what: Compare, files: &mut Files, mask: &[u16], a: Slot, b: Slot, f: impl Fn(u32, u32) -> bool) {
    let (a, b) = (files.word(a), files.word(b));
    for (chunk, &active) in mask.iter().enumerate() {
        if active == 0 {
            continue;
        }
        let (x, y) = (&files.words[a.at(chunk)], &files.words[b.at(chunk)]);
        let bits = gather(|i| f(x.0[i], y.0[i]));
        finish(what, files, chunk, bits, active);
    }
}

#[inline(always)]
fn compare_longs(what: Compare, files: &mut Files, mask: &[u16], a: Slot, b: Slot) {
    macro_rules! run {
        ($convert:expr) => {
            each_comparison!(what.comparison, |OP| longs(what, files, mask, a, b, |a, b| {
                let convert = $convert;
                holds(OP, convert(a), convert(b))
            }))
        };
    }
    match what.kind {
        CompareAs::Signed => run!(|bits| bits as i64),
        CompareAs::F64 => run!(f64::from_bits),
        _ => run!(|bits: u64| bits),
    }
}

#[inline(always)]
fn longs(what: Compare, files: &mut Files, mask: &[u16], a: Slot, b: Slot, f: impl Fn(u64, u64) -> bool) {
    let (a, b) = (files.long(a), files.long(b));
    for (chunk, &active) in mask.iter().enumerate() {
        if active == 0 {
            continue;
        }
        let (x, y) = (&files.longs[a.at(chunk)], &files.longs[b.at(chunk)]);
        let bits = gather(|i| f(x.0[i], y.0[i]));
        finish(what, files, chunk, bits, active);
    }
}

/// Returns a chunk's results, one bit each.
#[inline(always)]
fn gather(holds: impl Fn(usize) -> bool) -> u16 {
    let mut answers = [0; WIDTH];
    for (i, answer) in answers.iter_mut().enumerate() {
        *answer = if holds(i) { -1 } else { 0 };
    }
    sign_bits(answers)
}

/// Returns the signs of a chunk's values. The compiler generates slow code for the plain loop.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn sign_bits([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]: [i32; WIDTH]) -> u16 {
    use std::arch::x86_64::{_mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32, _mm_setr_epi32};
    // SAFETY: every x86-64 processor has SSE2.
    unsafe {
        let low = _mm_packs_epi32(_mm_setr_epi32(a, b, c, d), _mm_setr_epi32(e, f, g, h));
        let high = _mm_packs_epi32(_mm_setr_epi32(i, j, k, l), _mm_setr_epi32(m, n, o, p));
        _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u16
    }
}

/// Returns the signs of a chunk's values.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn sign_bits(values: [i32; WIDTH]) -> u16 {
    values.iter().rev().fold(0, |bits, &value| bits << 1 | u16::from(value < 0))
}

/// Combines a chunk's results with the third source and stores them.
#[inline(always)]
fn finish(what: Compare, files: &mut Files, chunk: usize, bits: u16, active: u16) {
    let with = what.c.map_or(0, |condition| files.condition(condition, chunk));
    if let Some(d) = what.d {
        files.set_predicate(d, chunk, combine(what.combine, bits, with), active);
    }
    if let Some(complement) = what.complement {
        files.set_predicate(complement, chunk, combine(what.combine, !bits, with), active);
    }
}
