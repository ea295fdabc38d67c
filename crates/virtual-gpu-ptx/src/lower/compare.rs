//! Comparisons and selections.

use super::builder::{Lowering, unused};
use super::operand::Lowered;
use crate::instruction::{
    BoolOp, CompareAs, Comparison, Condition, Operation, Predicate, Slot, Value, WordOp,
};
use crate::kernel::Uniform;
use crate::resolved::{Compare, CompareResult};
use crate::syntax::Operand;
use crate::types::Type;

impl<'a> Lowering<'_, 'a> {
    /// Lowers `setp` and `set`.
    pub(crate) fn compare(&mut self, compare: &Compare<'a>) -> Lowered {
        let c = compare.c.as_ref().map(|c| self.condition(c)).transpose()?;
        match &compare.result {
            CompareResult::Predicate(d) => {
                let sources = self.compared_values(compare)?;
                let (d, complement) = match d {
                    Operand::Pair(first, second) => {
                        let second = if *second == "_" { None } else { Some(self.predicate(second)?) };
                        (self.predicate(first)?, second)
                    }
                    _ => (self.predicate_destination(d)?, None),
                };
                self.emit_compare(compare, sources, c, d, complement);
            }
            CompareResult::Predicates([low, high]) => {
                let (a, b) = (self.halves(&compare.a)?, self.halves(&compare.b)?);
                let d = [self.predicate(low)?, self.predicate(high)?];
                for ((d, a), b) in d.into_iter().zip(a).zip(b) {
                    self.emit_compare(compare, [Value::Word(a), Value::Word(b)], c, d, None);
                }
            }
            CompareResult::Number(d, kind, yes) => {
                let sources = self.compared_values(compare)?;
                let predicate = self.new_predicate();
                self.emit_compare(compare, sources, c, predicate, None);
                let d = self.word_destination(d, *kind)?;
                let a = self.uniform_word(Uniform::Constant(*yes));
                let condition = Condition { predicate, negated: false };
                self.emit(Operation::SelectWord { d, a, b: unused(), condition });
            }
            CompareResult::Numbers(d, yes) => {
                let (a, b) = (self.halves(&compare.a)?, self.halves(&compare.b)?);
                let yes = self.uniform_word(Uniform::Constant(*yes));
                let answers = [self.new_word(), self.new_word()];
                for ((answer, a), b) in answers.into_iter().zip(a).zip(b) {
                    let predicate = self.new_predicate();
                    self.emit_compare(compare, [Value::Word(a), Value::Word(b)], c, predicate, None);
                    let condition = Condition { predicate, negated: false };
                    self.emit(Operation::SelectWord { d: answer, a: yes, b: unused(), condition });
                }
                let d = self.word_destination(d, Type::B32)?;
                self.emit_word(WordOp::Pack16, d, answers);
            }
        }
        Ok(())
    }

    fn compared_values(&mut self, compare: &Compare<'a>) -> Lowered<[Value; 2]> {
        Ok([self.value(&compare.a, compare.kind)?, self.value(&compare.b, compare.kind)?])
    }

    fn emit_compare(
        &mut self,
        &Compare { comparison, compare_as, combine, .. }: &Compare<'a>,
        [a, b]: [Value; 2],
        c: Option<Condition>,
        d: Predicate,
        complement: Option<Predicate>,
    ) {
        let (kind, d) = (compare_as, Some(d));
        self.emit(Operation::Compare { comparison, kind, a, b, combine, c, d, complement });
    }

    /// Returns a packed pair's low and high halves.
    fn halves(&mut self, operand: &Operand<'a>) -> Lowered<[Slot; 2]> {
        let pair = self.pair_source(operand)?;
        let high = self.new_word();
        self.emit_word(WordOp::High16, high, [pair]);
        Ok([pair, high])
    }

    /// Lowers `selp`.
    pub(crate) fn select(&mut self, kind: Type, [d, a, b, condition]: &[Operand<'a>; 4]) -> Lowered {
        let condition = self.condition(condition)?;
        self.emit_select(kind, [d, a, b], condition)
    }

    fn emit_select(&mut self, kind: Type, [d, a, b]: [&Operand<'a>; 3], condition: Condition) -> Lowered {
        let (a, b) = (self.value(a, kind)?, self.value(b, kind)?);
        let operation = match (self.value_destination(d, kind)?, a, b) {
            (Value::Long(d), Value::Long(a), Value::Long(b)) => Operation::SelectLong { d, a, b, condition },
            (Value::Word(d), Value::Word(a), Value::Word(b)) => Operation::SelectWord { d, a, b, condition },
            _ => return Err("operands of different widths".to_owned()),
        };
        self.emit(operation);
        Ok(())
    }

    /// Lowers `slct`.
    pub(crate) fn select_by_sign(
        &mut self,
        kind: Type,
        by: Type,
        compare_as: CompareAs,
        [d, a, b, c]: &[Operand<'a>; 4],
    ) -> Lowered {
        let predicate: Predicate = self.new_predicate();
        let c = self.value(c, by)?;
        self.emit(Operation::Compare {
            comparison: Comparison::Ge,
            kind: compare_as,
            a: c,
            b: Value::Word(unused()),
            combine: BoolOp::First,
            c: None,
            d: Some(predicate),
            complement: None,
        });
        self.emit_select(kind, [d, a, b], Condition { predicate, negated: false })
    }
}
