//! Integer Arithmetic Instructions.

use super::modifiers::{Modifiers, Resolution, destination_and_sources, operands, unsupported};
use crate::instruction::{LongOp, WordOp};
use crate::opcode::Opcode;
use crate::resolved::Form;
use crate::syntax::{Operand, Written};
use crate::types::Type;

/// A part of a product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Low,
    High,
    Wide,
}

/// `add`, `sub`, `mul`, `mad`, `mul24`, `sad`, `div`, `rem`, `abs`, `neg`, `min`, `max`
///
/// ```text
/// add.type  d, a, b;    add{.sat}.s32  d, a, b;
/// sub.type  d, a, b;    sub{.sat}.s32  d, a, b;
/// mul.mode.type    d, a, b;           .mode = { .hi, .lo, .wide };
/// mad.mode.type    d, a, b, c;        .mode = { .hi, .lo, .wide };    mad.hi.sat.s32  d, a, b, c;
/// mul24.mode.type  d, a, b;           .mode = { .hi, .lo };  .type = { .u32, .s32 };
/// sad.type  d, a, b, c;
/// div.type  d, a, b;    rem.type  d, a, b;
/// abs.type  d, a;       neg.type  d, a;             .type = { .s16, .s32, .s64 };
/// min.type  d, a, b;    min{.relu}.s32  d, a, b;
/// max.type  d, a, b;    max{.relu}.s32  d, a, b;
/// .type = { .u16, .u32, .u64, .s16, .s32, .s64 };
/// ```
pub(super) fn integer<'a>(opcode: Opcode, written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let kind = modifiers.kind()?;
    let saturated = modifiers.take("sat");
    let part = modifiers.choose(|name| match name {
        "lo" => Some(Part::Low),
        "hi" => Some(Part::High),
        "wide" => Some(Part::Wide),
        _ => None,
    });
    let relu = matches!(opcode, Opcode::Min | Opcode::Max) && modifiers.take("relu");
    let is_allowed = match kind {
        Type::S32 => true,
        Type::U32 => !saturated && !relu,
        Type::U16 | Type::U64 | Type::S16 | Type::S64 => !saturated && !relu && opcode != Opcode::Mul24,
        _ => false,
    };
    if !is_allowed {
        return modifiers.unsupported();
    }
    modifiers.finish()?;
    if let Some((first, second)) = two_steps(opcode, kind, part, saturated, relu) {
        let operands = if relu {
            let [d, a, b] = operands(written)?;
            [d, a, b, Operand::Integer(0)]
        } else {
            operands(written)?
        };
        return Ok(Form::Chain { first, second, kind, operands });
    }
    let count = match opcode {
        Opcode::Abs | Opcode::Neg => 1,
        Opcode::Mad | Opcode::Sad => 3,
        _ => 2,
    };
    let (d, sources) = destination_and_sources(written, count)?;
    if part == Some(Part::Wide) {
        return match (opcode, kind.bits()) {
            (Opcode::Mul | Opcode::Mad, 16 | 32) => Ok(Form::WideProduct { kind, d, sources }),
            _ => unsupported(written),
        };
    }
    let form = match kind.bits() {
        64 => long_op(opcode, kind.is_signed(), part).map(|op| Form::Long { op, kind, d, sources }),
        16 => word_op(opcode, kind, part, saturated).map(|op| Form::Half { op, kind, d, sources }),
        _ => word_op(opcode, kind, part, saturated).map(|op| Form::Word { op, kind, d, sources }),
    };
    form.map_or_else(|| unsupported(written), Ok)
}

/// Returns an operation and a second operation, which takes the first one's result and the last operand.
fn two_steps(
    opcode: Opcode,
    kind: Type,
    part: Option<Part>,
    saturated: bool,
    relu: bool,
) -> Option<(WordOp, WordOp)> {
    use Opcode::{Mad, Max, Min};
    match (opcode, part, kind.bits()) {
        (Mad, Some(Part::High), 32) if saturated => Some((WordOp::MulHighS, WordOp::AddSaturated)),
        (Mad, Some(Part::High), 16) => Some((WordOp::MulHigh16, WordOp::Add)),
        (Min, None, _) if relu => Some((WordOp::MinS, WordOp::MaxS)),
        (Max, None, _) if relu => Some((WordOp::MaxS, WordOp::MaxS)),
        _ => None,
    }
}

fn word_op(opcode: Opcode, kind: Type, part: Option<Part>, saturated: bool) -> Option<WordOp> {
    use Opcode::*;
    let is_half = kind.bits() == 16;
    Some(match (opcode, part, kind.is_signed()) {
        (Add, None, _) if saturated => WordOp::AddSaturated,
        (Sub, None, _) if saturated => WordOp::SubSaturated,
        _ if saturated => return None,
        (Add, None, _) => WordOp::Add,
        (Sub, None, _) => WordOp::Sub,
        (Mul, Some(Part::Low), _) => WordOp::Mul,
        (Mul, Some(Part::High), _) if is_half => WordOp::MulHigh16,
        (Mul, Some(Part::High), true) => WordOp::MulHighS,
        (Mul, Some(Part::High), false) => WordOp::MulHighU,
        (Mad, Some(Part::Low), _) => WordOp::Mad,
        (Mad, Some(Part::High), true) => WordOp::MadHighS,
        (Mad, Some(Part::High), false) => WordOp::MadHighU,
        (Mul24, Some(Part::Low), true) => WordOp::Mul24S,
        (Mul24, Some(Part::Low), false) => WordOp::Mul24U,
        (Mul24, Some(Part::High), true) => WordOp::Mul24HighS,
        (Mul24, Some(Part::High), false) => WordOp::Mul24HighU,
        (Div, None, true) => WordOp::DivS,
        (Div, None, false) => WordOp::DivU,
        (Rem, None, true) => WordOp::RemS,
        (Rem, None, false) => WordOp::RemU,
        (Min, None, true) => WordOp::MinS,
        (Min, None, false) => WordOp::MinU,
        (Max, None, true) => WordOp::MaxS,
        (Max, None, false) => WordOp::MaxU,
        (Sad, None, true) => WordOp::SadS,
        (Sad, None, false) => WordOp::SadU,
        (Abs, None, true) => WordOp::Abs,
        (Neg, None, true) => WordOp::Neg,
        _ => return None,
    })
}

fn long_op(opcode: Opcode, signed: bool, part: Option<Part>) -> Option<LongOp> {
    use Opcode::*;
    Some(match (opcode, part, signed) {
        (Add, None, _) => LongOp::Add,
        (Sub, None, _) => LongOp::Sub,
        (Mul, Some(Part::Low), _) => LongOp::Mul,
        (Mul, Some(Part::High), true) => LongOp::MulHighS,
        (Mul, Some(Part::High), false) => LongOp::MulHighU,
        (Mad, Some(Part::Low), _) => LongOp::Mad,
        (Mad, Some(Part::High), true) => LongOp::MadHighS,
        (Mad, Some(Part::High), false) => LongOp::MadHighU,
        (Div, None, true) => LongOp::DivS,
        (Div, None, false) => LongOp::DivU,
        (Rem, None, true) => LongOp::RemS,
        (Rem, None, false) => LongOp::RemU,
        (Min, None, true) => LongOp::MinS,
        (Min, None, false) => LongOp::MinU,
        (Max, None, true) => LongOp::MaxS,
        (Max, None, false) => LongOp::MaxU,
        (Sad, None, true) => LongOp::SadS,
        (Sad, None, false) => LongOp::SadU,
        (Abs, None, true) => LongOp::Abs,
        (Neg, None, true) => LongOp::Neg,
        _ => return None,
    })
}

/// `mad24`
///
/// ```text
/// mad24.mode.type    d, a, b, c;      .mode = { .hi, .lo };  .type = { .u32, .s32 };
/// mad24.hi.sat.s32   d, a, b, c;
/// ```
pub(super) fn mad24<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let (first, second) = match written.modifiers.as_slice() {
        ["lo", "s32"] => (WordOp::Mul24S, WordOp::Add),
        ["lo", "u32"] => (WordOp::Mul24U, WordOp::Add),
        ["hi", "s32"] => (WordOp::Mul24HighS, WordOp::Add),
        ["hi", "u32"] => (WordOp::Mul24HighU, WordOp::Add),
        ["hi", "sat", "s32"] => (WordOp::Mul24HighS, WordOp::AddSaturated),
        _ => return unsupported(written),
    };
    Ok(Form::Chain { first, second, kind: Type::B32, operands: operands(written)? })
}
