//! `cvt`

use super::super::instruction::{
    Conversion, FloatMode, FloatType, IntegerType, LongOp, NarrowOp, Operation, Rounding, Slot, Value,
    WidenOp, WordOp,
};
use super::super::lower::Lowering;
use super::super::syntax::{Operand, Raw};
use super::float::{float_type, rounding};
use super::{Decoded, Modifiers, Type, operands, unsupported};

fn integer_type(kind: Type) -> Option<IntegerType> {
    if kind.is_float() || kind == Type::Pred {
        return None;
    }
    Some(IntegerType { bits: kind.bits(), signed: kind.is_signed() })
}

/// Rounding to an integer.
fn integer_rounding(name: &str) -> Option<Rounding> {
    Some(match name {
        "rni" => Rounding::Nearest,
        "rzi" => Rounding::Zero,
        "rmi" => Rounding::Down,
        "rpi" => Rounding::Up,
        _ => return None,
    })
}

impl<'a> Lowering<'_, 'a> {
    /// `cvt`
    pub(super) fn convert(&mut self, raw: &Raw<'a>) -> Decoded {
        if let ["rna", "tf32", "f32"] = raw.modifiers.as_slice() {
            let [d, a] = operands(raw)?;
            let (a, d) = (self.word(a, Type::F32)?, self.word_destination(d)?);
            self.emit_word(WordOp::RoundToTf32, d, [a]);
            return Ok(());
        }
        let mut modifiers = Modifiers::of(raw);
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
        match (float_type(to), raw.operands.as_slice()) {
            (Some(FloatType::F16x2), [_, _, _]) => {
                return self.convert_pair(raw, from, FloatType::F16, mode, rounded);
            }
            (Some(FloatType::Bf16x2), [_, _, _]) => {
                return self.convert_pair(raw, from, FloatType::Bf16, mode, rounded);
            }
            _ => {}
        }
        if mode.relu && !(from == Type::F32 && matches!(to, Type::F16 | Type::Bf16)) {
            return unsupported(raw);
        }
        let [d, a] = operands(raw)?;
        let conversion = match (float_type(from), float_type(to), integer_type(from), integer_type(to)) {
            (Some(FloatType::F16x2 | FloatType::Bf16x2), ..)
            | (_, Some(FloatType::F16x2 | FloatType::Bf16x2), ..) => return unsupported(raw),
            (Some(from), Some(to), ..) => Conversion::FloatToFloat {
                from,
                to,
                rounding: to_integer.or(rounded).unwrap_or_default(),
                to_integer: to_integer.is_some(),
                mode,
            },
            (Some(from), _, _, Some(to)) => {
                let Some(rounding) = to_integer else { return unsupported(raw) };
                Conversion::FloatToInteger { from, to, rounding, flush: mode.flush }
            }
            (_, Some(to), Some(from), _) => {
                let Some(rounding) = rounded else { return unsupported(raw) };
                Conversion::IntegerToFloat { from, to, rounding, saturate: mode.saturate }
            }
            (_, _, Some(from), Some(to)) if mode.saturate => Conversion::IntegerToInteger { from, to },
            (_, _, Some(from_type), Some(to_type)) => {
                return self.convert_integer(d, a, from, from_type, to_type);
            }
            _ => return unsupported(raw),
        };
        let a = self.wide_value(a, from)?;
        let (d, bits) = self.destination(d)?;
        self.emit_conversion(conversion, d, bits, to, a);
        Ok(())
    }

    /// Converts into a register of the type's width, then extends to the destination's.
    fn emit_conversion(&mut self, conversion: Conversion, d: Value, bits: u8, to: Type, a: Value) {
        match d {
            Value::Long(d) if to.bits() < 64 => {
                let word = self.new_word();
                self.emit(Operation::Convert { conversion, d: Value::Word(word), a });
                let op = if to.is_signed() { WidenOp::SignExtend } else { WidenOp::ZeroExtend };
                self.extend_word(to, bits, word, word);
                self.emit_widen(op, d, word, Slot::uniform(0));
            }
            Value::Word(word) => {
                self.emit(Operation::Convert { conversion, d, a });
                self.extend_word(to, bits, word, word);
            }
            Value::Long(_) => self.emit(Operation::Convert { conversion, d, a }),
        }
    }

    /// Extends a value narrower than its register.
    fn extend_word(&mut self, to: Type, bits: u8, d: Slot, a: Slot) {
        if to.bits() < 32 && bits > to.bits() {
            let op =
                if to.is_signed() { WordOp::SignExtend(to.bits()) } else { WordOp::ZeroExtend(to.bits()) };
            self.emit_word(op, d, [a]);
        }
    }

    /// Between integers without `.sat`: truncation or extension.
    fn convert_integer(
        &mut self,
        d: &Operand<'a>,
        a: &Operand<'a>,
        from: Type,
        from_type: IntegerType,
        to: IntegerType,
    ) -> Decoded {
        let a = self.wide_value(a, from)?;
        let (d, _) = self.destination(d)?;
        // The value is read as the source's type, then as the destination's where that is not wider.
        let narrow = if to.bits <= from_type.bits { to } else { from_type };
        let extension = |narrow: IntegerType| match (narrow.bits, narrow.signed) {
            (32.., _) => WordOp::Move,
            (bits, true) => WordOp::SignExtend(bits),
            (bits, false) => WordOp::ZeroExtend(bits),
        };
        // A signed number in a wider unsigned type keeps its sign bits up to that type's width.
        let cut = |lowering: &mut Self, word: Slot| {
            if from_type.signed && !to.signed && to.bits < 32 && to.bits > from_type.bits {
                lowering.emit_word(WordOp::ZeroExtend(to.bits), word, [word]);
            }
        };
        match (a, d) {
            (Value::Word(a), Value::Word(d)) => {
                self.emit_word(extension(narrow), d, [a]);
                cut(self, d);
            }
            (Value::Long(a), Value::Word(d)) => {
                self.emit(Operation::Narrow { op: NarrowOp::Low, d, a });
                if narrow.bits < 32 {
                    self.emit_word(extension(narrow), d, [d]);
                    cut(self, d);
                }
            }
            (Value::Word(a), Value::Long(d)) => {
                let word = self.new_word();
                self.emit_word(extension(narrow), word, [a]);
                cut(self, word);
                let to_unsigned_word = !to.signed && to.bits <= 32;
                let op = if narrow.signed && !to_unsigned_word {
                    WidenOp::SignExtend
                } else {
                    WidenOp::ZeroExtend
                };
                self.emit_widen(op, d, word, Slot::uniform(0));
            }
            (Value::Long(a), Value::Long(d)) => {
                let op = match (narrow.bits, narrow.signed) {
                    (64, _) => LongOp::Move,
                    (bits, true) => LongOp::SignExtend(bits),
                    (bits, false) => LongOp::ZeroExtend(bits),
                };
                self.emit_long(op, d, [a]);
            }
        }
        Ok(())
    }

    /// `cvt.rn.f16x2.f32 d, a, b`, of halves that are `to`: `a` goes into the upper half.
    fn convert_pair(
        &mut self,
        raw: &Raw<'a>,
        from: Type,
        to: FloatType,
        mode: FloatMode,
        rounded: Option<Rounding>,
    ) -> Decoded {
        let [d, a, b] = operands(raw)?;
        let (Type::F32, Some(rounding)) = (from, rounded) else { return unsupported(raw) };
        let halves = [self.new_word(), self.new_word()];
        for (half, operand) in halves.into_iter().zip([b, a]) {
            let a = Value::Word(self.word(operand, from)?);
            let conversion =
                Conversion::FloatToFloat { from: FloatType::F32, to, rounding, to_integer: false, mode };
            self.emit(Operation::Convert { conversion, d: Value::Word(half), a });
        }
        let d = self.word_destination(d)?;
        self.emit_word(WordOp::Pack16, d, halves);
        Ok(())
    }
}
