//! Comparisons.

use half::{bf16, f16};

use super::predicate::combine;
use super::single::flush_bits;
use crate::features::vectorized;
use crate::mask::{MAX_CHUNKS, WIDTH};
use crate::registers::{Files, Longs, Words};
use virtual_gpu_ptx::instruction::{BoolOp, CompareAs, Comparison, Condition, Predicate, Value};

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
    let needs = Needs::of(what.comparison);
    let mut results = [0; MAX_CHUNKS];
    let results = &mut results[..mask.len()];
    if files.is_same(what.a) && files.is_same(what.b) {
        results.fill(outcome(&what, needs, files, 0).threads_with(what.comparison));
    } else {
        for (chunk, (result, &active)) in results.iter_mut().zip(mask).enumerate() {
            if active != 0 {
                *result = outcome(&what, needs, files, chunk).threads_with(what.comparison);
            }
        }
    }
    finish(&what, results, files, mask);
}

/// Compares the values of the threads in a chunk.
#[inline(always)]
fn outcome(what: &Compare, needs: Needs, files: &Files, chunk: usize) -> Outcome {
    match (what.a, what.b) {
        (Value::Word(a), Value::Word(b)) => {
            let a = converted(what.kind, &files.words[files.word(a).at(chunk)]);
            let b = converted(what.kind, &files.words[files.word(b).at(chunk)]);
            compare_words(what.kind, needs, &a, &b)
        }
        (Value::Long(a), Value::Long(b)) => {
            let (a, b) = (&files.longs[files.long(a).at(chunk)], &files.longs[files.long(b).at(chunk)]);
            compare_longs(what.kind, needs, a, b)
        }
        _ => Outcome { less: 0, equal: 0, greater: 0 },
    }
}

/// Which parts of an outcome a comparison needs; the other parts are not computed.
#[derive(Clone, Copy)]
struct Needs {
    less: bool,
    equal: bool,
    greater: bool,
}

impl Needs {
    fn of(comparison: Comparison) -> Self {
        use Comparison::{Eq, Equ, Ge, Geu, Gt, Gtu, Le, Leu, Lt, Ltu, Nan, Ne, Neu, Num};
        let (less, equal, greater) = match comparison {
            Eq | Neu => (false, true, false),
            Ne | Equ => (true, false, true),
            Lt | Geu => (true, false, false),
            Gt | Leu => (false, false, true),
            Le | Gtu => (true, true, false),
            Ge | Ltu => (false, true, true),
            Num | Nan => (true, true, true),
        };
        Self { less, equal, greater }
    }
}

/// The threads of a chunk whose first value is less than, equal to, or greater than the second, one bit each. If either
/// value is NaN, it is none of these.
#[derive(Clone, Copy)]
struct Outcome {
    less: u16,
    equal: u16,
    greater: u16,
}

impl Outcome {
    /// Compares the two values that `values` returns for each index in a chunk.
    #[inline(always)]
    fn of<T: PartialOrd>(needs: Needs, values: impl Fn(usize) -> (T, T)) -> Self {
        Self {
            less: if needs.less { gather(|i| values(i).0 < values(i).1) } else { 0 },
            equal: if needs.equal { gather(|i| values(i).0 == values(i).1) } else { 0 },
            greater: if needs.greater { gather(|i| values(i).0 > values(i).1) } else { 0 },
        }
    }

    /// Returns the threads for which a comparison holds.
    #[inline(always)]
    fn threads_with(self, comparison: Comparison) -> u16 {
        let Self { less, equal, greater } = self;
        match comparison {
            Comparison::Eq => equal,
            Comparison::Ne => less | greater,
            Comparison::Lt => less,
            Comparison::Le => less | equal,
            Comparison::Gt => greater,
            Comparison::Ge => greater | equal,
            Comparison::Equ => !(less | greater),
            Comparison::Neu => !equal,
            Comparison::Ltu => !(greater | equal),
            Comparison::Leu => !greater,
            Comparison::Gtu => !(less | equal),
            Comparison::Geu => !less,
            Comparison::Num => less | equal | greater,
            Comparison::Nan => !(less | equal | greater),
        }
    }
}

/// Compares values that [`converted`] returned.
#[inline(always)]
fn compare_words(kind: CompareAs, needs: Needs, a: &Words, b: &Words) -> Outcome {
    match kind {
        CompareAs::Signed | CompareAs::Unsigned | CompareAs::Signed16 | CompareAs::Unsigned16 => {
            Outcome::of(needs, |i| (a.0[i] as i32, b.0[i] as i32))
        }
        _ => Outcome::of(needs, |i| (f32::from_bits(a.0[i]), f32::from_bits(b.0[i]))),
    }
}

/// Converts integers to `i32` and numbers to `f32`, and keeps their order: then only two types need a comparison.
#[inline(always)]
fn converted(kind: CompareAs, chunk: &Words) -> Words {
    match kind {
        CompareAs::Signed | CompareAs::F32 | CompareAs::F64 => *chunk,
        CompareAs::Unsigned => chunk.map(|bits| bits ^ 1 << 31),
        CompareAs::F32Flush => chunk.map(flush_bits),
        _ => chunk.map(|bits| widened(kind, bits as u16)),
    }
}

/// Returns the bits of a 16-bit value as an `i32` or an `f32`.
#[inline(never)]
fn widened(kind: CompareAs, bits: u16) -> u32 {
    match kind {
        CompareAs::Signed16 => bits as i16 as u32,
        CompareAs::F16 => f16::from_bits(bits).to_f32().to_bits(),
        CompareAs::F16Flush => flush_half(f16::from_bits(bits)).to_f32().to_bits(),
        CompareAs::Bf16 => bf16::from_bits(bits).to_f32().to_bits(),
        _ => bits.into(),
    }
}

fn flush_half(value: f16) -> f16 {
    if value.is_normal() || value.is_nan() || value.is_infinite() { value } else { f16::ZERO }
}

#[inline(always)]
fn compare_longs(kind: CompareAs, needs: Needs, a: &Longs, b: &Longs) -> Outcome {
    match kind {
        CompareAs::F64 => Outcome::of(needs, |i| (f64::from_bits(a.0[i]), f64::from_bits(b.0[i]))),
        CompareAs::Signed => Outcome::of(needs, |i| (a.0[i] as i64, b.0[i] as i64)),
        _ => Outcome::of(needs, |i| (a.0[i], b.0[i])),
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

/// Returns the signs of a chunk's values. The compiler generates slow code for the obvious loop.
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

/// Combines the results with the third source and stores them.
#[inline(always)]
fn finish(what: &Compare, results: &[u16], files: &mut Files, mask: &[u16]) {
    if let (Some(d), None, None, BoolOp::First) = (what.d, what.c, what.complement, what.combine) {
        return files.set_predicates(d, results, mask);
    }
    for (chunk, (&bits, &active)) in results.iter().zip(mask).enumerate() {
        let with = what.c.map_or(0, |condition| files.condition(condition, chunk));
        if let Some(d) = what.d {
            files.set_predicate(d, chunk, combine(what.combine, bits, with), active);
        }
        if let Some(complement) = what.complement {
            files.set_predicate(complement, chunk, combine(what.combine, !bits, with), active);
        }
    }
}
