//! Integer Arithmetic Instructions that work on bits and bit fields.

use super::logic::words;
use super::modifiers::{Modifiers, Resolution, only_kind, operands, unsupported};
use crate::instruction::{LongOp, NarrowOp, WordOp};
use crate::opcode::Opcode;
use crate::resolved::Form;
use crate::syntax::Written;
use crate::types::Type;

/// `popc`, `clz`, `brev`, `bfind`
///
/// ```text
/// popc.type  d, a;    clz.type  d, a;    brev.type  d, a;    .type = { .b32, .b64 };
/// bfind.type  d, a;   bfind.shiftamt.type  d, a;             .type = { .u32, .u64, .s32, .s64 };
/// ```
pub(super) fn bits<'a>(opcode: Opcode, written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let kind = modifiers.kind()?;
    let finds = opcode == Opcode::Bfind;
    let shift = finds && modifiers.take("shiftamt");
    let is_allowed = match kind {
        Type::B32 | Type::B64 => !finds,
        Type::U32 | Type::U64 | Type::S32 | Type::S64 => finds,
        _ => false,
    };
    if !is_allowed {
        return modifiers.unsupported();
    }
    modifiers.finish()?;
    let [d, a] = operands(written)?;
    let narrow = match (opcode, kind.is_signed(), shift) {
        (Opcode::Popc, ..) => NarrowOp::Popc,
        (Opcode::Clz, ..) => NarrowOp::Clz,
        (_, true, false) => NarrowOp::BfindS,
        (_, false, false) => NarrowOp::BfindU,
        (_, true, true) => NarrowOp::BfindShiftS,
        (_, false, true) => NarrowOp::BfindShiftU,
    };
    let word = match (opcode, narrow) {
        (Opcode::Brev, _) => WordOp::Brev,
        (_, NarrowOp::Popc) => WordOp::Popc,
        (_, NarrowOp::Clz) => WordOp::Clz,
        (_, NarrowOp::BfindS) => WordOp::BfindS,
        (_, NarrowOp::BfindShiftS) => WordOp::BfindShiftS,
        (_, NarrowOp::BfindShiftU) => WordOp::BfindShiftU,
        _ => WordOp::BfindU,
    };
    Ok(match (kind.bits(), opcode) {
        (64, Opcode::Brev) => Form::Long { op: LongOp::Brev, kind, d, sources: vec![a] },
        (64, _) => Form::Narrow { op: narrow, kind, d, a },
        _ => Form::Word { op: word, kind, d, sources: vec![a] },
    })
}

/// `fns`: finds the n-th set bit.
///
/// ```text
/// fns.b32  d, mask, base, offset;
/// ```
pub(super) fn fns<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    match written.modifiers.as_slice() {
        ["b32"] => words::<4>(written, WordOp::Fns),
        _ => unsupported(written),
    }
}

/// `bmsk`: a mask of ones, starting at a given bit.
///
/// ```text
/// bmsk.mode.b32  d, a, b;    .mode = { .clamp, .wrap };
/// ```
pub(super) fn bmsk<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    match written.modifiers.as_slice() {
        [mode @ ("clamp" | "wrap"), "b32"] => {
            let clamp = *mode == "clamp";
            words::<3>(written, WordOp::BitMask { clamp })
        }
        _ => unsupported(written),
    }
}

/// `szext`: the low bits of a word, sign- or zero-extended.
///
/// ```text
/// szext.mode.type  d, a, b;    .mode = { .clamp, .wrap };  .type = { .u32, .s32 };
/// ```
pub(super) fn szext<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    match written.modifiers.as_slice() {
        [mode @ ("clamp" | "wrap"), kind @ ("u32" | "s32")] => {
            let (clamp, signed) = (*mode == "clamp", *kind == "s32");
            words::<3>(written, WordOp::Extend { clamp, signed })
        }
        _ => unsupported(written),
    }
}

/// `bfe`: extracts a bit field.
///
/// ```text
/// bfe.type  d, a, b, c;    .type = { .u32, .u64, .s32, .s64 };
/// ```
pub(super) fn bfe<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let kind = only_kind(written)?;
    let operands = operands(written)?;
    match kind {
        Type::U32 | Type::S32 | Type::U64 | Type::S64 => Ok(Form::Extract { kind, operands }),
        _ => unsupported(written),
    }
}

/// `bfi`: inserts a bit field.
///
/// ```text
/// bfi.type  f, a, b, c, d;    .type = { .b32, .b64 };
/// ```
pub(super) fn bfi<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let kind = only_kind(written)?;
    let operands = operands(written)?;
    match kind {
        Type::B32 | Type::B64 => Ok(Form::Insert { kind, operands }),
        _ => unsupported(written),
    }
}
