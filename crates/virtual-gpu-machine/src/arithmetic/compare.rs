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
    let how = Related::of(what.comparison);
    match (what.a, what.b) {
        (Value::Long(a), Value::Long(b)) => compare_longs(what, how, files, mask, how.order([a, b])),
        (Value::Word(a), Value::Word(b)) => compare_words(what, how, files, mask, how.order([a, b])),
        _ => {}
    }
}

/// A relation between two values. If either value is NaN, no relation holds.
#[derive(Clone, Copy)]
enum Relation {
    Equal,
    Less,
    LessOrEqual,
    LessOrGreater,
    /// Neither value is NaN.
    Ordered,
}

impl Relation {
    #[inline(always)]
    fn holds<T: PartialOrd>(self, a: T, b: T) -> bool {
        match self {
            Self::Equal => a == b,
            Self::Less => a < b,
            Self::LessOrEqual => a <= b,
            Self::LessOrGreater => (a < b) | (a > b),
            Self::Ordered => a.partial_cmp(&b).is_some(),
        }
    }
}

/// A comparison expressed as a relation, so that only a few loops need to be compiled.
#[derive(Clone, Copy)]
struct Related {
    relation: Relation,
    /// Whether the relation's first value is the second source.
    swapped: bool,
    /// Whether the comparison holds where the relation doesn't. Such a comparison also holds for NaN.
    inverted: bool,
}

impl Related {
    #[inline(always)]
    fn of(comparison: Comparison) -> Self {
        let (relation, swapped, inverted) = match comparison {
            Comparison::Eq => (Relation::Equal, false, false),
            Comparison::Ne => (Relation::LessOrGreater, false, false),
            Comparison::Lt => (Relation::Less, false, false),
            Comparison::Le => (Relation::LessOrEqual, false, false),
            Comparison::Gt => (Relation::Less, true, false),
            Comparison::Ge => (Relation::LessOrEqual, true, false),
            Comparison::Equ => (Relation::LessOrGreater, false, true),
            Comparison::Neu => (Relation::Equal, false, true),
            Comparison::Ltu => (Relation::LessOrEqual, true, true),
            Comparison::Leu => (Relation::Less, true, true),
            Comparison::Gtu => (Relation::LessOrEqual, false, true),
            Comparison::Geu => (Relation::Less, false, true),
            Comparison::Num => (Relation::Ordered, false, false),
            Comparison::Nan => (Relation::Ordered, false, true),
        };
        Self { relation, swapped, inverted }
    }

    /// Returns a comparison's sources in the order of the relation's values.
    #[inline(always)]
    fn order(&self, [a, b]: [Slot; 2]) -> [Slot; 2] {
        if self.swapped { [b, a] } else { [a, b] }
    }
}

/// Makes the relation a constant in the loop over threads.
macro_rules! each_relation {
    ($relation:expr, |$constant:ident| $body:expr) => {
        each_relation!(@ $relation, $constant, $body, Equal Less LessOrEqual LessOrGreater Ordered)
    };
    (@ $relation:expr, $constant:ident, $body:expr, $($name:ident)*) => {
        match $relation {
            $(Relation::$name => {
                const $constant: Relation = Relation::$name;
                $body
            })*
        }
    };
}

fn flush_half(value: f16) -> f16 {
    if value.is_normal() || value.is_nan() || value.is_infinite() { value } else { f16::ZERO }
}

#[inline(always)]
fn compare_words(what: Compare, how: Related, files: &mut Files, mask: &[u16], [a, b]: [Slot; 2]) {
    let (a, b) = (files.word(a), files.word(b));
    macro_rules! run {
        ($convert:expr) => {
            each_relation!(how.relation, |RELATION| for (chunk, &active) in mask.iter().enumerate() {
                if active == 0 {
                    continue;
                }
                let (x, y) = (&files.words[a.at(chunk)].0, &files.words[b.at(chunk)].0);
                let convert = $convert;
                let bits = gather(|i| RELATION.holds(convert(x[i]), convert(y[i])));
                finish(&what, how.inverted, files, chunk, bits, active);
            })
        };
    }
    match what.kind {
        CompareAs::Signed => run!(|bits| bits as i32),
        CompareAs::Unsigned => run!(|bits: u32| bits),
        CompareAs::F32 => run!(f32::from_bits),
        CompareAs::F32Flush => run!(|bits| flush(f32::from_bits(bits))),
        CompareAs::Signed16 => run!(|bits| bits as u16 as i16),
        CompareAs::Unsigned16 => run!(|bits| bits as u16),
        CompareAs::F16 => run!(|bits| f16::from_bits(bits as u16).to_f32()),
        CompareAs::F16Flush => run!(|bits| flush_half(f16::from_bits(bits as u16)).to_f32()),
        CompareAs::Bf16 => run!(|bits| bf16::from_bits(bits as u16).to_f32()),
        CompareAs::F64 => {}
    }
}

#[inline(always)]
fn compare_longs(what: Compare, how: Related, files: &mut Files, mask: &[u16], [a, b]: [Slot; 2]) {
    let (a, b) = (files.long(a), files.long(b));
    macro_rules! run {
        ($convert:expr) => {
            each_relation!(how.relation, |RELATION| for (chunk, &active) in mask.iter().enumerate() {
                if active == 0 {
                    continue;
                }
                let (x, y) = (&files.longs[a.at(chunk)].0, &files.longs[b.at(chunk)].0);
                let convert = $convert;
                let bits = gather(|i| RELATION.holds(convert(x[i]), convert(y[i])));
                finish(&what, how.inverted, files, chunk, bits, active);
            })
        };
    }
    match what.kind {
        CompareAs::Signed => run!(|bits| bits as i64),
        CompareAs::F64 => run!(f64::from_bits),
        _ => run!(|bits: u64| bits),
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

/// Combines a chunk's results with the third source and stores them.
#[inline(always)]
fn finish(what: &Compare, inverted: bool, files: &mut Files, chunk: usize, bits: u16, active: u16) {
    let bits = if inverted { !bits } else { bits };
    let with = what.c.map_or(0, |condition| files.condition(condition, chunk));
    if let Some(d) = what.d {
        files.set_predicate(d, chunk, combine(what.combine, bits, with), active);
    }
    if let Some(complement) = what.complement {
        files.set_predicate(complement, chunk, combine(what.combine, !bits, with), active);
    }
}
