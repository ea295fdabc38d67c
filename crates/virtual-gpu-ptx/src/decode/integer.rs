//! Integer arithmetic, bits, comparison and selection.

use super::super::instruction::{
    BoolOp, CompareAs, Comparison, Condition, LongOp, LongWordOp, NarrowOp, Operation, Predicate, Slot,
    Value, WidenOp, WordOp,
};
use super::super::kernel::Uniform;
use super::super::lower::Lowering;
use super::super::syntax::{Operand, Raw};
use super::operand::padded;
use super::{Decoded, Modifiers, Type, operands, unsupported};

impl<'a> Lowering<'_, 'a> {
    /// `add` to `mul24`, on integers.
    pub(super) fn integer(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let kind = modifiers.kind()?;
        let saturated = modifiers.take("sat");
        let part = modifiers.choose(|name| match name {
            "lo" => Some(Part::Low),
            "hi" => Some(Part::High),
            "wide" => Some(Part::Wide),
            _ => None,
        });
        if kind.is_float() || !matches!(kind.bits(), 16 | 32 | 64) || (saturated && kind != Type::S32) {
            return modifiers.unsupported();
        }
        modifiers.finish()?;
        let (d, sources) = match raw.operands.split_first() {
            Some((d, sources)) if sources.len() == source_count(raw.opcode) => (d, sources),
            _ => return Err(format!("`{}` has the wrong number of operands", raw.name())),
        };
        if part == Some(Part::Wide) {
            return self.wide_product(raw, kind, d, sources);
        }
        match kind.bits() {
            64 => {
                let Some(op) = long_op(raw.opcode, kind.is_signed(), part) else { return unsupported(raw) };
                let sources = self.sources(sources, kind, true)?;
                let d = self.long_destination(d)?;
                let [a, b, c] = padded(sources);
                self.emit(Operation::Long { op, d, a, b, c });
            }
            bits => {
                let Some(op) = word_op(raw.opcode, kind, part, saturated) else { return unsupported(raw) };
                let sources = self.sources(sources, kind, false)?;
                let d = self.word_destination(d)?;
                let [a, b, c] = padded(sources);
                let signed = kind.is_signed();
                self.emit(match bits {
                    16 => Operation::Half { op, signed, d, a, b, c },
                    _ => Operation::Word { op, d, a, b, c },
                });
            }
        }
        Ok(())
    }

    fn sources(&mut self, operands: &[Operand<'a>], kind: Type, long: bool) -> Decoded<[Slot; 3]> {
        let mut slots = [Slot::uniform(0); 3];
        for (slot, operand) in slots.iter_mut().zip(operands) {
            *slot = if long { self.long(operand, kind)? } else { self.word(operand, kind)? };
        }
        Ok(slots)
    }

    /// `mul.wide` and `mad.wide`: a product of twice the width.
    fn wide_product(&mut self, raw: &Raw<'a>, kind: Type, d: &Operand<'a>, from: &[Operand<'a>]) -> Decoded {
        let [a, b] = [&from[0], &from[1]].map(|operand| self.word(operand, kind));
        let (mut a, mut b) = (a?, b?);
        match kind.bits() {
            32 => {
                let c = match from.get(2) {
                    Some(c) => self.long(c, if kind.is_signed() { Type::S64 } else { Type::U64 })?,
                    None => Slot::uniform(0),
                };
                let op = if kind.is_signed() { WidenOp::MulS } else { WidenOp::MulU };
                let d = self.long_destination(d)?;
                self.emit(Operation::Widen { op, d, a, b, c });
            }
            16 => {
                let extend = if kind.is_signed() { WordOp::SignExtend(16) } else { WordOp::ZeroExtend(16) };
                for source in [&mut a, &mut b] {
                    let extended = self.new_word();
                    self.emit_word(extend, extended, [*source]);
                    *source = extended;
                }
                let c = match from.get(2) {
                    Some(c) => self.word(c, Type::B32)?,
                    None => Slot::uniform(0),
                };
                let d = self.word_destination(d)?;
                self.emit_word(WordOp::Mad, d, [a, b, c]);
            }
            _ => return unsupported(raw),
        }
        Ok(())
    }

    /// `and` to `cnot`, predicates included.
    pub(super) fn logic(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let kind = modifiers.kind()?;
        modifiers.finish()?;
        if !matches!(kind, Type::Pred | Type::B16 | Type::B32 | Type::B64) {
            return unsupported(raw);
        }
        let (d, a, b) = match raw.operands.as_slice() {
            [d, a] if matches!(raw.opcode, "not" | "cnot") => (d, a, a),
            [d, a, b] if matches!(raw.opcode, "and" | "or" | "xor") => (d, a, b),
            _ => return Err(format!("`{}` has the wrong number of operands", raw.name())),
        };
        if kind == Type::Pred {
            return self.predicate_logic(raw, d, a, b);
        }
        if kind.bits() == 64 {
            let op = match raw.opcode {
                "and" => LongOp::And,
                "or" => LongOp::Or,
                "xor" => LongOp::Xor,
                "not" => LongOp::Not,
                _ => LongOp::Cnot,
            };
            let (a, b) = (self.long(a, kind)?, self.long(b, kind)?);
            let d = self.long_destination(d)?;
            self.emit_long(op, d, [a, b]);
        } else {
            let op = match raw.opcode {
                "and" => WordOp::And,
                "or" => WordOp::Or,
                "xor" => WordOp::Xor,
                "not" => WordOp::Not,
                _ => WordOp::Cnot,
            };
            let (a, b) = (self.word(a, kind)?, self.word(b, kind)?);
            let d = self.word_destination(d)?;
            let c = Slot::uniform(0);
            self.emit(match kind.bits() {
                16 => Operation::Half { op, signed: false, d, a, b, c },
                _ => Operation::Word { op, d, a, b, c },
            });
        }
        Ok(())
    }

    fn predicate_logic(
        &mut self,
        raw: &Raw<'a>,
        d: &Operand<'a>,
        a: &Operand<'a>,
        b: &Operand<'a>,
    ) -> Decoded {
        let (mut a, b) = (self.condition(a)?, self.condition(b)?);
        let d = self.predicate_destination(d)?;
        let op = match raw.opcode {
            "and" => BoolOp::And,
            "or" => BoolOp::Or,
            "xor" => BoolOp::Xor,
            "not" => {
                a.negated = !a.negated;
                BoolOp::First
            }
            _ => return unsupported(raw),
        };
        self.emit(Operation::Logic { op, d, a, b });
        Ok(())
    }

    /// `shl` and `shr`. Amounts beyond the width count as the width.
    pub(super) fn shift(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let kind = modifiers.kind()?;
        modifiers.finish()?;
        let [d, a, amount] = operands(raw)?;
        let left = raw.opcode == "shl";
        let amount = self.word(amount, Type::U32)?;
        let signed = kind.is_signed();
        if kind.bits() == 64 {
            let op = match (left, signed) {
                (true, _) => LongWordOp::Shl,
                (false, true) => LongWordOp::ShrS,
                (false, false) => LongWordOp::ShrU,
            };
            let (a, d) = (self.long(a, kind)?, self.long_destination(d)?);
            self.emit(Operation::LongWord { op, d, a, b: amount, c: Slot::uniform(0) });
            return Ok(());
        }
        let op = match (left, signed) {
            (true, _) => WordOp::Shl,
            (false, true) => WordOp::ShrS,
            (false, false) => WordOp::ShrU,
        };
        let mut a = self.word(a, kind)?;
        let d = self.word_destination(d)?;
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

    /// `shf`: shifts a pair of words.
    pub(super) fn funnel_shift(&mut self, raw: &Raw<'a>) -> Decoded {
        let op = match raw.modifiers.as_slice() {
            ["l", "wrap", "b32"] => WordOp::ShfLeftWrap,
            ["l", "clamp", "b32"] => WordOp::ShfLeftClamp,
            ["r", "wrap", "b32"] => WordOp::ShfRightWrap,
            ["r", "clamp", "b32"] => WordOp::ShfRightClamp,
            _ => return unsupported(raw),
        };
        self.three_words(raw, op)
    }

    pub(super) fn three_words(&mut self, raw: &Raw<'a>, op: WordOp) -> Decoded {
        let [d, a, b, c] = operands(raw)?;
        let sources = [self.word(a, Type::B32)?, self.word(b, Type::B32)?, self.word(c, Type::U32)?];
        let d = self.word_destination(d)?;
        self.emit_word(op, d, sources);
        Ok(())
    }

    /// `lop3.b32`
    pub(super) fn lop3(&mut self, raw: &Raw<'a>) -> Decoded {
        let (["b32"], [d, a, b, c, Operand::Integer(table @ 0..256)]) =
            (raw.modifiers.as_slice(), raw.operands.as_slice())
        else {
            return unsupported(raw);
        };
        let sources = [self.word(a, Type::B32)?, self.word(b, Type::B32)?, self.word(c, Type::B32)?];
        let d = self.word_destination(d)?;
        self.emit_word(WordOp::Lop3(*table as u8), d, sources);
        Ok(())
    }

    /// `dp4a`
    pub(super) fn dot_product(&mut self, raw: &Raw<'a>) -> Decoded {
        let [a @ ("s32" | "u32"), b @ ("s32" | "u32")] = raw.modifiers.as_slice() else {
            return unsupported(raw);
        };
        self.three_words(raw, WordOp::Dp4a { signed: [*a == "s32", *b == "s32"] })
    }

    /// `popc`, `clz`, `brev`, `bfind`
    pub(super) fn bits(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let kind = modifiers.kind()?;
        let shift = modifiers.take("shiftamt");
        modifiers.finish()?;
        let [d, a] = operands(raw)?;
        let signed = kind.is_signed();
        if kind.bits() == 64 {
            let a = self.long(a, kind)?;
            if raw.opcode == "brev" {
                let d = self.long_destination(d)?;
                self.emit_long(LongOp::Brev, d, [a]);
                return Ok(());
            }
            let op = match (raw.opcode, signed, shift) {
                ("popc", ..) => NarrowOp::Popc,
                ("clz", ..) => NarrowOp::Clz,
                (_, true, false) => NarrowOp::BfindS,
                (_, false, false) => NarrowOp::BfindU,
                (_, true, true) => NarrowOp::BfindShiftS,
                (_, false, true) => NarrowOp::BfindShiftU,
            };
            let d = self.word_destination(d)?;
            self.emit(Operation::Narrow { op, d, a });
            return Ok(());
        }
        let op = match (raw.opcode, signed, shift) {
            _ if kind.bits() != 32 => return unsupported(raw),
            ("popc", ..) => WordOp::Popc,
            ("clz", ..) => WordOp::Clz,
            ("brev", ..) => WordOp::Brev,
            (_, true, false) => WordOp::BfindS,
            (_, false, false) => WordOp::BfindU,
            (_, true, true) => WordOp::BfindShiftS,
            (_, false, true) => WordOp::BfindShiftU,
        };
        let (a, d) = (self.word(a, kind)?, self.word_destination(d)?);
        self.emit_word(op, d, [a]);
        Ok(())
    }

    /// `bfe`
    pub(super) fn extract(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let kind = modifiers.kind()?;
        modifiers.finish()?;
        let [d, a, b, c] = operands(raw)?;
        let (b, c) = (self.word(b, Type::U32)?, self.word(c, Type::U32)?);
        match kind {
            Type::U32 | Type::S32 => {
                let (a, d) = (self.word(a, kind)?, self.word_destination(d)?);
                let op = if kind.is_signed() { WordOp::BfeS } else { WordOp::BfeU };
                self.emit_word(op, d, [a, b, c]);
            }
            Type::U64 | Type::S64 => {
                let (a, d) = (self.long(a, kind)?, self.long_destination(d)?);
                let op = if kind.is_signed() { LongWordOp::BfeS } else { LongWordOp::BfeU };
                self.emit(Operation::LongWord { op, d, a, b, c });
            }
            _ => return unsupported(raw),
        }
        Ok(())
    }

    /// `bfi`
    pub(super) fn insert(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let kind = modifiers.kind()?;
        modifiers.finish()?;
        let [d, a, b, position, length] = operands(raw)?;
        let (position, length) = (self.word(position, Type::U32)?, self.word(length, Type::U32)?);
        let operation = match kind {
            Type::B32 => {
                let (a, b) = (self.word(a, kind)?, self.word(b, kind)?);
                Operation::InsertWord { d: self.word_destination(d)?, a, b, position, length }
            }
            Type::B64 => {
                let (a, b) = (self.long(a, kind)?, self.long(b, kind)?);
                Operation::InsertLong { d: self.long_destination(d)?, a, b, position, length }
            }
            _ => return unsupported(raw),
        };
        self.emit(operation);
        Ok(())
    }

    /// `setp`
    pub(super) fn compare(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let kind = modifiers.kind()?;
        if let Some(half) = half_of(kind) {
            return self.compare_pairs(raw, modifiers, half);
        }
        let (comparison, kind_of, combine) = comparison_modifiers(modifiers, kind)?;
        let (d, a, b, c) = match raw.operands.as_slice() {
            [d, a, b] if combine == BoolOp::First => (d, a, b, None),
            [d, a, b, c] if combine != BoolOp::First => (d, a, b, Some(self.condition(c)?)),
            _ => return Err(format!("`{}` has the wrong number of operands", raw.name())),
        };
        let (a, b) = (self.value(a, kind)?, self.value(b, kind)?);
        let (d, complement) = match d {
            Operand::Pair(first, second) => {
                let second = if *second == "_" { None } else { Some(self.predicate(second)?) };
                (Some(self.predicate(first)?), second)
            }
            _ => (Some(self.predicate_destination(d)?), None),
        };
        self.emit(Operation::Compare { comparison, kind: kind_of, a, b, combine, c, d, complement });
        Ok(())
    }

    /// `set`: a comparison whose answer is a number: all ones or 1.0 for true.
    pub(super) fn compare_to_number(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let kind = modifiers.kind()?;
        let to = modifiers.kind()?;
        if let Some(half) = half_of(kind) {
            return self.compare_pairs_to_number(raw, modifiers, half, to);
        }
        let (comparison, kind_of, combine) = comparison_modifiers(modifiers, kind)?;
        let yes = match to {
            Type::U32 | Type::S32 => 0xffff_ffff,
            Type::U16 | Type::S16 => 0xffff,
            Type::F32 => u64::from(1.0_f32.to_bits()),
            Type::F16 => HALF_ONE,
            Type::Bf16 => BRAIN_ONE,
            _ => return unsupported(raw),
        };
        let (d, a, b, c) = match raw.operands.as_slice() {
            [d, a, b] if combine == BoolOp::First => (d, a, b, None),
            [d, a, b, c] if combine != BoolOp::First => (d, a, b, Some(self.condition(c)?)),
            _ => return Err(format!("`{}` has the wrong number of operands", raw.name())),
        };
        let (a, b) = (self.value(a, kind)?, self.value(b, kind)?);
        let predicate = self.new_predicate();
        self.emit(Operation::Compare {
            comparison,
            kind: kind_of,
            a,
            b,
            combine,
            c,
            d: Some(predicate),
            complement: None,
        });
        let d = self.word_destination(d)?;
        let a = self.uniform_word(Uniform::Constant(yes));
        let condition = Condition { predicate, negated: false };
        self.emit(Operation::SelectWord { d, a, b: Slot::uniform(0), condition });
        Ok(())
    }

    /// `setp` on both halves of `.f16x2` or `.bf16x2`: one answer for each.
    fn compare_pairs(&mut self, raw: &Raw<'a>, modifiers: Modifiers<'_, 'a>, half: Type) -> Decoded {
        let (comparison, kind, combine) = comparison_modifiers(modifiers, half)?;
        let (d, a, b, c) = match raw.operands.as_slice() {
            [Operand::Pair(low, high), a, b] if combine == BoolOp::First => ([low, high], a, b, None),
            [Operand::Pair(low, high), a, b, c] if combine != BoolOp::First => {
                ([low, high], a, b, Some(self.condition(c)?))
            }
            _ => return Err(format!("`{}` has the wrong number of operands", raw.name())),
        };
        let (a, b) = (self.halves(a)?, self.halves(b)?);
        let d = [self.predicate(d[0])?, self.predicate(d[1])?];
        for ((d, a), b) in d.into_iter().zip(a).zip(b) {
            let (a, b) = (Value::Word(a), Value::Word(b));
            self.emit(Operation::Compare {
                comparison,
                kind,
                a,
                b,
                combine,
                c,
                d: Some(d),
                complement: None,
            });
        }
        Ok(())
    }

    /// `set` on both halves: 1.0, or as an integer all ones, in each half for which it holds.
    fn compare_pairs_to_number(
        &mut self,
        raw: &Raw<'a>,
        modifiers: Modifiers<'_, 'a>,
        half: Type,
        to: Type,
    ) -> Decoded {
        let (comparison, kind, combine) = comparison_modifiers(modifiers, half)?;
        let yes = match (to, half) {
            (Type::U32 | Type::S32, _) => 0xffff,
            (Type::F16x2, Type::F16) => HALF_ONE,
            (Type::Bf16x2, Type::Bf16) => BRAIN_ONE,
            _ => return unsupported(raw),
        };
        let (d, a, b, c) = match raw.operands.as_slice() {
            [d, a, b] if combine == BoolOp::First => (d, a, b, None),
            [d, a, b, c] if combine != BoolOp::First => (d, a, b, Some(self.condition(c)?)),
            _ => return Err(format!("`{}` has the wrong number of operands", raw.name())),
        };
        let (a, b) = (self.halves(a)?, self.halves(b)?);
        let yes = self.uniform_word(Uniform::Constant(yes));
        let answers = [self.new_word(), self.new_word()];
        for ((answer, a), b) in answers.into_iter().zip(a).zip(b) {
            let predicate = self.new_predicate();
            let (a, b) = (Value::Word(a), Value::Word(b));
            let d = Some(predicate);
            self.emit(Operation::Compare { comparison, kind, a, b, combine, c, d, complement: None });
            let condition = Condition { predicate, negated: false };
            self.emit(Operation::SelectWord { d: answer, a: yes, b: Slot::uniform(0), condition });
        }
        let d = self.word_destination(d)?;
        self.emit_word(WordOp::Pack16, d, answers);
        Ok(())
    }

    /// A packed pair's low and high half.
    fn halves(&mut self, operand: &Operand<'a>) -> Decoded<[Slot; 2]> {
        let pair = self.word(operand, Type::B32)?;
        let high = self.new_word();
        self.emit_word(WordOp::High16, high, [pair]);
        Ok([pair, high])
    }

    /// `selp`
    pub(super) fn select(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let kind = modifiers.kind()?;
        modifiers.finish()?;
        let [d, a, b, condition] = operands(raw)?;
        let condition = self.condition(condition)?;
        self.emit_select(kind, d, a, b, condition)
    }

    fn emit_select(
        &mut self,
        kind: Type,
        d: &Operand<'a>,
        a: &Operand<'a>,
        b: &Operand<'a>,
        condition: Condition,
    ) -> Decoded {
        let (a, b) = (self.value(a, kind)?, self.value(b, kind)?);
        let operation = match (self.value_destination(d, kind)?, a, b) {
            (Value::Long(d), Value::Long(a), Value::Long(b)) => Operation::SelectLong { d, a, b, condition },
            (Value::Word(d), Value::Word(a), Value::Word(b)) => Operation::SelectWord { d, a, b, condition },
            _ => return Err("operands of different widths".to_owned()),
        };
        self.emit(operation);
        Ok(())
    }

    /// `slct`: `a` where `c` is not negative.
    pub(super) fn select_by_sign(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let by = modifiers.kind()?;
        let kind = modifiers.kind()?;
        let flush = modifiers.take("ftz");
        modifiers.finish()?;
        let [d, a, b, c] = operands(raw)?;
        let compare_as = match by {
            Type::S32 => CompareAs::Signed,
            Type::F32 if flush => CompareAs::F32Flush,
            Type::F32 => CompareAs::F32,
            _ => return unsupported(raw),
        };
        let predicate: Predicate = self.new_predicate();
        let c = self.value(c, by)?;
        self.emit(Operation::Compare {
            comparison: Comparison::Ge,
            kind: compare_as,
            a: c,
            b: Value::Word(Slot::uniform(0)),
            combine: BoolOp::First,
            c: None,
            d: Some(predicate),
            complement: None,
        });
        self.emit_select(kind, d, a, b, Condition { predicate, negated: false })
    }
}

/// 1.0 in half precision.
const HALF_ONE: u64 = 0x3c00;

/// 1.0 as a bfloat.
const BRAIN_ONE: u64 = 0x3f80;

/// The type of a packed pair's halves.
fn half_of(kind: Type) -> Option<Type> {
    match kind {
        Type::F16x2 => Some(Type::F16),
        Type::Bf16x2 => Some(Type::Bf16),
        _ => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Low,
    High,
    Wide,
}

fn source_count(opcode: &str) -> usize {
    match opcode {
        "abs" | "neg" => 1,
        "mad" | "sad" => 3,
        _ => 2,
    }
}

fn word_op(opcode: &str, kind: Type, part: Option<Part>, saturated: bool) -> Option<WordOp> {
    let signed = kind.is_signed();
    let is_half = kind.bits() == 16;
    Some(match (opcode, part, signed) {
        ("add", None, _) if saturated => WordOp::AddSaturated,
        ("sub", None, _) if saturated => WordOp::SubSaturated,
        _ if saturated => return None,
        ("add", None, _) => WordOp::Add,
        ("sub", None, _) => WordOp::Sub,
        ("mul", Some(Part::Low), _) => WordOp::Mul,
        ("mul", Some(Part::High), _) if is_half => WordOp::MulHigh16,
        ("mul", Some(Part::High), true) => WordOp::MulHighS,
        ("mul", Some(Part::High), false) => WordOp::MulHighU,
        ("mad", Some(Part::Low), _) => WordOp::Mad,
        ("mad", Some(Part::High), true) if !is_half => WordOp::MadHighS,
        ("mad", Some(Part::High), false) if !is_half => WordOp::MadHighU,
        ("mul24", Some(Part::Low), true) => WordOp::Mul24S,
        ("mul24", Some(Part::Low), false) => WordOp::Mul24U,
        ("mul24", Some(Part::High), true) => WordOp::Mul24HighS,
        ("mul24", Some(Part::High), false) => WordOp::Mul24HighU,
        ("div", None, true) => WordOp::DivS,
        ("div", None, false) => WordOp::DivU,
        ("rem", None, true) => WordOp::RemS,
        ("rem", None, false) => WordOp::RemU,
        ("min", None, true) => WordOp::MinS,
        ("min", None, false) => WordOp::MinU,
        ("max", None, true) => WordOp::MaxS,
        ("max", None, false) => WordOp::MaxU,
        ("sad", None, true) => WordOp::SadS,
        ("sad", None, false) => WordOp::SadU,
        ("abs", None, true) => WordOp::Abs,
        ("neg", None, true) => WordOp::Neg,
        _ => return None,
    })
}

fn long_op(opcode: &str, signed: bool, part: Option<Part>) -> Option<LongOp> {
    Some(match (opcode, part, signed) {
        ("add", None, _) => LongOp::Add,
        ("sub", None, _) => LongOp::Sub,
        ("mul", Some(Part::Low), _) => LongOp::Mul,
        ("mul", Some(Part::High), true) => LongOp::MulHighS,
        ("mul", Some(Part::High), false) => LongOp::MulHighU,
        ("mad", Some(Part::Low), _) => LongOp::Mad,
        ("mad", Some(Part::High), true) => LongOp::MadHighS,
        ("mad", Some(Part::High), false) => LongOp::MadHighU,
        ("div", None, true) => LongOp::DivS,
        ("div", None, false) => LongOp::DivU,
        ("rem", None, true) => LongOp::RemS,
        ("rem", None, false) => LongOp::RemU,
        ("min", None, true) => LongOp::MinS,
        ("min", None, false) => LongOp::MinU,
        ("max", None, true) => LongOp::MaxS,
        ("max", None, false) => LongOp::MaxU,
        ("sad", None, true) => LongOp::SadS,
        ("sad", None, false) => LongOp::SadU,
        ("abs", None, true) => LongOp::Abs,
        ("neg", None, true) => LongOp::Neg,
        _ => return None,
    })
}

fn comparison_modifiers(
    mut modifiers: Modifiers<'_, '_>,
    kind: Type,
) -> Decoded<(Comparison, CompareAs, BoolOp)> {
    let flush = modifiers.take("ftz");
    let combine = modifiers.choose(|name| match name {
        "and" => Some(BoolOp::And),
        "or" => Some(BoolOp::Or),
        "xor" => Some(BoolOp::Xor),
        _ => None,
    });
    let Some(comparison) = modifiers.choose(comparison_named) else { return modifiers.unsupported() };
    // `lo` to `hs` ask about unsigned numbers, whatever the type says.
    let unsigned = modifiers.raw.modifiers.iter().any(|name| matches!(*name, "lo" | "ls" | "hi" | "hs"));
    let compare_as = match kind {
        Type::F32 if flush => CompareAs::F32Flush,
        Type::F32 => CompareAs::F32,
        Type::F16 if flush => CompareAs::F16Flush,
        _ if flush => return modifiers.unsupported(),
        Type::F64 => CompareAs::F64,
        Type::F16 => CompareAs::F16,
        Type::Bf16 => CompareAs::Bf16,
        Type::S32 | Type::S64 if !unsigned => CompareAs::Signed,
        Type::S16 if !unsigned => CompareAs::Signed16,
        Type::U16 | Type::B16 | Type::S16 => CompareAs::Unsigned16,
        Type::U32 | Type::B32 | Type::S32 | Type::U64 | Type::B64 | Type::S64 => CompareAs::Unsigned,
        _ => return modifiers.unsupported(),
    };
    modifiers.finish()?;
    Ok((comparison, compare_as, combine.unwrap_or(BoolOp::First)))
}

fn comparison_named(name: &str) -> Option<Comparison> {
    Some(match name {
        "eq" => Comparison::Eq,
        "ne" => Comparison::Ne,
        "lt" | "lo" => Comparison::Lt,
        "le" | "ls" => Comparison::Le,
        "gt" | "hi" => Comparison::Gt,
        "ge" | "hs" => Comparison::Ge,
        "equ" => Comparison::Equ,
        "neu" => Comparison::Neu,
        "ltu" => Comparison::Ltu,
        "leu" => Comparison::Leu,
        "gtu" => Comparison::Gtu,
        "geu" => Comparison::Geu,
        "num" => Comparison::Num,
        "nan" => Comparison::Nan,
        _ => return None,
    })
}
