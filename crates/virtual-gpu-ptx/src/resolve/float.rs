//! Floating-Point and Half Precision Floating-Point Instructions.

use super::modifiers::{Modifiers, Resolution, destination_and_sources, operands, unsupported};
use crate::instruction::{FloatMode, FloatOp, FloatType, NumberKind, Rounding};
use crate::opcode::Opcode;
use crate::resolved::Form;
use crate::syntax::Written;
use crate::types::Type;

/// Returns the rounding that a modifier specifies.
pub(super) fn rounding(name: &str) -> Option<Rounding> {
    Some(match name {
        "rn" => Rounding::Nearest,
        "rz" => Rounding::Zero,
        "rm" => Rounding::Down,
        "rp" => Rounding::Up,
        _ => return None,
    })
}

/// Returns the floating-point format of a type.
pub(super) fn float_type(kind: Type) -> Option<FloatType> {
    Some(match kind {
        Type::F16 => FloatType::F16,
        Type::Bf16 => FloatType::Bf16,
        Type::F16x2 => FloatType::F16x2,
        Type::Bf16x2 => FloatType::Bf16x2,
        Type::F32 => FloatType::F32,
        Type::F64 => FloatType::F64,
        _ => return None,
    })
}

/// `add` to `copysign`, on floating-point numbers
///
/// ```text
/// add{.rnd}{.ftz}{.sat}.f32  d, a, b;          add{.rnd}.f64  d, a, b;      (sub, mul the same)
/// fma.rnd{.ftz}{.sat}.f32    d, a, b, c;       fma.rnd.f64    d, a, b, c;   (mad the same)
/// div.approx{.ftz}.f32  d, a, b;  div.full{.ftz}.f32  d, a, b;  div.rnd{.ftz}.f32  d, a, b;  div.rnd.f64  d, a, b;
/// min{.ftz}{.NaN}.f32  d, a, b;   max{.ftz}{.NaN}.f32  d, a, b;   min.f64  d, a, b;   max.f64  d, a, b;
/// abs{.ftz}.f32  d, a;  abs.f64  d, a;  neg{.ftz}.f32  d, a;  neg.f64  d, a;
/// copysign.type  d, a, b;   .type = { .f32, .f64 };
/// rcp.approx{.ftz}.f32  d, a;   rcp.rnd{.ftz}.f32  d, a;   rcp.rnd.f64  d, a;   rcp.approx.ftz.f64  d, a;
/// sqrt.approx{.ftz}.f32  d, a;  sqrt.rnd{.ftz}.f32  d, a;  sqrt.rnd.f64  d, a;
/// rsqrt.approx{.ftz}.f32  d, a;  rsqrt.approx.f64  d, a;  rsqrt.approx.ftz.f64  d, a;
/// sin.approx{.ftz}.f32  d, a;  (cos, lg2, ex2 the same)   tanh.approx.f32  d, a;
/// .rnd = { .rn, .rz, .rm, .rp };
///
/// add{.rnd}{.ftz}{.sat}.f16  d, a, b;    add{.rnd}.bf16  d, a, b;          (sub, mul the same)
/// fma.rnd{.ftz}{.sat}.f16  d, a, b, c;   fma.rnd{.ftz}.relu.f16  d, a, b, c;   fma.rnd{.relu}.bf16  d, a, b, c;
/// neg{.ftz}.f16  d, a;                   neg.bf16  d, a;                   (abs the same)
/// min{.ftz}{.NaN}.f16  d, a, b;          min{.NaN}.bf16  d, a, b;          (max the same)
/// tanh.approx.f16  d, a;   tanh.approx.bf16  d, a;   ex2.approx.f16  d, a;   ex2.approx.ftz.bf16  d, a;
/// .f16x2 as .f16, .bf16x2 as .bf16;  .rnd = { .rn };
/// ```
pub(super) fn float<'a>(opcode: Opcode, written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let kind = modifiers.kind()?;
    let Some(float_type) = float_type(kind) else { return unsupported(written) };
    let nan = modifiers.take("NaN");
    let Some(op) = float_op(opcode, nan) else { return unsupported(written) };
    let rounding = modifiers.choose(rounding);
    let precision = match (modifiers.take("approx"), modifiers.take("full"), rounding) {
        (false, false, None) => Precision::Default,
        (false, false, Some(rounding)) => Precision::Rounded(rounding),
        (true, false, None) => Precision::Approximate,
        (false, true, None) => Precision::Full,
        _ => return modifiers.unsupported(),
    };
    let mode = FloatMode {
        flush: modifiers.take("ftz"),
        saturate: modifiers.take("sat"),
        relu: modifiers.take("relu"),
        rounding: rounding.unwrap_or_default(),
    };
    let is_allowed = has_format(opcode, float_type)
        && has_precision(opcode, float_type, precision)
        && has_mode(opcode, float_type, mode, precision)
        && !(nan && float_type == FloatType::F64);
    if !is_allowed {
        return modifiers.unsupported();
    }
    let op = if precision == Precision::Approximate && op == FloatOp::Div { FloatOp::DivApprox } else { op };
    modifiers.finish()?;
    let (d, sources) = destination_and_sources(written, source_count(op))?;
    Ok(Form::Float { op, float_type, kind, mode, d, sources })
}

fn float_op(opcode: Opcode, nan: bool) -> Option<FloatOp> {
    use Opcode::*;
    Some(match (opcode, nan) {
        (Min, true) => FloatOp::MinNan,
        (Max, true) => FloatOp::MaxNan,
        (_, true) => return None,
        (Add, _) => FloatOp::Add,
        (Sub, _) => FloatOp::Sub,
        (Mul, _) => FloatOp::Mul,
        (Fma | Mad, _) => FloatOp::Fma,
        (Div, _) => FloatOp::Div,
        (Min, _) => FloatOp::Min,
        (Max, _) => FloatOp::Max,
        (Abs, _) => FloatOp::Abs,
        (Neg, _) => FloatOp::Neg,
        (Rcp, _) => FloatOp::Rcp,
        (Sqrt, _) => FloatOp::Sqrt,
        (Rsqrt, _) => FloatOp::Rsqrt,
        (Ex2, _) => FloatOp::Ex2,
        (Lg2, _) => FloatOp::Lg2,
        (Sin, _) => FloatOp::Sin,
        (Cos, _) => FloatOp::Cos,
        (Tanh, _) => FloatOp::Tanh,
        (Copysign, _) => FloatOp::Copysign,
        _ => return None,
    })
}

fn source_count(op: FloatOp) -> usize {
    use FloatOp::*;
    match op {
        Fma => 3,
        Add | Sub | Mul | Div | DivApprox | Min | Max | MinNan | MaxNan | Copysign => 2,
        Abs | Neg | Rcp | Sqrt | Rsqrt | Ex2 | Lg2 | Sin | Cos | Tanh => 1,
    }
}

/// The precision of a result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Precision {
    /// Not specified by a modifier.
    Default,
    Rounded(Rounding),
    /// `.approx`
    Approximate,
    /// `.full`
    Full,
}

fn is_f16(kind: FloatType) -> bool {
    matches!(kind, FloatType::F16 | FloatType::F16x2)
}

fn is_bf16(kind: FloatType) -> bool {
    matches!(kind, FloatType::Bf16 | FloatType::Bf16x2)
}

/// Returns whether an instruction exists for a format.
fn has_format(opcode: Opcode, kind: FloatType) -> bool {
    use Opcode::*;
    match kind {
        FloatType::F32 => true,
        FloatType::F64 => !matches!(opcode, Ex2 | Lg2 | Sin | Cos | Tanh),
        _ => matches!(opcode, Add | Sub | Mul | Fma | Neg | Abs | Min | Max | Tanh | Ex2),
    }
}

/// Returns whether an instruction exists with this precision, given that it exists for the format.
fn has_precision(opcode: Opcode, kind: FloatType, precision: Precision) -> bool {
    use Opcode::*;
    let is_half = is_f16(kind) || is_bf16(kind);
    match (opcode, precision) {
        (Add | Sub | Mul | Fma, Precision::Rounded(rounding)) => !is_half || rounding == Rounding::Nearest,
        (Mad | Div | Rcp | Sqrt, Precision::Rounded(_)) => true,
        (Add | Sub | Mul | Min | Max | Abs | Neg | Copysign, Precision::Default) => true,
        (Div, Precision::Approximate | Precision::Full) => kind == FloatType::F32,
        (Sqrt, Precision::Approximate) => kind == FloatType::F32,
        (Rcp | Rsqrt | Sin | Cos | Lg2 | Ex2 | Tanh, Precision::Approximate) => true,
        _ => false,
    }
}

/// Returns whether an instruction accepts its `.ftz`, `.sat`, and `.relu` modifiers and has all that it requires.
fn has_mode(opcode: Opcode, kind: FloatType, mode: FloatMode, precision: Precision) -> bool {
    use Opcode::*;
    let is_approximate = precision == Precision::Approximate;
    let may_flush = match kind {
        FloatType::F32 => !matches!(opcode, Tanh | Copysign),
        FloatType::F64 => is_approximate && matches!(opcode, Rcp | Rsqrt),
        _ if is_f16(kind) => !matches!(opcode, Tanh | Ex2),
        _ => opcode == Ex2,
    };
    let must_flush = match opcode {
        Rcp => kind == FloatType::F64 && is_approximate,
        Ex2 => is_bf16(kind),
        _ => false,
    };
    let may_saturate =
        matches!(opcode, Add | Sub | Mul | Fma | Mad) && (kind == FloatType::F32 || is_f16(kind));
    let may_relu = opcode == Fma && (is_f16(kind) || is_bf16(kind)) && !mode.saturate;
    (may_flush || !mode.flush)
        && (mode.flush || !must_flush)
        && (may_saturate || !mode.saturate)
        && (may_relu || !mode.relu)
}

/// `testp`: a property of a number.
///
/// ```text
/// testp.op.type  p, a;    .type = { .f32, .f64 };
/// .op = { .finite, .infinite, .number, .notanumber, .normal, .subnormal };
/// ```
pub(super) fn testp<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let kind = modifiers.kind()?;
    let test = modifiers.choose(|name| match name {
        "finite" => Some(NumberKind::Finite),
        "infinite" => Some(NumberKind::Infinite),
        "number" => Some(NumberKind::Number),
        "notanumber" => Some(NumberKind::NotANumber),
        "normal" => Some(NumberKind::Normal),
        "subnormal" => Some(NumberKind::Subnormal),
        _ => None,
    });
    let (Some(test), Type::F32 | Type::F64) = (test, kind) else { return unsupported(written) };
    modifiers.finish()?;
    Ok(Form::TestNumber { test, kind, operands: operands(written)? })
}
