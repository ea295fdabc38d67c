//! Floating-Point and Half Precision Floating-Point Instructions.

use super::modifiers::{Modifiers, Resolution, destination_and_sources, operands, unsupported};
use crate::instruction::{FloatMode, FloatOp, FloatType, NumberKind, Rounding};
use crate::opcode::Opcode;
use crate::resolved::Form;
use crate::syntax::Written;
use crate::types::Type;

/// The rounding that a modifier names.
pub(super) fn rounding(name: &str) -> Option<Rounding> {
    Some(match name {
        "rn" => Rounding::Nearest,
        "rz" => Rounding::Zero,
        "rm" => Rounding::Down,
        "rp" => Rounding::Up,
        _ => return None,
    })
}

/// The floating-point format of a type.
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
/// abs{.ftz}.f32  d, a;  abs.f64  d, a;  neg{.ftz}.f32  d, a;  neg.f64  d, a;  copysign.type  d, a, b;
/// rcp.approx{.ftz}.f32  d, a;   rcp.rnd{.ftz}.f32  d, a;   rcp.rnd.f64  d, a;   rcp.approx.ftz.f64  d, a;
/// sqrt.approx{.ftz}.f32  d, a;  sqrt.rnd{.ftz}.f32  d, a;  sqrt.rnd.f64  d, a;
/// rsqrt.approx{.ftz}.f32  d, a;  rsqrt.approx.f64  d, a;
/// sin.approx{.ftz}.f32  d, a;  (cos, lg2, ex2 the same)   tanh.approx.type  d, a;
/// .rnd = { .rn, .rz, .rm, .rp };
///
/// add{.rnd}{.ftz}{.sat}.f16  d, a, b;          .f16x2 the same   (sub, mul the same)
/// add{.rnd}.bf16  d, a, b;                     .bf16x2 the same  (sub, mul the same)
/// fma.rnd{.ftz}{.sat}.f16  d, a, b, c;         fma.rnd{.ftz}.relu.f16  d, a, b, c;   fma.rnd{.relu}.bf16  d, a, b, c;
/// neg{.ftz}.f16  d, a;   abs{.ftz}.f16  d, a;  min{.ftz}{.NaN}.f16  d, a, b;   max{.ftz}{.NaN}.f16  d, a, b;
/// tanh.approx.f16  d, a;  ex2.approx.f16  d, a;  ex2.approx.ftz.bf16  d, a;
/// .rnd = { .rn };
/// ```
pub(super) fn float<'a>(opcode: Opcode, written: &mut Written<'a>) -> Resolution<Form<'a>> {
    let mut modifiers = Modifiers::of(written);
    let kind = modifiers.kind()?;
    let Some(float_type) = float_type(kind) else { return unsupported(written) };
    let nan = modifiers.take("NaN");
    let Some(op) = float_op(opcode, nan) else { return unsupported(written) };
    let is_full = modifiers.take("full");
    let is_approximate = modifiers.take("approx") | is_full;
    let op = if op == FloatOp::Div && is_approximate && !is_full { FloatOp::DivApprox } else { op };
    let mode = FloatMode {
        flush: modifiers.take("ftz"),
        saturate: modifiers.take("sat"),
        relu: modifiers.take("relu"),
        rounding: modifiers.choose(rounding).unwrap_or_default(),
    };
    if !is_allowed(op, float_type, mode, is_approximate) {
        return modifiers.unsupported();
    }
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

/// Whether an operation exists in a format with these modifiers.
fn is_allowed(op: FloatOp, float_type: FloatType, mode: FloatMode, is_approximate: bool) -> bool {
    let is_exact_only = matches!(op, FloatOp::Min | FloatOp::Max | FloatOp::Abs | FloatOp::Neg);
    let is_half = !matches!(float_type, FloatType::F32 | FloatType::F64);
    let is_refused = (is_approximate && !may_approximate(op, float_type))
        || (must_approximate(op, float_type) && !is_approximate)
        || (float_type == FloatType::F64 && (mode.flush && !is_approximate || mode.saturate))
        || (mode.relu && !(is_half && op == FloatOp::Fma))
        || (is_half && mode.rounding != Rounding::Nearest)
        || (is_exact_only && (mode.rounding != Rounding::Nearest || mode.saturate))
        || !has_format(op, float_type);
    !is_refused
}

/// Operations that exist only as `.approx` (the half formats' `ex2` included).
fn must_approximate(op: FloatOp, kind: FloatType) -> bool {
    match op {
        FloatOp::Rsqrt | FloatOp::Ex2 | FloatOp::Lg2 | FloatOp::Sin | FloatOp::Cos | FloatOp::Tanh => true,
        FloatOp::Rcp | FloatOp::Sqrt => kind != FloatType::F32 && kind != FloatType::F64,
        _ => false,
    }
}

fn may_approximate(op: FloatOp, kind: FloatType) -> bool {
    must_approximate(op, kind)
        || kind == FloatType::F32
            && matches!(op, FloatOp::Rcp | FloatOp::Sqrt | FloatOp::Div | FloatOp::DivApprox)
        || kind == FloatType::F64 && matches!(op, FloatOp::Rcp)
}

/// Whether a format has an operation.
fn has_format(op: FloatOp, kind: FloatType) -> bool {
    use FloatOp::*;
    match kind {
        FloatType::F32 => true,
        FloatType::F64 => !matches!(op, Ex2 | Lg2 | Sin | Cos | Tanh),
        _ => {
            matches!(op, Add | Sub | Mul | Fma | Min | Max | MinNan | MaxNan | Abs | Neg | Ex2 | Tanh)
        }
    }
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
