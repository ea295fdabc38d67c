//! Data Movement and Conversion Instructions between registers.

use super::logic::words;
use super::memory::space_named;
use super::modifiers::{Modifiers, Resolution, only_kind, operands, unsupported};
use crate::instruction::{PermuteMode, Space, WordOp};
use crate::resolved::{Form, Vector};
use crate::syntax::{Operand, Written};
use crate::types::Type;
use crate::window;

/// `mov`: copies, packs, unpacks, reads special registers, and takes addresses.
///
/// ```text
/// mov.type  d, a;       mov.type  d, sreg;
/// mov.type  d, avar;    mov.type  d, avar+imm;    mov.u64  d, fname;
/// .type = { .pred, .b16, .b32, .b64, .u16, .u32, .u64, .s16, .s32, .s64, .f32, .f64 };
///
/// mov.type  d, a;       .type = { .b32, .b64 };  d or a is a vector of 2 or 4 elements
/// ```
pub(super) fn mov<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let kind = only_kind(written)?;
    let [d, a] = operands(written)?;
    let is_vector = matches!((&d, &a), (Operand::Vector(_), _) | (_, Operand::Vector(_)));
    let is_bits = matches!(kind, Type::B32 | Type::B64);
    let is_number = match kind {
        Type::Pred | Type::F32 | Type::F64 => true,
        kind => !kind.is_float() && kind.bits() > 8,
    };
    if if is_vector { !is_bits } else { !is_number } {
        return unsupported(written);
    }
    let form = match (d, a) {
        (Operand::Vector(parts), a) => {
            vector(parts, kind.bits()).map(|parts| Form::Unpack { kind, parts, a })
        }
        (d, Operand::Vector(parts)) => vector(parts, kind.bits()).map(|parts| Form::Pack { d, parts }),
        (d, a) => Some(Form::Move { kind, d, a }),
    };
    form.map_or_else(|| unsupported(written), Ok)
}

/// Returns the parts of a `bits`-bit register.
fn vector(parts: Vec<Operand<'_>>, bits: u8) -> Option<Vector<'_>> {
    match (bits, parts.len()) {
        (64, 2) => parts.try_into().ok().map(Vector::Halves32),
        (32, 2) => parts.try_into().ok().map(Vector::Halves16),
        (64, 4) => parts.try_into().ok().map(Vector::Quarters16),
        _ => None,
    }
}

/// `prmt`: a selector for each byte, or one of the modes.
///
/// ```text
/// prmt.b32{.mode}  d, a, b, c;    .mode = { .f4e, .b4e, .rc8, .ecl, .ecr, .rc16 };
/// ```
pub(super) fn prmt<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let op = match written.modifiers.as_slice() {
        ["b32"] => WordOp::Prmt,
        ["b32", mode] => WordOp::PrmtMode(match *mode {
            "f4e" => PermuteMode::Forward,
            "b4e" => PermuteMode::Backward,
            "rc8" => PermuteMode::Replicate8,
            "ecl" => PermuteMode::ClampLeft,
            "ecr" => PermuteMode::ClampRight,
            "rc16" => PermuteMode::Replicate16,
            _ => return unsupported(written),
        }),
        _ => return unsupported(written),
    };
    words::<4>(written, op)
}

/// `cvta`: converts between a generic address and an address in a state space.
///
/// ```text
/// cvta.space.size  p, a;    cvta.space.size  p, var;    cvta.space.size  p, var+imm;    cvta.to.space.size  p, a;
/// .space = { .const, .global, .local, .shared{::cta, ::cluster}, .param{::entry} };  .size = { .u64 };
/// ```
pub(super) fn cvta<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let to_space = modifiers.rest.first() == Some(&"to") && modifiers.take("to");
    let kind = modifiers.kind()?;
    let base = modifiers.choose(|name| match name {
        "global" | "const" => Some(0),
        "shared" | "shared::cta" | "shared::cluster" => Some(window::SHARED),
        "local" => Some(window::LOCAL),
        "param" | "param::entry" => Some(window::PARAM),
        _ => None,
    });
    let (Some(base), Type::U64) = (base, kind) else { return modifiers.unsupported() };
    modifiers.finish()?;
    let base = if to_space { base.wrapping_neg() } else { base };
    Ok(Form::ConvertAddress { base, kind, operands: operands(written)? })
}

/// `isspacep`: tests whether a generic address is in a state space.
///
/// ```text
/// isspacep.space  p, a;    .space = { .const, .global, .local, .shared{::cta, ::cluster}, .param{::entry} };
/// ```
pub(super) fn isspacep<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let in_cluster = modifiers.take("shared::cluster");
    let space = match in_cluster {
        true => Some(Space::Shared),
        false => modifiers.choose(|name| space_named(name).filter(|_| name != "param::func")),
    };
    let Some(space) = space else { return unsupported(written) };
    modifiers.finish()?;
    Ok(Form::IsSpace { space, in_cluster, operands: operands(written)? })
}
