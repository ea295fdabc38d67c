//! Warp Level Matrix Multiply-Accumulate Instructions.

use super::float::rounding;
use super::modifiers::{Resolution, operands, unsupported};
use crate::instruction::PackedElement::{self, B1, S4, S8, U4, U8};
use crate::instruction::{
    Accumulator, FragmentElement, FragmentLayout, IntegerSum, MatrixElement, Rounding, Space,
};
use crate::resolved::{Form, FragmentOperand};
use crate::syntax::{Operand, Written};

/// `ldmatrix`
///
/// ```text
/// ldmatrix.sync.aligned.m8n8.num{.trans}{.ss}.b16  r, [p];    .num = { .x1, .x2, .x4 };  .ss = { .shared{::cta} };
/// ```
pub(super) fn ldmatrix<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let (count, transposed, space) = matrices(written)?;
    let [d, address] = operands(written)?;
    let d = fragment(written, d, count)?;
    Ok(Form::LoadMatrices { space, transposed, d, address })
}

/// `stmatrix`
///
/// ```text
/// stmatrix.sync.aligned.m8n8.num{.trans}{.ss}.b16  [p], r;    .num = { .x1, .x2, .x4 };  .ss = { .shared{::cta} };
/// ```
pub(super) fn stmatrix<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let (count, transposed, space) = matrices(written)?;
    let [address, a] = operands(written)?;
    let a = fragment(written, a, count)?;
    Ok(Form::StoreMatrices { space, transposed, a, address })
}

/// `movmatrix`
///
/// ```text
/// movmatrix.sync.aligned.m8n8.trans.b16  d, a;
/// ```
pub(super) fn movmatrix<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    match written.modifiers.as_slice() {
        ["sync", "aligned", "m8n8", "trans", "b16"] => {
            Ok(Form::TransposeMatrix { operands: operands(written)? })
        }
        _ => unsupported(written),
    }
}

/// Returns the number of matrices of `ldmatrix` or `stmatrix`, whether they are transposed, and their state space.
fn matrices(written: &Written<'_>) -> Resolution<(usize, bool, Space)> {
    let ["sync", "aligned", "m8n8", count, options @ .., "b16"] = written.modifiers.as_slice() else {
        return unsupported(written);
    };
    let count = match *count {
        "x1" => 1,
        "x2" => 2,
        "x4" => 4,
        _ => return unsupported(written),
    };
    let (transposed, space) = match options {
        ["trans", space @ ..] => (true, space),
        space => (false, space),
    };
    let space = match space {
        [] => Space::Generic,
        ["shared" | "shared::cta"] => Space::Shared,
        _ => return unsupported(written),
    };
    Ok((count, transposed, space))
}

/// `mma`
///
/// ```text
/// mma.sync.aligned.m16n8k8.row.col.dtype.f16.f16.ctype   d, a, b, c;    .ctype = .dtype = { .f16, .f32 };
/// mma.sync.aligned.m16n8k16.row.col.dtype.f16.f16.ctype  d, a, b, c;
/// mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32     d, a, b, c;
/// mma.sync.aligned.m16n8k8.row.col.f32.atype.btype.f32   d, a, b, c;    .atype = .btype = { .bf16, .tf32 };
/// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32    d, a, b, c;
/// mma.sync.aligned.shape.row.col.dtype.f8type.f8type.ctype  d, a, b, c;
/// .shape = { .m16n8k16, .m16n8k32 };  .f8type = { .e4m3, .e5m2 };  .ctype = .dtype = { .f16, .f32 };
///
/// mma.sync.aligned.shape.row.col{.satfinite}.s32.atype.btype.s32  d, a, b, c;
/// .shape = { .m8n8k16, .m16n8k16, .m16n8k32 };  .atype, .btype = { .s8, .u8 };
/// .shape = { .m8n8k32, .m16n8k32, .m16n8k64 };  .atype, .btype = { .s4, .u4 };
/// mma.sync.aligned.shape.row.col.s32.b1.b1.s32.bitOp.popc  d, a, b, c;
/// .shape = { .m8n8k128, .m16n8k128, .m16n8k256 };  .bitOp = { .xor, .and };
///
/// mma.sync.aligned.shape.row.col.f64.f64.f64.f64{.rnd}  d, a, b, c;
/// .shape = { .m8n8k4, .m16n8k4, .m16n8k8, .m16n8k16 };  .rnd = { .rn, .rz, .rm, .rp };
/// ```
pub(super) fn mma<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    use MatrixElement::{Bf16, E4m3, E5m2, F16, Packed, Tf32};
    let ["sync", "aligned", shape, "row", "col", types @ ..] = written.modifiers.as_slice() else {
        return unsupported(written);
    };
    let shape = *shape;
    if let ["f64", "f64", "f64", "f64", rnd @ ..] = types {
        let rounding = match rnd {
            [] => Some(Rounding::default()),
            [name] => rounding(name),
            _ => None,
        };
        return doubles(written, shape, rounding);
    }
    let fp8 = |name: &str| if name == "e4m3" { E4m3 } else { E5m2 };
    let (elements, accumulator) = match types {
        ["f16", "f16", "f16", "f16"] => ([F16; 2], Accumulator::F16),
        ["f32", "f16", "f16", "f32"] => ([F16; 2], Accumulator::F32),
        ["f32", "bf16", "bf16", "f32"] => ([Bf16; 2], Accumulator::F32),
        ["f32", "tf32", "tf32", "f32"] => ([Tf32; 2], Accumulator::F32),
        ["f32", a @ ("e4m3" | "e5m2"), b @ ("e4m3" | "e5m2"), "f32"] => ([fp8(a), fp8(b)], Accumulator::F32),
        ["f16", a @ ("e4m3" | "e5m2"), b @ ("e4m3" | "e5m2"), "f16"] => ([fp8(a), fp8(b)], Accumulator::F16),
        _ => match integers(types) {
            Some((elements, sum)) => (elements.map(Packed), Accumulator::S32(sum)),
            None => return unsupported(written),
        },
    };
    let sources = match (shape, elements[0]) {
        ("m8n8k16", Packed(S8 | U8)) | ("m8n8k32", Packed(S4 | U4)) | ("m8n8k128", Packed(B1)) => 1,
        ("m16n8k16", Packed(S8 | U8)) | ("m16n8k32", Packed(S4 | U4)) | ("m16n8k128", Packed(B1)) => 2,
        ("m16n8k32", Packed(S8 | U8)) | ("m16n8k64", Packed(S4 | U4)) | ("m16n8k256", Packed(B1)) => 4,
        ("m16n8k16", E4m3 | E5m2) => 2,
        ("m16n8k32", E4m3 | E5m2) => 4,
        ("m16n8k8", F16 | Bf16) | ("m16n8k4", Tf32) => 2,
        ("m16n8k16", F16 | Bf16) | ("m16n8k8", Tf32) => 4,
        _ => return unsupported(written),
    };
    let results = if accumulator == Accumulator::F16 || sources == 1 { 2 } else { 4 };
    let [d, a, b, c] = operands(written)?;
    let (a, b) = (fragment(written, a, sources)?, fragment(written, b, sources.div_ceil(2))?);
    let (c, d) = (fragment(written, c, results)?, fragment(written, d, results)?);
    Ok(Form::MultiplyMatrices { elements, accumulator, fragments: [d, a, b, c] })
}

/// Resolves `mma` with `.f64`. The manual shows no rounding in its syntax, but defines the four, which NVIDIA's assembler
/// accepts at the end.
fn doubles<'a>(written: &mut Written<'a>, shape: &str, rounding: Option<Rounding>) -> Resolution<Form<'a>> {
    let (rows, inner, rounding): (u8, u8, _) = match (shape, rounding) {
        ("m8n8k4", Some(rounding)) => (8, 4, rounding),
        ("m16n8k4", Some(rounding)) => (16, 4, rounding),
        ("m16n8k8", Some(rounding)) => (16, 8, rounding),
        ("m16n8k16", Some(rounding)) => (16, 16, rounding),
        _ => return unsupported(written),
    };
    let [d, a, b, c] = operands(written)?;
    let matrix = |operand, rows, columns, layout| {
        let registers = fragment(written, operand, usize::from(rows) * usize::from(columns) / 32)?;
        Ok::<_, String>(FragmentOperand { element: FragmentElement::F64, rows, columns, layout, registers })
    };
    let fragments = [
        matrix(d, rows, 8, FragmentLayout::Sum)?,
        matrix(a, rows, inner, FragmentLayout::Left)?,
        matrix(b, inner, 8, FragmentLayout::Right)?,
        matrix(c, rows, 8, FragmentLayout::Sum)?,
    ];
    Ok(Form::MultiplyFragments { fragments, rounding, sum: IntegerSum::default() })
}

/// Returns how `mma` multiplies integers of these types.
fn integers(types: &[&str]) -> Option<([PackedElement; 2], IntegerSum)> {
    let (saturate, types) = match types {
        ["satfinite", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    Some(match *types {
        ["s32", "b1", "b1", "s32", op @ ("xor" | "and"), "popc"] if !saturate => {
            ([B1; 2], IntegerSum { saturate, is_xor: op == "xor" })
        }
        ["s32", a, b, "s32"] => {
            let elements = [packed(a)?, packed(b)?];
            let is_allowed = elements[0] != B1 && elements[0].bits() == elements[1].bits();
            is_allowed.then_some((elements, IntegerSum { saturate, is_xor: false }))?
        }
        _ => return None,
    })
}

/// Returns the packed type with this name.
pub(super) fn packed(name: &str) -> Option<PackedElement> {
    Some(match name {
        "s8" => S8,
        "u8" => U8,
        "s4" => S4,
        "u4" => U4,
        "b1" => B1,
        _ => return None,
    })
}

/// Returns the registers in braces.
pub(super) fn fragment<'a>(
    written: &Written<'a>,
    operand: Operand<'a>,
    count: usize,
) -> Resolution<Vec<Operand<'a>>> {
    let Operand::Vector(parts) = operand else {
        return Err(format!("`{}` takes registers in braces", written.name()));
    };
    if parts.len() != count {
        return Err(format!("`{}` takes {count} registers here, not {}", written.name(), parts.len()));
    }
    Ok(parts)
}
