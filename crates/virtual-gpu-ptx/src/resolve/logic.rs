//! Logic and Shift Instructions.

use super::modifiers::{Resolution, only_kind, operands, unsupported, wrong_number};
use crate::instruction::{BoolOp, LongOp, WordOp};
use crate::opcode::Opcode;
use crate::resolved::Form;
use crate::syntax::{Operand, Written};
use crate::types::Type;

/// `and`, `or`, `xor`, `not`, `cnot`
///
/// ```text
/// and.type  d, a, b;    or.type  d, a, b;    xor.type  d, a, b;    not.type  d, a;
/// .type = { .pred, .b16, .b32, .b64 };
/// cnot.type  d, a;      .type = { .b16, .b32, .b64 };
/// ```
pub(super) fn logic<'a>(opcode: Opcode, written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let kind = only_kind(written)?;
    if !matches!(kind, Type::Pred | Type::B16 | Type::B32 | Type::B64) {
        return unsupported(written);
    }
    let (word, long, predicate) = match opcode {
        Opcode::And => (WordOp::And, LongOp::And, Some(BoolOp::And)),
        Opcode::Or => (WordOp::Or, LongOp::Or, Some(BoolOp::Or)),
        Opcode::Xor => (WordOp::Xor, LongOp::Xor, Some(BoolOp::Xor)),
        Opcode::Not => (WordOp::Not, LongOp::Not, Some(BoolOp::First)),
        _ => (WordOp::Cnot, LongOp::Cnot, None),
    };
    let mut operands = std::mem::take(&mut written.operands);
    let has_one_source = matches!(opcode, Opcode::Not | Opcode::Cnot);
    if operands.len() != if has_one_source { 2 } else { 3 } {
        return wrong_number(written);
    }
    let d = operands.remove(0);
    if has_one_source {
        operands.push(operands[0].clone());
    }
    let sources = operands;
    Ok(match (kind, predicate) {
        (Type::Pred, Some(op)) => {
            let [a, b] = two(sources);
            Form::Logic { op, negates: opcode == Opcode::Not, d, a, b }
        }
        (Type::Pred, None) => return unsupported(written),
        (Type::B64, _) => Form::Long { op: long, kind, d, sources },
        (Type::B16, _) => Form::Half { op: word, kind, d, sources },
        _ => Form::Word { op: word, kind, d, sources },
    })
}

/// Returns the first two operands.
fn two(sources: Vec<Operand<'_>>) -> [Operand<'_>; 2] {
    let mut sources = sources.into_iter();
    std::array::from_fn(|_| sources.next().unwrap_or(Operand::Sink))
}

/// `shl`, `shr`: amounts greater than the width are treated as the width.
///
/// ```text
/// shl.type  d, a, b;    .type = { .b16, .b32, .b64 };
/// shr.type  d, a, b;    .type = { .b16, .b32, .b64, .u16, .u32, .u64, .s16, .s32, .s64 };
/// ```
pub(super) fn shift<'a>(opcode: Opcode, written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let kind = only_kind(written)?;
    let left = opcode == Opcode::Shl;
    match kind {
        Type::B16 | Type::B32 | Type::B64 => {}
        Type::U16 | Type::U32 | Type::U64 | Type::S16 | Type::S32 | Type::S64 if !left => {}
        _ => return unsupported(written),
    }
    Ok(Form::Shift { left, kind, operands: operands(written)? })
}

/// `shf`: shifts a pair of words.
///
/// ```text
/// shf.l.mode.b32  d, a, b, c;    shf.r.mode.b32  d, a, b, c;    .mode = { .clamp, .wrap };
/// ```
pub(super) fn shf<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let op = match written.modifiers.as_slice() {
        ["l", "wrap", "b32"] => WordOp::ShfLeftWrap,
        ["l", "clamp", "b32"] => WordOp::ShfLeftClamp,
        ["r", "wrap", "b32"] => WordOp::ShfRightWrap,
        ["r", "clamp", "b32"] => WordOp::ShfRightClamp,
        _ => return unsupported(written),
    };
    words::<4>(written, op)
}

/// `lop3`: any function of three bits.
///
/// ```text
/// lop3.b32  d, a, b, c, immLut;
/// ```
pub(super) fn lop3<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let (["b32"], [.., Operand::Integer(table @ 0..256)], 5) =
        (written.modifiers.as_slice(), written.operands.as_slice(), written.operands.len())
    else {
        return unsupported(written);
    };
    let op = WordOp::Lop3(*table as u8);
    written.operands.pop();
    words::<4>(written, op)
}

/// Resolves a word operation with `N` operands.
pub(super) fn words<'a, const N: usize>(written: &mut Written<'a>, op: WordOp) -> Resolution<Form<'a>> {
    let mut operands = operands::<N>(written)?.into_iter();
    let d = operands.next().unwrap_or(Operand::Sink);
    Ok(Form::Word { op, kind: Type::B32, d, sources: operands.collect() })
}
