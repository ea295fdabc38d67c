//! Shifts, bit fields, and predicate logic.

use super::builder::{Lowering, unused};
use super::operand::Lowered;
use crate::instruction::{BoolOp, LongWordOp, Operation, WordOp};
use crate::syntax::Operand;
use crate::types::Type;

impl<'a> Lowering<'_, 'a> {
    /// Lowers `shl` and `shr`.
    pub(crate) fn shift(&mut self, left: bool, kind: Type, [d, a, amount]: &[Operand<'a>; 3]) -> Lowered {
        let amount = self.word(amount, Type::U32)?;
        let signed = kind.is_signed();
        if kind.bits() == 64 {
            let op = match (left, signed) {
                (true, _) => LongWordOp::Shl,
                (false, true) => LongWordOp::ShrS,
                (false, false) => LongWordOp::ShrU,
            };
            let (a, d) = (self.long(a, kind)?, self.long_destination(d, kind)?);
            self.emit(Operation::LongWord { op, d, a, b: amount, c: unused() });
            return Ok(());
        }
        let op = match (left, signed) {
            (true, _) => WordOp::Shl,
            (false, true) => WordOp::ShrS,
            (false, false) => WordOp::ShrU,
        };
        let mut a = self.word(a, kind)?;
        let d = self.word_destination(d, kind)?;
        if kind.bits() == 16 && !left {
            // The amount is a full 32-bit number, so only `a` is extended.
            let extended = self.new_word();
            let extend = if signed { WordOp::SignExtend(16) } else { WordOp::ZeroExtend(16) };
            self.emit_word(extend, extended, [a]);
            a = extended;
        }
        self.emit_word(op, d, [a, amount]);
        Ok(())
    }

    /// Lowers `bfe`.
    pub(crate) fn extract(&mut self, kind: Type, [d, a, b, c]: &[Operand<'a>; 4]) -> Lowered {
        let (b, c) = (self.word(b, Type::U32)?, self.word(c, Type::U32)?);
        if kind.bits() == 64 {
            let (a, d) = (self.long(a, kind)?, self.long_destination(d, kind)?);
            let op = if kind.is_signed() { LongWordOp::BfeS } else { LongWordOp::BfeU };
            self.emit(Operation::LongWord { op, d, a, b, c });
        } else {
            let (a, d) = (self.word(a, kind)?, self.word_destination(d, kind)?);
            let op = if kind.is_signed() { WordOp::BfeS } else { WordOp::BfeU };
            self.emit_word(op, d, [a, b, c]);
        }
        Ok(())
    }

    /// Lowers `bfi`.
    pub(crate) fn insert(&mut self, kind: Type, [d, a, b, position, length]: &[Operand<'a>; 5]) -> Lowered {
        let (position, length) = (self.word(position, Type::U32)?, self.word(length, Type::U32)?);
        let operation = if kind.bits() == 64 {
            let (a, b) = (self.long(a, kind)?, self.long(b, kind)?);
            Operation::InsertLong { d: self.long_destination(d, kind)?, a, b, position, length }
        } else {
            let (a, b) = (self.word(a, kind)?, self.word(b, kind)?);
            Operation::InsertWord { d: self.word_destination(d, kind)?, a, b, position, length }
        };
        self.emit(operation);
        Ok(())
    }

    /// Lowers `and.pred` to `not.pred`.
    pub(crate) fn logic(
        &mut self,
        op: BoolOp,
        negates: bool,
        d: &Operand<'a>,
        [a, b]: [&Operand<'a>; 2],
    ) -> Lowered {
        let (mut a, b) = (self.condition(a)?, self.condition(b)?);
        let d = self.predicate_destination(d)?;
        a.negated ^= negates;
        self.emit(Operation::Logic { op, d, a, b });
        Ok(())
    }
}
