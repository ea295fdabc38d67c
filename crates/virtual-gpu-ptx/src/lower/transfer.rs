//! Moves between registers, and address conversions.

use super::builder::{Lowering, unused};
use super::operand::{Lowered, clock};
use crate::instruction::{
    BoolOp, CompareAs, Comparison, Condition, LongOp, NarrowOp, Operation, Predicate, Space, Value, WidenOp,
    WordOp,
};
use crate::kernel::Uniform;
use crate::resolved::Vector;
use crate::syntax::Operand;
use crate::types::Type;

impl<'a> Lowering<'_, 'a> {
    /// Lowers `mov`.
    pub(crate) fn move_(&mut self, kind: Type, d: &Operand<'a>, a: &Operand<'a>) -> Lowered {
        if let Operand::Name { name, component: None, offset: 0 } = a
            && let Some((clock, shift, register)) = clock(name)
        {
            if !register.agrees(kind) {
                return Err(format!("`{name}` has {} bits, not {}", register.bits(), kind.bits()));
            }
            let d = self.value_destination(d, kind)?;
            self.emit(Operation::ReadClock { clock, shift, d });
            return Ok(());
        }
        match kind.bits() {
            1 => {
                let d = self.predicate_destination(d)?;
                let operation = match a {
                    Operand::Name { name: "%is_explicit_cluster", component: None, offset: 0 } => {
                        let a = self.uniform_word(Uniform::IsExplicitCluster);
                        self.is_not_zero(d, Value::Word(a))
                    }
                    Operand::Integer(value) => Operation::SetPredicate { d, value: *value != 0 },
                    _ => {
                        let a = self.condition(a)?;
                        Operation::Logic { op: BoolOp::First, d, a, b: a }
                    }
                };
                self.emit(operation);
            }
            64 => {
                let (a, d) = (self.long(a, kind)?, self.long_destination(d, kind)?);
                self.emit_long(LongOp::Move, d, [a]);
            }
            _ => {
                let (a, d) = (self.word(a, kind)?, self.word_destination(d, kind)?);
                self.emit_word(WordOp::Move, d, [a]);
            }
        }
        Ok(())
    }

    /// Returns the operation that tests whether a value is not 0.
    fn is_not_zero(&mut self, d: Predicate, a: Value) -> Operation {
        Operation::Compare {
            comparison: Comparison::Ne,
            kind: CompareAs::Unsigned,
            a,
            b: Value::Word(unused()),
            combine: BoolOp::First,
            c: None,
            d: Some(d),
            complement: None,
        }
    }

    /// Lowers `mov.b64 {%r1,%r2}, %rd1`.
    pub(crate) fn unpack(&mut self, kind: Type, parts: &Vector<'a>, a: &Operand<'a>) -> Lowered {
        match parts {
            Vector::Halves32([low, high]) => {
                let a = self.long(a, kind)?;
                for (part, op) in [(low, NarrowOp::Low), (high, NarrowOp::High)] {
                    if *part != Operand::Sink {
                        let d = self.word_destination(part, Type::B32)?;
                        self.emit(Operation::Narrow { op, d, a });
                    }
                }
            }
            Vector::Halves16([low, high]) => {
                let a = self.word(a, kind)?;
                for (part, op) in [(low, WordOp::ZeroExtend(16)), (high, WordOp::High16)] {
                    if *part != Operand::Sink {
                        let d = self.word_destination(part, Type::B16)?;
                        self.emit_word(op, d, [a]);
                    }
                }
            }
            Vector::Quarters16([first, second, third, fourth]) => {
                let a = self.long(a, kind)?;
                for (op, pair) in [(NarrowOp::Low, [first, second]), (NarrowOp::High, [third, fourth])] {
                    let half = self.new_word();
                    self.emit(Operation::Narrow { op, d: half, a });
                    for (part, op) in pair.into_iter().zip([WordOp::ZeroExtend(16), WordOp::High16]) {
                        let d = self.word_destination(part, Type::B16)?;
                        self.emit_word(op, d, [half]);
                    }
                }
            }
        }
        Ok(())
    }

    /// Lowers `mov.b64 %rd1, {%r1,%r2}`.
    pub(crate) fn pack(&mut self, d: &Operand<'a>, parts: &Vector<'a>) -> Lowered {
        match parts {
            Vector::Halves32([low, high]) => {
                let (a, b) = (self.word(low, Type::B32)?, self.word(high, Type::B32)?);
                let d = self.long_destination(d, Type::B64)?;
                self.emit_widen(WidenOp::Pack, d, a, b);
            }
            Vector::Halves16([low, high]) => {
                let (a, b) = (self.word(low, Type::B16)?, self.word(high, Type::B16)?);
                let d = self.word_destination(d, Type::B32)?;
                self.emit_word(WordOp::Pack16, d, [a, b]);
            }
            Vector::Quarters16([first, second, third, fourth]) => {
                let halves = [self.new_word(), self.new_word()];
                for (half, [low, high]) in halves.into_iter().zip([[first, second], [third, fourth]]) {
                    let (a, b) = (self.word(low, Type::B16)?, self.word(high, Type::B16)?);
                    self.emit_word(WordOp::Pack16, half, [a, b]);
                }
                let d = self.long_destination(d, Type::B64)?;
                self.emit_widen(WidenOp::Pack, d, halves[0], halves[1]);
            }
        }
        Ok(())
    }

    /// Lowers `cvta`.
    pub(crate) fn convert_address(&mut self, base: u64, kind: Type, [d, a]: &[Operand<'a>; 2]) -> Lowered {
        let (a, d) = (self.long(a, kind)?, self.long_destination(d, kind)?);
        if base == 0 {
            self.emit_long(LongOp::Move, d, [a]);
        } else {
            let base = self.uniform_long(Uniform::Constant(base));
            self.emit_long(LongOp::Add, d, [a, base]);
        }
        Ok(())
    }

    /// Lowers `isspacep`.
    pub(crate) fn is_space(&mut self, space: Space, in_cluster: bool, [d, a]: &[Operand<'a>; 2]) -> Lowered {
        let a = match self.wide_value(a, Type::B32)? {
            Value::Long(a) => a,
            Value::Word(a) => {
                let long = self.new_long();
                self.emit_widen(WidenOp::ZeroExtend, long, a, unused());
                long
            }
        };
        let d = self.predicate_destination(d)?;
        self.emit(Operation::IsSpace { space, in_cluster, d, a });
        if space == Space::Global {
            // The window of the kernel's parameters is part of the global window.
            let predicate = self.new_predicate();
            self.emit(Operation::IsSpace { space: Space::Param, in_cluster, d: predicate, a });
            let [a, b] = [d, predicate].map(|predicate| Condition { predicate, negated: false });
            self.emit(Operation::Logic { op: BoolOp::Or, d, a, b });
        }
        Ok(())
    }
}
