//! Data Movement and Conversion Instructions: `cvt`.

use super::float::{float_type, rounding};
use super::modifiers::{Modifiers, Resolution, destination_and_sources, operands, unsupported};
use crate::instruction::{Conversion, FloatMode, Fp8, IntegerType, Rounding, WordOp};
use crate::resolved::Form;
use crate::syntax::Written;
use crate::types::Type;

fn integer_type(kind: Type) -> Option<IntegerType> {
    if kind.is_float() || matches!(kind, Type::Pred | Type::B8 | Type::B16 | Type::B32 | Type::B64) {
        return None;
    }
    Some(IntegerType { bits: kind.bits(), signed: kind.is_signed() })
}

/// Returns the rounding to an integer that a modifier specifies.
fn integer_rounding(name: &str) -> Option<Rounding> {
    Some(match name {
        "rni" => Rounding::Nearest,
        "rzi" => Rounding::Zero,
        "rmi" => Rounding::Down,
        "rpi" => Rounding::Up,
        _ => return None,
    })
}

/// `cvt`
///
/// ```text
/// cvt{.irnd}{.ftz}{.sat}.dtype.atype  d, a;    .irnd = { .rni, .rzi, .rmi, .rpi };
/// cvt{.frnd}{.ftz}{.sat}.dtype.atype  d, a;    .frnd = { .rn, .rz, .rm, .rp };
/// cvt.frnd2{.relu}.f16.f32    d, a;            cvt.frnd2{.relu}.bf16.f32    d, a;
/// cvt.frnd2{.relu}.f16x2.f32  d, a, b;         cvt.frnd2{.relu}.bf16x2.f32  d, a, b;
/// cvt.rna.tf32.f32            d, a;            .frnd2 = { .rn, .rz };
/// .dtype = .atype = { .u8, .u16, .u32, .u64, .s8, .s16, .s32, .s64, .bf16, .f16, .f32, .f64 };
/// ```
pub(super) fn cvt<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    if let ["rna", "tf32", "f32"] = written.modifiers.as_slice() {
        let [d, a] = operands(written)?;
        return Ok(Form::Word { op: WordOp::RoundToTf32, kind: Type::F32, d, sources: vec![a] });
    }
    if let [.., to, from] = written.modifiers.as_slice()
        && (fp8(to).is_some() || fp8(from).is_some())
    {
        return cvt_fp8(written);
    }
    let mut modifiers = Modifiers::of(written);
    let from = modifiers.kind()?;
    let to = modifiers.kind()?;
    let mode = FloatMode {
        flush: modifiers.take("ftz"),
        saturate: modifiers.take("sat"),
        relu: modifiers.take("relu"),
        rounding: Rounding::Nearest,
    };
    let to_integer = modifiers.choose(integer_rounding);
    let rounded = modifiers.choose(rounding);
    modifiers.finish()?;
    let is_second_form = from == Type::F32
        && matches!(rounded, Some(Rounding::Nearest | Rounding::Zero))
        && to_integer.is_none()
        && !mode.flush
        && !mode.saturate;
    if let Some(half) = to.half().and_then(float_type) {
        let (true, Some(rounding)) = (is_second_form, rounded) else { return unsupported(written) };
        return Ok(Form::ConvertToPair { to: half, rounding, mode, operands: operands(written)? });
    }
    if mode.relu && !(is_second_form && matches!(to, Type::F16 | Type::Bf16))
        || mode.flush && from != Type::F32 && to != Type::F32
        || mode.saturate && (to == Type::Bf16 || holds_all(from, to))
        || !may_round(from, to, to_integer.is_some(), rounded.is_some())
    {
        return unsupported(written);
    }
    let operands = operands(written)?;
    if let (Some(from_type), Some(to), false) = (integer_type(from), integer_type(to), mode.saturate) {
        return Ok(Form::ConvertInteger { kind: from, from: from_type, to, operands });
    }
    match conversion(from, to, mode, to_integer, rounded) {
        Some(conversion) => Ok(Form::Convert { conversion, from, to, operands }),
        None => unsupported(written),
    }
}

/// Returns the format of a pair of bytes.
fn fp8(name: &str) -> Option<Fp8> {
    match name {
        "e4m3x2" => Some(Fp8::E4m3),
        "e5m2x2" => Some(Fp8::E5m2),
        _ => None,
    }
}

/// `cvt`, to or from a pair of 8-bit floating-point numbers
///
/// ```text
/// cvt.rn.satfinite{.relu}.f8x2type.f32    d, a, b;
/// cvt.rn.satfinite{.relu}.f8x2type.f16x2  d, a;
/// cvt.rn{.relu}.f16x2.f8x2type            d, a;
/// .f8x2type = { .e4m3x2, .e5m2x2 };
/// ```
fn cvt_fp8<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let (from, to) = (modifiers.rest.pop().unwrap_or(""), modifiers.rest.pop().unwrap_or(""));
    let (relu, saturates) = (modifiers.take("relu"), modifiers.take("satfinite"));
    if !modifiers.take("rn") {
        return unsupported(written);
    }
    modifiers.finish()?;
    match (fp8(to), fp8(from)) {
        (Some(to), None) if saturates => {
            let count = match from {
                "f32" => 2,
                "f16x2" => 1,
                _ => return unsupported(written),
            };
            let (d, sources) = destination_and_sources(written, count)?;
            Ok(Form::ConvertToFp8 { to, relu, d, sources })
        }
        (None, Some(from)) if to == "f16x2" && !saturates => {
            Ok(Form::ConvertFromFp8 { from, relu, operands: operands(written)? })
        }
        _ => unsupported(written),
    }
}

/// Returns whether a conversion accepts these roundings: none if the result is exact, exactly one otherwise.
fn may_round(from: Type, to: Type, to_integer: bool, rounded: bool) -> bool {
    match (from.is_float(), to.is_float()) {
        (true, true) if from.bits() == to.bits() && to_integer => !rounded,
        (true, true) => !to_integer && rounded == (to.bits() < from.bits() || is_other_half(from, to)),
        (true, false) => to_integer && !rounded,
        (false, true) => rounded && !to_integer,
        (false, false) => !rounded && !to_integer,
    }
}

/// Returns whether these are two different 16-bit formats, neither of which can represent every number in the other.
fn is_other_half(from: Type, to: Type) -> bool {
    from != to && from.bits() == 16 && to.bits() == 16
}

/// Returns whether an integer type has all values of another one, so that nothing can saturate: there, `.sat` is illegal.
fn holds_all(from: Type, to: Type) -> bool {
    let (Some(from), Some(to)) = (integer_type(from), integer_type(to)) else { return false };
    match (from.signed, to.signed) {
        (false, true) => from.bits < to.bits,
        (true, false) => false,
        _ => from.bits <= to.bits,
    }
}

/// Returns a conversion that saturates or involves a floating-point format.
fn conversion(
    from: Type,
    to: Type,
    mode: FloatMode,
    to_integer: Option<Rounding>,
    rounded: Option<Rounding>,
) -> Option<Conversion> {
    if from.half().is_some() || to.half().is_some() {
        return None;
    }
    Some(match (float_type(from), float_type(to), integer_type(from), integer_type(to)) {
        (Some(from), Some(to), ..) => Conversion::FloatToFloat {
            from,
            to,
            rounding: to_integer.or(rounded).unwrap_or_default(),
            to_integer: to_integer.is_some(),
            mode,
        },
        (Some(from), _, _, Some(to)) => {
            Conversion::FloatToInteger { from, to, rounding: to_integer?, flush: mode.flush }
        }
        (_, Some(to), Some(from), _) => {
            Conversion::IntegerToFloat { from, to, rounding: rounded?, saturate: mode.saturate }
        }
        (_, _, Some(from), Some(to)) => Conversion::IntegerToInteger { from, to },
        _ => return None,
    })
}
