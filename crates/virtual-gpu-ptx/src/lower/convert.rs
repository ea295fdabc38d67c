//! `cvt`

use super::builder::{Lowering, unused};
use super::operand::Lowered;
use crate::instruction::{
    Conversion, FloatMode, FloatType, Fp8, IntegerType, LongOp, NarrowOp, Operation, Rounding, Slot, Value,
    WidenOp, WordOp,
};
use crate::kernel::Uniform;
use crate::syntax::Operand;
use crate::types::Type;

impl<'a> Lowering<'_, 'a> {
    /// Converts into a register of the type's width and then extends to the destination's width.
    pub(crate) fn convert(
        &mut self,
        conversion: Conversion,
        from: Type,
        to: Type,
        [d, a]: &[Operand<'a>; 2],
    ) -> Lowered {
        let a = self.wide_value(a, from)?;
        let (d, bits) = self.wide_destination(d, to)?;
        match d {
            Value::Long(d) if to.bits() < 64 => {
                let word = self.new_word();
                self.emit(Operation::Convert { conversion, d: Value::Word(word), a });
                let op = if to.is_signed() { WidenOp::SignExtend } else { WidenOp::ZeroExtend };
                self.extend_word(to, bits, word, word);
                self.emit_widen(op, d, word, unused());
            }
            Value::Word(word) => {
                self.emit(Operation::Convert { conversion, d, a });
                self.extend_word(to, bits, word, word);
            }
            Value::Long(_) => self.emit(Operation::Convert { conversion, d, a }),
        }
        Ok(())
    }

    /// Extends a value that is narrower than its register.
    fn extend_word(&mut self, to: Type, bits: u8, d: Slot, a: Slot) {
        if to.bits() < 32 && bits > to.bits() {
            let op =
                if to.is_signed() { WordOp::SignExtend(to.bits()) } else { WordOp::ZeroExtend(to.bits()) };
            self.emit_word(op, d, [a]);
        }
    }

    /// Converts between integers without `.sat`: truncation or extension.
    pub(crate) fn convert_integer(
        &mut self,
        kind: Type,
        from: IntegerType,
        to: IntegerType,
        [d, a]: &[Operand<'a>; 2],
    ) -> Lowered {
        let a = self.wide_value(a, kind)?;
        let (d, _) = self.wide_destination(d, unsigned(to))?;
        // The value is read as the source type and then as the destination type if that is not wider.
        let narrow = if to.bits <= from.bits { to } else { from };
        match (a, d) {
            (Value::Word(a), Value::Word(d)) => {
                self.emit_word(extension(narrow), d, [a]);
                self.cut(from, to, d);
            }
            (Value::Long(a), Value::Word(d)) => {
                self.emit(Operation::Narrow { op: NarrowOp::Low, d, a });
                if narrow.bits < 32 {
                    self.emit_word(extension(narrow), d, [d]);
                    self.cut(from, to, d);
                }
            }
            (Value::Word(a), Value::Long(d)) => {
                let word = self.new_word();
                self.emit_word(extension(narrow), word, [a]);
                self.cut(from, to, word);
                let to_unsigned_word = !to.signed && to.bits <= 32;
                let op = match narrow.signed && !to_unsigned_word {
                    true => WidenOp::SignExtend,
                    false => WidenOp::ZeroExtend,
                };
                self.emit_widen(op, d, word, unused());
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

    /// Truncates a signed number that is held in a wider unsigned type: its sign bits are kept up to that type's width.
    fn cut(&mut self, from: IntegerType, to: IntegerType, word: Slot) {
        if from.signed && !to.signed && to.bits < 32 && to.bits > from.bits {
            self.emit_word(WordOp::ZeroExtend(to.bits), word, [word]);
        }
    }

    /// Lowers `cvt.rn.f16x2.f32 d, a, b`, with halves of type `to`: `a` becomes the upper half.
    pub(crate) fn convert_to_pair(
        &mut self,
        to: FloatType,
        rounding: Rounding,
        mode: FloatMode,
        [d, a, b]: &[Operand<'a>; 3],
    ) -> Lowered {
        let halves = [self.new_word(), self.new_word()];
        for (half, operand) in halves.into_iter().zip([b, a]) {
            let a = Value::Word(self.word(operand, Type::F32)?);
            let conversion =
                Conversion::FloatToFloat { from: FloatType::F32, to, rounding, to_integer: false, mode };
            self.emit(Operation::Convert { conversion, d: Value::Word(half), a });
        }
        let d = self.word_destination(d, Type::B32)?;
        self.emit_word(WordOp::Pack16, d, halves);
        Ok(())
    }

    /// Lowers `cvt` to a pair of bytes: `a`, or the upper half of a packed pair, becomes the upper byte.
    pub(crate) fn convert_to_fp8(
        &mut self,
        to: Fp8,
        relu: bool,
        d: &Operand<'a>,
        sources: &[Operand<'a>],
    ) -> Lowered {
        let (from, high, low) = match sources {
            [a, b] => (FloatType::F32, self.word(a, Type::F32)?, self.word(b, Type::F32)?),
            _ => {
                let low = self.word(&sources[0], Type::B32)?;
                let high = self.new_word();
                self.emit_word(WordOp::High16, high, [low]);
                (FloatType::F16, high, low)
            }
        };
        let bytes = [low, high].map(|number| {
            let byte = self.new_word();
            let conversion = Conversion::FloatToFp8 { from, to, relu };
            self.emit(Operation::Convert { conversion, d: Value::Word(byte), a: Value::Word(number) });
            byte
        });
        let d = self.word_destination(d, Type::B16)?;
        let selector = self.uniform_word(Uniform::Constant(0x5540));
        self.emit_word(WordOp::Prmt, d, [bytes[0], bytes[1], selector]);
        Ok(())
    }

    /// Lowers `cvt` from a pair of bytes: the upper byte becomes the upper half.
    pub(crate) fn convert_from_fp8(&mut self, from: Fp8, relu: bool, [d, a]: &[Operand<'a>; 2]) -> Lowered {
        let low = self.word(a, Type::B16)?;
        let (high, eight) = (self.new_word(), self.uniform_word(Uniform::Constant(8)));
        self.emit_word(WordOp::ShrU, high, [low, eight]);
        let halves = [low, high].map(|byte| {
            let half = self.new_word();
            let conversion = Conversion::Fp8ToHalf { from, relu };
            self.emit(Operation::Convert { conversion, d: Value::Word(half), a: Value::Word(byte) });
            half
        });
        let d = self.word_destination(d, Type::B32)?;
        self.emit_word(WordOp::Pack16, d, halves);
        Ok(())
    }
}

/// Returns the unsigned type of an integer's size; signed and unsigned types agree.
fn unsigned(integer: IntegerType) -> Type {
    match integer.bits {
        8 => Type::U8,
        16 => Type::U16,
        32 => Type::U32,
        _ => Type::U64,
    }
}

/// Reads the low bits of a word as an integer type.
fn extension(narrow: IntegerType) -> WordOp {
    match (narrow.bits, narrow.signed) {
        (32.., _) => WordOp::Move,
        (bits, true) => WordOp::SignExtend(bits),
        (bits, false) => WordOp::ZeroExtend(bits),
    }
}
