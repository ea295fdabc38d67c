//! Predicate logic, and tests for number classes.

use crate::mask::bits;
use crate::registers::Files;
use virtual_gpu_ptx::instruction::{BoolOp, Condition, NumberKind, Predicate, Value};

/// Applies `op` to the predicates of a chunk.
pub(super) fn combine(op: BoolOp, a: u16, b: u16) -> u16 {
    match op {
        BoolOp::And => a & b,
        BoolOp::Or => a | b,
        BoolOp::Xor => a ^ b,
        BoolOp::First => a,
    }
}

/// Executes `and.pred` to `not.pred`.
pub(crate) fn logic(op: BoolOp, files: &mut Files, mask: &[u16], d: Predicate, [a, b]: [Condition; 2]) {
    for (chunk, &active) in mask.iter().enumerate() {
        let result = combine(op, files.condition(a, chunk), files.condition(b, chunk));
        files.set_predicate(d, chunk, result, active);
    }
}

/// `testp`
pub(crate) fn test_number(kind: NumberKind, files: &mut Files, mask: &[u16], d: Predicate, a: Value) {
    for (chunk, &active) in mask.iter().enumerate() {
        let mut found = 0_u16;
        for i in bits(active) {
            let class = match a {
                Value::Word(a) => f32::from_bits(files.words[files.word(a).at(chunk)].0[i]).classify(),
                Value::Long(a) => f64::from_bits(files.longs[files.long(a).at(chunk)].0[i]).classify(),
            };
            found |= u16::from(is_kind(kind, class)) << i;
        }
        files.set_predicate(d, chunk, found, active);
    }
}

fn is_kind(kind: NumberKind, class: std::num::FpCategory) -> bool {
    use std::num::FpCategory::{Infinite, Nan, Normal, Subnormal, Zero};
    match kind {
        NumberKind::Finite => matches!(class, Normal | Subnormal | Zero),
        NumberKind::Infinite => class == Infinite,
        NumberKind::Number => class != Nan,
        NumberKind::NotANumber => class == Nan,
        // Zero is treated as normal here.
        NumberKind::Normal => matches!(class, Normal | Zero),
        NumberKind::Subnormal => class == Subnormal,
    }
}
