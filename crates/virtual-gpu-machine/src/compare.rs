//! Comparisons, selections and logic on predicates.

use half::{bf16, f16};

use super::features::vectorised;
use super::file::{Files, WIDTH};
use super::float::flush;
use virtual_gpu_ptx::instruction::{
    BoolOp, CompareAs, Comparison, Condition, NumberKind, Predicate, Slot, Value,
};

/// A comparison's sources and destinations.
#[derive(Clone, Copy)]
pub(super) struct Compare {
    pub(super) comparison: Comparison,
    pub(super) kind: CompareAs,
    pub(super) a: Value,
    pub(super) b: Value,
    pub(super) combine: BoolOp,
    pub(super) c: Option<Condition>,
    pub(super) d: Option<Predicate>,
    pub(super) complement: Option<Predicate>,
}

vectorised! {
    /// `setp` in the lanes of `mask`.
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

/// Compares anything that Rust can compare; of comparisons with NaN, those in -u and `Nan` hold.
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

/// Makes the comparison a constant of the loop over lanes.
macro_rules! each_comparison {
    ($comparison:expr, |$constant:ident| $body:expr) => {
        match $comparison {
            Comparison::Eq => {
                const $constant: Comparison = Comparison::Eq;
                $body
            }
            Comparison::Ne => {
                const $constant: Comparison = Comparison::Ne;
                $body
            }
            Comparison::Lt => {
                const $constant: Comparison = Comparison::Lt;
                $body
            }
            Comparison::Le => {
                const $constant: Comparison = Comparison::Le;
                $body
            }
            Comparison::Gt => {
                const $constant: Comparison = Comparison::Gt;
                $body
            }
            Comparison::Ge => {
                const $constant: Comparison = Comparison::Ge;
                $body
            }
            Comparison::Equ => {
                const $constant: Comparison = Comparison::Equ;
                $body
            }
            Comparison::Neu => {
                const $constant: Comparison = Comparison::Neu;
                $body
            }
            Comparison::Ltu => {
                const $constant: Comparison = Comparison::Ltu;
                $body
            }
            Comparison::Leu => {
                const $constant: Comparison = Comparison::Leu;
                $body
            }
            Comparison::Gtu => {
                const $constant: Comparison = Comparison::Gtu;
                $body
            }
            Comparison::Geu => {
                const $constant: Comparison = Comparison::Geu;
                $body
            }
            Comparison::Num => {
                const $constant: Comparison = Comparison::Num;
                $body
            }
            Comparison::Nan => {
                const $constant: Comparison = Comparison::Nan;
                $body
            }
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
    for (chunk, &lanes) in mask.iter().enumerate() {
        if lanes == 0 {
            continue;
        }
        let (x, y) = (&files.words[a.at(chunk)], &files.words[b.at(chunk)]);
        let bits = gather(|lane| f(x.0[lane], y.0[lane]));
        finish(what, files, chunk, bits, lanes);
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
    for (chunk, &lanes) in mask.iter().enumerate() {
        if lanes == 0 {
            continue;
        }
        let (x, y) = (&files.longs[a.at(chunk)], &files.longs[b.at(chunk)]);
        let bits = gather(|lane| f(x.0[lane], y.0[lane]));
        finish(what, files, chunk, bits, lanes);
    }
}

/// A chunk's answers, one bit each.
#[inline(always)]
fn gather(holds: impl Fn(usize) -> bool) -> u16 {
    let mut answers = [0; WIDTH];
    for (lane, answer) in answers.iter_mut().enumerate() {
        *answer = if holds(lane) { -1 } else { 0 };
    }
    sign_bits(answers)
}

/// The signs of a chunk's values. The compiler makes nothing good of the plain loop.
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

/// The signs of a chunk's values.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn sign_bits(values: [i32; WIDTH]) -> u16 {
    values.iter().rev().fold(0, |bits, &value| bits << 1 | u16::from(value < 0))
}

/// Combines a chunk's answers with the third source and stores them.
#[inline(always)]
fn finish(what: Compare, files: &mut Files, chunk: usize, bits: u16, lanes: u16) {
    let with = what.c.map_or(0, |condition| files.condition(condition, chunk));
    if let Some(d) = what.d {
        files.set_predicate(d, chunk, logic_bits(what.combine, bits, with), lanes);
    }
    if let Some(complement) = what.complement {
        files.set_predicate(complement, chunk, logic_bits(what.combine, !bits, with), lanes);
    }
}

fn logic_bits(op: BoolOp, a: u16, b: u16) -> u16 {
    match op {
        BoolOp::And => a & b,
        BoolOp::Or => a | b,
        BoolOp::Xor => a ^ b,
        BoolOp::First => a,
    }
}

/// `and.pred` and its kin.
pub(super) fn logic(op: BoolOp, files: &mut Files, mask: &[u16], d: Predicate, [a, b]: [Condition; 2]) {
    for (chunk, &lanes) in mask.iter().enumerate() {
        let bits = logic_bits(op, files.condition(a, chunk), files.condition(b, chunk));
        files.set_predicate(d, chunk, bits, lanes);
    }
}

vectorised! {
    /// `selp` on 32 bits.
    fn select_words(files: &mut Files, mask: &[u16], slots: [Slot; 3], condition: Condition) = select_words_body
}

#[inline(always)]
fn select_words_body(files: &mut Files, mask: &[u16], [d, a, b]: [Slot; 3], condition: Condition) {
    let (d, a, b) = (files.word(d), files.word(a), files.word(b));
    for (chunk, &lanes) in mask.iter().enumerate() {
        let yes = files.condition(condition, chunk);
        let mut result = files.words[b.at(chunk)];
        let chosen = files.words[a.at(chunk)];
        result.take(chosen, yes);
        files.words[d.at(chunk)].take(result, lanes);
    }
}

vectorised! {
    /// `selp` on 64 bits.
    fn select_longs(files: &mut Files, mask: &[u16], slots: [Slot; 3], condition: Condition) = select_longs_body
}

#[inline(always)]
fn select_longs_body(files: &mut Files, mask: &[u16], [d, a, b]: [Slot; 3], condition: Condition) {
    let (d, a, b) = (files.long(d), files.long(a), files.long(b));
    for (chunk, &lanes) in mask.iter().enumerate() {
        let yes = files.condition(condition, chunk);
        let mut result = files.longs[b.at(chunk)];
        let chosen = files.longs[a.at(chunk)];
        result.take(chosen, yes);
        files.longs[d.at(chunk)].take(result, lanes);
    }
}

/// `testp`
pub(super) fn test_number(kind: NumberKind, files: &mut Files, mask: &[u16], d: Predicate, a: Value) {
    for (chunk, &lanes) in mask.iter().enumerate() {
        let mut bits = 0_u16;
        for lane in super::file::bits(lanes) {
            let class = match a {
                Value::Word(a) => f32::from_bits(files.words[files.word(a).at(chunk)].0[lane]).classify(),
                Value::Long(a) => f64::from_bits(files.longs[files.long(a).at(chunk)].0[lane]).classify(),
            };
            bits |= u16::from(is_kind(kind, class)) << lane;
        }
        files.set_predicate(d, chunk, bits, lanes);
    }
}

fn is_kind(kind: NumberKind, class: std::num::FpCategory) -> bool {
    use std::num::FpCategory::{Infinite, Nan, Normal, Subnormal, Zero};
    match kind {
        NumberKind::Finite => matches!(class, Normal | Subnormal | Zero),
        NumberKind::Infinite => class == Infinite,
        NumberKind::Number => class != Nan,
        NumberKind::NotANumber => class == Nan,
        // Zero counts as normal here.
        NumberKind::Normal => matches!(class, Normal | Zero),
        NumberKind::Subnormal => class == Subnormal,
    }
}
