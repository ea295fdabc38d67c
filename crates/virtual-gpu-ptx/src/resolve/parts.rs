//! Instructions that work on the halves and bytes of a word.

use super::logic::words;
use super::modifiers::{Modifiers, Resolution, operands, unsupported};
use crate::instruction::{Packed, Video, VideoOp, WordOp};
use crate::opcode::Opcode;
use crate::resolved::Form;
use crate::syntax::Written;

/// Integer Arithmetic Instructions: `add`, `min`, `max` on both halves.
///
/// ```text
/// add.type   d, a, b;    .type = { .u16x2, .s16x2 };
/// min.u16x2  d, a, b;    min{.relu}.s16x2  d, a, b;
/// max.u16x2  d, a, b;    max{.relu}.s16x2  d, a, b;
/// ```
pub(super) fn pair<'a>(opcode: Opcode, written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let signed = modifiers.rest.pop() == Some("s16x2");
    let relu = modifiers.take("relu");
    modifiers.finish()?;
    let op = match (opcode, signed) {
        (Opcode::Min, true) => Packed::MinS,
        (Opcode::Max, true) => Packed::MaxS,
        _ if relu => return unsupported(written),
        (Opcode::Add, _) => Packed::Add,
        (Opcode::Min, false) => Packed::MinU,
        (Opcode::Max, false) => Packed::MaxU,
        _ => return unsupported(written),
    };
    Ok(Form::Pair { op, relu, operands: operands(written)? })
}

/// Integer Arithmetic Instructions: `dp4a`, four byte products.
///
/// ```text
/// dp4a.atype.btype  d, a, b, c;    .atype = .btype = { .u32, .s32 };
/// ```
pub(super) fn dp4a<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let [a @ ("s32" | "u32"), b @ ("s32" | "u32")] = written.modifiers.as_slice() else {
        return unsupported(written);
    };
    let signed = [*a == "s32", *b == "s32"];
    words::<4>(written, WordOp::Dp4a { signed })
}

/// Integer Arithmetic Instructions: `dp2a`, products of `a`'s halves and two of `b`'s bytes.
///
/// ```text
/// dp2a.mode.atype.btype  d, a, b, c;    .mode = { .lo, .hi };  .atype = .btype = { .u32, .s32 };
/// ```
pub(super) fn dp2a<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let [part @ ("lo" | "hi"), a @ ("s32" | "u32"), b @ ("s32" | "u32")] = written.modifiers.as_slice()
    else {
        return unsupported(written);
    };
    let (high, signed) = (*part == "hi", [*a == "s32", *b == "s32"]);
    words::<4>(written, WordOp::Dp2a { high, signed })
}

/// SIMD Video Instructions that process all parts in order, without masks or selectors.
///
/// ```text
/// vop2.dtype.atype.btype{.sat}  d, a, b, c;    vop4.dtype.atype.btype{.sat}  d, a, b, c;
/// vop2.dtype.atype.btype.add    d, a, b, c;    vop4.dtype.atype.btype.add    d, a, b, c;
/// vop2 = { vadd2, vsub2, vavrg2, vabsdiff2, vmin2, vmax2 };  vop4 = { vadd4, vsub4, vavrg4, vabsdiff4, vmin4, vmax4 };
/// .dtype = .atype = .btype = { .u32, .s32 };
/// ```
pub(super) fn video<'a>(opcode: Opcode, written: &mut Written<'a>) -> Resolution<Form<'a>> {
    use Opcode::*;
    let (op, parts) = match opcode {
        Vadd2 => (VideoOp::Add, 2),
        Vsub2 => (VideoOp::Sub, 2),
        Vavrg2 => (VideoOp::Average, 2),
        Vabsdiff2 => (VideoOp::AbsDiff, 2),
        Vmin2 => (VideoOp::Min, 2),
        Vmax2 => (VideoOp::Max, 2),
        Vadd4 => (VideoOp::Add, 4),
        Vsub4 => (VideoOp::Sub, 4),
        Vavrg4 => (VideoOp::Average, 4),
        Vabsdiff4 => (VideoOp::AbsDiff, 4),
        Vmin4 => (VideoOp::Min, 4),
        Vmax4 => (VideoOp::Max, 4),
        _ => return unsupported(written),
    };
    let [d_type, a_type, b_type, rest @ ..] = written.modifiers.as_slice() else {
        return unsupported(written);
    };
    let mut signed = [false; 3];
    for (signed, name) in signed.iter_mut().zip([d_type, a_type, b_type]) {
        *signed = match *name {
            "s32" => true,
            "u32" => false,
            _ => return unsupported(written),
        };
    }
    let (saturate, sum) = match rest {
        [] => (false, false),
        ["sat"] => (true, false),
        ["add"] => (false, true),
        _ => return unsupported(written),
    };
    words::<4>(written, WordOp::Video(Video { op, parts, signed, saturate, sum }))
}
