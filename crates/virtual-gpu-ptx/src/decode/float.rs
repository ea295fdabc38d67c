//! Floating-point arithmetic.

use super::super::instruction::{FloatMode, FloatOp, FloatType, NumberKind, Operation, Rounding, Slot};
use super::super::lower::Lowering;
use super::super::syntax::Raw;
use super::operand::padded;
use super::{Decoded, Modifiers, Type, operands, unsupported};

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

impl<'a> Lowering<'_, 'a> {
    /// `add` to `copysign`, on floating-point numbers.
    pub(super) fn float(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let kind = modifiers.kind()?;
        let Some(float_type) = float_type(kind) else { return unsupported(raw) };
        let nan = modifiers.take("NaN");
        let Some(op) = float_op(raw.opcode, nan) else { return unsupported(raw) };
        let is_full = modifiers.take("full");
        let is_approximate = modifiers.take("approx") | is_full;
        let op = if op == FloatOp::Div && is_approximate && !is_full { FloatOp::DivApprox } else { op };
        let mode = FloatMode {
            flush: modifiers.take("ftz"),
            saturate: modifiers.take("sat"),
            relu: modifiers.take("relu"),
            rounding: modifiers.choose(rounding).unwrap_or_default(),
        };
        let is_exact_only = matches!(op, FloatOp::Min | FloatOp::Max | FloatOp::Abs | FloatOp::Neg);
        let is_half = !matches!(float_type, FloatType::F32 | FloatType::F64);
        let is_refused = (is_approximate && !may_approximate(op, float_type))
            || (must_approximate(op, float_type) && !is_approximate)
            || (float_type == FloatType::F64 && (mode.flush && !is_approximate || mode.saturate))
            || (mode.relu && !(is_half && op == FloatOp::Fma))
            || (is_half && mode.rounding != Rounding::Nearest)
            || (is_exact_only && (mode.rounding != Rounding::Nearest || mode.saturate))
            || !has_format(op, float_type);
        if is_refused {
            return modifiers.unsupported();
        }
        modifiers.finish()?;
        let (d, sources) = match raw.operands.split_first() {
            Some((d, sources)) if sources.len() == source_count(op) => (d, sources),
            _ => return Err(format!("`{}` has the wrong number of operands", raw.name())),
        };
        let mut slots = [Slot::uniform(0); 3];
        for (slot, operand) in slots.iter_mut().zip(sources) {
            *slot = match float_type {
                FloatType::F64 => self.long(operand, kind)?,
                _ => self.word(operand, kind)?,
            };
        }
        let [a, b, c] = padded(slots);
        let operation = match float_type {
            FloatType::F32 => Operation::Float32 { op, mode, d: self.word_destination(d)?, a, b, c },
            FloatType::F64 => Operation::Float64 { op, mode, d: self.long_destination(d)?, a, b, c },
            kind => Operation::Float16 { op, kind, mode, d: self.word_destination(d)?, a, b, c },
        };
        self.emit(operation);
        Ok(())
    }

    /// `testp`
    pub(super) fn test_number(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
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
        let (Some(test), Type::F32 | Type::F64) = (test, kind) else { return unsupported(raw) };
        modifiers.finish()?;
        let [d, a] = operands(raw)?;
        let a = self.value(a, kind)?;
        let d = self.predicate_destination(d)?;
        self.emit(Operation::TestNumber { kind: test, d, a });
        Ok(())
    }
}

fn float_op(opcode: &str, nan: bool) -> Option<FloatOp> {
    Some(match (opcode, nan) {
        ("min", true) => FloatOp::MinNan,
        ("max", true) => FloatOp::MaxNan,
        (_, true) => return None,
        ("add", _) => FloatOp::Add,
        ("sub", _) => FloatOp::Sub,
        ("mul", _) => FloatOp::Mul,
        ("fma" | "mad", _) => FloatOp::Fma,
        ("div", _) => FloatOp::Div,
        ("min", _) => FloatOp::Min,
        ("max", _) => FloatOp::Max,
        ("abs", _) => FloatOp::Abs,
        ("neg", _) => FloatOp::Neg,
        ("rcp", _) => FloatOp::Rcp,
        ("sqrt", _) => FloatOp::Sqrt,
        ("rsqrt", _) => FloatOp::Rsqrt,
        ("ex2", _) => FloatOp::Ex2,
        ("lg2", _) => FloatOp::Lg2,
        ("sin", _) => FloatOp::Sin,
        ("cos", _) => FloatOp::Cos,
        ("tanh", _) => FloatOp::Tanh,
        ("copysign", _) => FloatOp::Copysign,
        _ => return None,
    })
}

fn source_count(op: FloatOp) -> usize {
    match op {
        FloatOp::Fma => 3,
        FloatOp::Add
        | FloatOp::Sub
        | FloatOp::Mul
        | FloatOp::Div
        | FloatOp::DivApprox
        | FloatOp::Min
        | FloatOp::Max
        | FloatOp::MinNan
        | FloatOp::MaxNan
        | FloatOp::Copysign => 2,
        _ => 1,
    }
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

/// Which operations a format has.
fn has_format(op: FloatOp, kind: FloatType) -> bool {
    match kind {
        FloatType::F32 => true,
        FloatType::F64 => {
            !matches!(op, FloatOp::Ex2 | FloatOp::Lg2 | FloatOp::Sin | FloatOp::Cos | FloatOp::Tanh)
        }
        _ => matches!(
            op,
            FloatOp::Add
                | FloatOp::Sub
                | FloatOp::Mul
                | FloatOp::Fma
                | FloatOp::Min
                | FloatOp::Max
                | FloatOp::MinNan
                | FloatOp::MaxNan
                | FloatOp::Abs
                | FloatOp::Neg
                | FloatOp::Ex2
                | FloatOp::Tanh
        ),
    }
}
