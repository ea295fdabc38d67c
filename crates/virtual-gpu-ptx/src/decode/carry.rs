//! Arithmetic on numbers of several words.

use super::super::instruction::{Carry, CarryOp, Operation, Slot, Value};
use super::super::lower::Lowering;
use super::super::syntax::Raw;
use super::{Decoded, Modifiers, Type, unsupported};

impl<'a> Lowering<'_, 'a> {
    /// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.cc`, `madc`
    pub(super) fn carry_arithmetic(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let kind = modifiers.kind()?;
        let sets = modifiers.take("cc");
        let is_high = modifiers.take("hi");
        let is_low = modifiers.take("lo");
        modifiers.finish()?;
        let is_product = raw.opcode.starts_with("mad");
        if !matches!(kind, Type::U32 | Type::S32 | Type::U64 | Type::S64) || is_product != (is_high ^ is_low)
        {
            return unsupported(raw);
        }
        let op = match (raw.opcode, is_high) {
            ("add" | "addc", _) => CarryOp::Add,
            ("sub" | "subc", _) => CarryOp::Sub,
            (_, false) => CarryOp::MadLow,
            (_, true) if kind.is_signed() => CarryOp::MadHighS,
            (_, true) => CarryOp::MadHighU,
        };
        let (d, from) = match raw.operands.split_first() {
            Some((d, from)) if from.len() == if is_product { 3 } else { 2 } => (d, from),
            _ => return Err(format!("`{}` has the wrong number of operands", raw.name())),
        };
        let zero = Slot::uniform(0);
        let mut sources = [if kind.bits() == 64 { Value::Long(zero) } else { Value::Word(zero) }; 3];
        for (source, operand) in sources.iter_mut().zip(from) {
            *source = self.value(operand, kind)?;
        }
        let carry_in = raw.opcode.ends_with('c').then(|| self.carry());
        let carry_out = sets.then(|| self.carry());
        let d = self.value_destination(d, kind)?;
        self.emit(Operation::Carry(Carry { op, carry_in, carry_out, d, sources }));
        Ok(())
    }
}
