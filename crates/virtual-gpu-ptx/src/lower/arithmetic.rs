//! Arithmetic on registers.

use super::builder::{Lowering, unused};
use super::operand::Lowered;
use crate::instruction::{
    Carry, CarryOp, FloatMode, FloatOp, FloatType, LongOp, NarrowOp, NumberKind, Operation, Packed, Slot,
    Value, WidenOp, WordOp,
};
use crate::syntax::Operand;
use crate::types::Type;

impl<'a> Lowering<'_, 'a> {
    /// Lowers sources of up to 32 bits.
    pub(crate) fn words(&mut self, sources: &[Operand<'a>], kind: Type) -> Lowered<[Slot; 3]> {
        each_source(sources, |source| self.word(source, kind))
    }

    /// Lowers 64-bit sources.
    fn longs(&mut self, sources: &[Operand<'a>], kind: Type) -> Lowered<[Slot; 3]> {
        each_source(sources, |source| self.long(source, kind))
    }

    pub(crate) fn word_operation(
        &mut self,
        op: WordOp,
        kind: Type,
        d: &Operand<'a>,
        sources: &[Operand<'a>],
    ) -> Lowered {
        let sources = self.words(sources, kind)?;
        let d = self.word_destination(d, kind)?;
        self.emit_word(op, d, sources);
        Ok(())
    }

    pub(crate) fn half_operation(
        &mut self,
        op: WordOp,
        kind: Type,
        d: &Operand<'a>,
        sources: &[Operand<'a>],
    ) -> Lowered {
        let [a, b, c] = self.words(sources, kind)?;
        let d = self.word_destination(d, kind)?;
        self.emit(Operation::Half { op, signed: kind.is_signed(), d, a, b, c });
        Ok(())
    }

    pub(crate) fn long_operation(
        &mut self,
        op: LongOp,
        kind: Type,
        d: &Operand<'a>,
        sources: &[Operand<'a>],
    ) -> Lowered {
        let sources = self.longs(sources, kind)?;
        let d = self.long_destination(d, kind)?;
        self.emit_long(op, d, sources);
        Ok(())
    }

    pub(crate) fn narrow(&mut self, op: NarrowOp, kind: Type, d: &Operand<'a>, a: &Operand<'a>) -> Lowered {
        let a = self.long(a, kind)?;
        let d = self.word_destination(d, Type::U32)?;
        self.emit(Operation::Narrow { op, d, a });
        Ok(())
    }

    /// Lowers `mul.wide` and `mad.wide`, whose product is twice as wide.
    pub(crate) fn wide_product(&mut self, kind: Type, d: &Operand<'a>, sources: &[Operand<'a>]) -> Lowered {
        let [mut a, mut b, _] = self.words(&sources[..2], kind)?;
        let c = sources.get(2);
        if kind.bits() == 32 {
            let (op, wide) = match kind.is_signed() {
                true => (WidenOp::MulS, Type::S64),
                false => (WidenOp::MulU, Type::U64),
            };
            let c = c.map_or(Ok(unused()), |c| self.long(c, wide))?;
            let d = self.long_destination(d, wide)?;
            self.emit(Operation::Widen { op, d, a, b, c });
            return Ok(());
        }
        let extend = if kind.is_signed() { WordOp::SignExtend(16) } else { WordOp::ZeroExtend(16) };
        for source in [&mut a, &mut b] {
            let extended = self.new_word();
            self.emit_word(extend, extended, [*source]);
            *source = extended;
        }
        let c = c.map_or(Ok(unused()), |c| self.word(c, Type::B32))?;
        let d = self.word_destination(d, Type::B32)?;
        self.emit_word(WordOp::Mad, d, [a, b, c]);
        Ok(())
    }

    /// Emits `first` on `a` and `b` and then `second` on the result and `c`.
    pub(crate) fn chain(
        &mut self,
        [first, second]: [WordOp; 2],
        kind: Type,
        [d, a, b, c]: &[Operand<'a>; 4],
    ) -> Lowered {
        let (a, b, c) = (self.word(a, kind)?, self.word(b, kind)?, self.word(c, kind)?);
        let d = self.word_destination(d, kind)?;
        let between = self.new_word();
        for (op, d, [a, b]) in [(first, between, [a, b]), (second, d, [between, c])] {
            if kind.bits() == 16 {
                let signed = kind.is_signed();
                self.emit(Operation::Half { op, signed, d, a, b, c: unused() });
            } else {
                self.emit_word(op, d, [a, b]);
            }
        }
        Ok(())
    }

    pub(crate) fn pair(&mut self, op: Packed, relu: bool, [d, a, b]: &[Operand<'a>; 3]) -> Lowered {
        let sources = [self.pair_source(a)?, self.pair_source(b)?];
        let d = self.word_destination(d, Type::B32)?;
        self.emit_word(WordOp::Packed(op), d, sources);
        if relu {
            self.emit_word(WordOp::Packed(Packed::MaxS), d, [d, unused()]);
        }
        Ok(())
    }

    pub(crate) fn carry_operation(
        &mut self,
        op: CarryOp,
        kind: Type,
        [reads, writes]: [bool; 2],
        d: &Operand<'a>,
        from: &[Operand<'a>],
    ) -> Lowered {
        let mut sources = [if kind.bits() == 64 { Value::Long(unused()) } else { Value::Word(unused()) }; 3];
        for (source, operand) in sources.iter_mut().zip(from) {
            *source = self.value(operand, kind)?;
        }
        let carry_in = reads.then(|| self.carry());
        let carry_out = writes.then(|| self.carry());
        let d = self.value_destination(d, kind)?;
        self.emit(Operation::Carry(Carry { op, carry_in, carry_out, d, sources }));
        Ok(())
    }

    pub(crate) fn float(
        &mut self,
        op: FloatOp,
        float_type: FloatType,
        kind: Type,
        mode: FloatMode,
        d: &Operand<'a>,
        sources: &[Operand<'a>],
    ) -> Lowered {
        let [a, b, c] = match float_type {
            FloatType::F64 => self.longs(sources, kind)?,
            _ => self.words(sources, kind)?,
        };
        let operation = match float_type {
            FloatType::F32 => Operation::Float32 { op, mode, d: self.word_destination(d, kind)?, a, b, c },
            FloatType::F64 => Operation::Float64 { op, mode, d: self.long_destination(d, kind)?, a, b, c },
            half => {
                let d = self.word_destination(d, kind)?;
                Operation::Float16 { op, kind: half, mode, d, a, b, c }
            }
        };
        self.emit(operation);
        Ok(())
    }

    /// Lowers `testp`.
    pub(crate) fn test_number(&mut self, test: NumberKind, kind: Type, [d, a]: &[Operand<'a>; 2]) -> Lowered {
        let a = self.value(a, kind)?;
        let d = self.predicate_destination(d)?;
        self.emit(Operation::TestNumber { kind: test, d, a });
        Ok(())
    }
}

/// Lowers up to three sources; missing sources are [`unused`].
fn each_source<'a>(
    sources: &[Operand<'a>],
    mut lower: impl FnMut(&Operand<'a>) -> Lowered<Slot>,
) -> Lowered<[Slot; 3]> {
    let mut slots = [unused(); 3];
    for (slot, source) in slots.iter_mut().zip(sources) {
        *slot = lower(source)?;
    }
    Ok(slots)
}
