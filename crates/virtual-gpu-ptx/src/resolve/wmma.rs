//! Warp Level Matrix Multiply-Accumulate Instructions: `wmma`.

use super::float::rounding;
use super::matrix::{fragment, packed};
use super::modifiers::{Modifiers, Resolution, operands, unsupported, wrong_number};
use crate::instruction::{FragmentElement, FragmentLayout, IntegerSum, PackedElement, Space};
use crate::resolved::{Form, FragmentOperand};
use crate::syntax::{Operand, Written};

/// The rows of `a`, the columns of `b`, and the columns of `a`.
type Shape = [u8; 3];

/// A matrix of the product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Matrix {
    A,
    B,
    /// `c` or `d`
    Accumulator,
}

/// `wmma.load`, `wmma.store`, `wmma.mma`
///
/// ```text
/// wmma.load.a.sync.aligned.layout.shape{.ss}.atype   r, [p] {, stride};
/// wmma.load.b.sync.aligned.layout.shape{.ss}.btype   r, [p] {, stride};
/// wmma.load.c.sync.aligned.layout.shape{.ss}.ctype   r, [p] {, stride};
/// wmma.store.d.sync.aligned.layout.shape{.ss}.dtype  [p], r {, stride};
/// .layout = { .row, .col };  .ss = { .global, .shared{::cta} };
///
/// wmma.mma.sync.aligned.alayout.blayout.shape.dtype.ctype                       d, a, b, c;
/// wmma.mma.sync.aligned.alayout.blayout.shape.s32.atype.btype.s32{.satfinite}   d, a, b, c;
/// wmma.mma.sync.aligned.alayout.blayout.shape.f32.atype.btype.f32               d, a, b, c;
/// wmma.mma.sync.aligned.alayout.blayout.shape{.rnd}.f64.f64.f64.f64             d, a, b, c;
/// .alayout = .blayout = { .row, .col };  .rnd = { .rn, .rz, .rm, .rp };
///
/// .shape = { .m16n16k16, .m8n32k16, .m32n8k16 };
///     .atype = .btype = { .f16 };       .ctype, .dtype = { .f16, .f32 };
///     .atype = .btype = { .bf16 };      .ctype = .dtype = { .f32 };
///     .atype = .btype = { .s8, .u8 };   .ctype = .dtype = { .s32 };
/// .shape = { .m16n16k8 };  .atype = .btype = { .tf32 };  .ctype = .dtype = { .f32 };
/// .shape = { .m8n8k4 };    .atype = .btype = .ctype = .dtype = { .f64 };
///
/// wmma.mma.sync.aligned.row.col.shape.s32.atype.btype.s32{.satfinite}           d, a, b, c;
/// wmma.mma.op.popc.sync.aligned.row.col.shape.s32.atype.btype.s32               d, a, b, c;    .op = { .xor, .and };
/// .shape = { .m8n8k32 };   .atype = .btype = { .s4, .u4 };  .ctype = .dtype = { .s32 };
/// .shape = { .m8n8k128 };  .atype = .btype = { .b1 };       .ctype = .dtype = { .s32 };
/// ```
///
/// `.aligned` is implicit before PTX 6.3. The manual's examples also have the layouts after the shape or the space.
pub(super) fn wmma<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let (matrix, is_store) = match written.modifiers.as_slice() {
        ["load", "a", "sync", ..] => (Matrix::A, false),
        ["load", "b", "sync", ..] => (Matrix::B, false),
        ["load", "c", "sync", ..] => (Matrix::Accumulator, false),
        ["store", "d", "sync", ..] => (Matrix::Accumulator, true),
        ["mma", "sync", ..] | ["mma", "xor" | "and", "popc", "sync", ..] => return multiply(written),
        _ => return unsupported(written),
    };
    access(written, matrix, is_store)
}

fn access<'a>(written: &mut Written<'a>, matrix: Matrix, is_store: bool) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    modifiers.rest.drain(..3);
    modifiers.take("aligned");
    let element = modifiers.rest.pop().and_then(element);
    let (layout, shape) = (modifiers.choose(layout), modifiers.choose(shape));
    let space = modifiers.choose(|name| match name {
        "global" => Some(Space::Global),
        "shared" | "shared::cta" => Some(Space::Shared),
        _ => None,
    });
    let (Some(by_columns), Some(shape), Some(element)) = (layout, shape, element) else {
        return unsupported(written);
    };
    modifiers.finish()?;
    let is_turned = matches!(element, FragmentElement::Packed(_)) && by_columns != (matrix == Matrix::B);
    if !has_element(matrix, shape, element) || is_turned {
        return unsupported(written);
    }
    let mut operands = std::mem::take(&mut written.operands).into_iter();
    let (Some(first), Some(second), stride, None) =
        (operands.next(), operands.next(), operands.next(), operands.next())
    else {
        return wrong_number(written);
    };
    let (registers, address) = if is_store { (second, first) } else { (first, second) };
    let fragment = operand(written, registers, matrix, shape, element)?;
    let space = space.unwrap_or(Space::Generic);
    let default = if by_columns { fragment.rows } else { fragment.columns };
    let default = i64::from(default) * i64::from(element.numbers());
    let stride = stride.unwrap_or(Operand::Integer(default));
    Ok(Form::AccessFragment { fragment, is_store, by_columns, space, address, stride })
}

fn multiply<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    use FragmentElement::{Bf16, F16, F32, F64, Packed, S8, S32, Tf32, U8};
    let mut modifiers = Modifiers::of(written);
    let bit_op = match modifiers.rest[1] {
        "sync" => None,
        op => Some(op == "xor"),
    };
    modifiers.rest.drain(..if bit_op.is_some() { 4 } else { 2 });
    modifiers.take("aligned");
    let layouts = (modifiers.choose(layout), modifiers.choose(layout));
    let ((Some(a_layout), Some(b_layout)), Some(shape)) = (layouts, modifiers.choose(shape)) else {
        return unsupported(written);
    };
    let (saturate, rounding) = (modifiers.take("satfinite"), modifiers.choose(rounding));
    let (d, multiplicand, c) = match modifiers.rest.as_slice() {
        [d @ ("f16" | "f32"), c @ ("f16" | "f32")] => {
            let accumulator = |name: &str| if name == "f16" { F16 } else { F32 };
            (accumulator(d), F16, accumulator(c))
        }
        ["f32", "bf16", "bf16", "f32"] => (F32, Bf16, F32),
        ["f32", "tf32", "tf32", "f32"] => (F32, Tf32, F32),
        ["f64", "f64", "f64", "f64"] => (F64, F64, F64),
        ["s32", "s8", "s8", "s32"] => (S32, S8, S32),
        ["s32", "u8", "u8", "s32"] => (S32, U8, S32),
        ["s32", "s4", "s4", "s32"] => (S32, Packed(PackedElement::S4), S32),
        ["s32", "u4", "u4", "s32"] => (S32, Packed(PackedElement::U4), S32),
        ["s32", "b1", "b1", "s32"] => (S32, Packed(PackedElement::B1), S32),
        _ => return unsupported(written),
    };
    let is_of_bits = multiplicand == Packed(PackedElement::B1);
    let is_turned = matches!(multiplicand, Packed(_)) && (a_layout, b_layout) != (false, true);
    if !has_element(Matrix::A, shape, multiplicand)
        || saturate && (c != S32 || is_of_bits)
        || rounding.is_some() && c != F64
        || bit_op.is_some() != is_of_bits
        || is_turned
    {
        return unsupported(written);
    }
    let [of_d, of_a, of_b, of_c] = operands(written)?;
    let d = operand(written, of_d, Matrix::Accumulator, shape, d)?;
    let a = operand(written, of_a, Matrix::A, shape, multiplicand)?;
    let b = operand(written, of_b, Matrix::B, shape, multiplicand)?;
    let c = operand(written, of_c, Matrix::Accumulator, shape, c)?;
    let rounding = rounding.unwrap_or_default();
    let sum = IntegerSum { saturate, is_xor: bit_op == Some(true) };
    Ok(Form::MultiplyFragments { fragments: [d, a, b, c], rounding, sum })
}

/// Returns whether a layout is column-major.
fn layout(name: &str) -> Option<bool> {
    match name {
        "row" => Some(false),
        "col" => Some(true),
        _ => None,
    }
}

fn shape(name: &str) -> Option<Shape> {
    Some(match name {
        "m16n16k16" => [16, 16, 16],
        "m8n32k16" => [8, 32, 16],
        "m32n8k16" => [32, 8, 16],
        "m16n16k8" => [16, 16, 8],
        "m8n8k4" => [8, 8, 4],
        "m8n8k32" => [8, 8, 32],
        "m8n8k128" => [8, 8, 128],
        _ => return None,
    })
}

fn element(name: &str) -> Option<FragmentElement> {
    Some(match name {
        "f16" => FragmentElement::F16,
        "bf16" => FragmentElement::Bf16,
        "tf32" => FragmentElement::Tf32,
        "f32" => FragmentElement::F32,
        "f64" => FragmentElement::F64,
        "s8" => FragmentElement::S8,
        "u8" => FragmentElement::U8,
        "s32" => FragmentElement::S32,
        "s4" | "u4" | "b1" => FragmentElement::Packed(packed(name)?),
        _ => return None,
    })
}

/// Returns whether a matrix can have these elements in a product with this shape.
fn has_element(matrix: Matrix, [_, _, inner]: Shape, element: FragmentElement) -> bool {
    use FragmentElement::{Bf16, F16, F32, F64, Packed, S8, S32, Tf32, U8};
    match (matrix, inner) {
        (Matrix::A | Matrix::B, 32) => matches!(element, Packed(PackedElement::S4 | PackedElement::U4)),
        (Matrix::A | Matrix::B, 128) => element == Packed(PackedElement::B1),
        (Matrix::Accumulator, 32 | 128) => element == S32,
        (Matrix::A | Matrix::B, 16) => matches!(element, F16 | Bf16 | S8 | U8),
        (Matrix::A | Matrix::B, 8) => element == Tf32,
        (Matrix::Accumulator, 16) => matches!(element, F16 | F32 | S32),
        (Matrix::Accumulator, 8) => element == F32,
        _ => element == F64,
    }
}

/// Returns a matrix with its registers, after checking their number.
fn operand<'a>(
    written: &Written<'a>,
    registers: Operand<'a>,
    matrix: Matrix,
    [m, n, k]: Shape,
    element: FragmentElement,
) -> Resolution<FragmentOperand<'a>> {
    let inner = k / element.numbers();
    let (rows, columns) = match matrix {
        Matrix::A => (m, inner),
        Matrix::B => (inner, n),
        Matrix::Accumulator => (m, n),
    };
    let each = usize::from(rows) * usize::from(columns) / 32;
    let count = match element {
        FragmentElement::F16 if matrix != Matrix::Accumulator => 8,
        FragmentElement::F64 => each,
        _ => each * usize::from(element.bytes()) / 4,
    };
    let registers = fragment(written, registers, count)?;
    Ok(FragmentOperand { element, rows, columns, layout: FragmentLayout::Consecutive, registers })
}
