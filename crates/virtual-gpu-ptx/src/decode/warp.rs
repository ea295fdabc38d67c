//! Exchanges between the lanes of a warp.

use super::super::instruction::{Operation, ReductionTarget, ShuffleMode, VoteMode, WordOp};
use super::super::lower::Lowering;
use super::super::syntax::{Operand, Raw};
use super::{Decoded, Type, operands, unsupported};

impl<'a> Lowering<'_, 'a> {
    /// `shfl.sync`
    pub(super) fn shuffle(&mut self, raw: &Raw<'a>) -> Decoded {
        let ["sync", mode, "b32"] = raw.modifiers.as_slice() else { return unsupported(raw) };
        let mode = match *mode {
            "up" => ShuffleMode::Up,
            "down" => ShuffleMode::Down,
            "bfly" => ShuffleMode::Butterfly,
            "idx" => ShuffleMode::Index,
            _ => return unsupported(raw),
        };
        let [d, a, b, c, members] = operands(raw)?;
        let (d, valid) = match d {
            Operand::Pair("_", valid) => (None, Some(self.predicate(valid)?)),
            Operand::Pair(d, valid) => {
                let d = Operand::Name { name: d, component: None, offset: 0 };
                let valid = if *valid == "_" { None } else { Some(self.predicate(valid)?) };
                (Some(self.word_destination(&d)?), valid)
            }
            d => (Some(self.word_destination(d)?), None),
        };
        let (a, b) = (self.word(a, Type::B32)?, self.word(b, Type::B32)?);
        let (c, members) = (self.word(c, Type::B32)?, self.word(members, Type::B32)?);
        self.emit(Operation::Shuffle { mode, d, valid, a, b, c, members });
        Ok(())
    }

    /// `vote.sync`
    pub(super) fn vote(&mut self, raw: &Raw<'a>) -> Decoded {
        let [d, condition, members] = operands(raw)?;
        let (mode, d) = match raw.modifiers.as_slice() {
            ["sync", "ballot", "b32"] => (VoteMode::Ballot, ReductionTarget::Word(self.word_destination(d)?)),
            ["sync", mode, "pred"] => {
                let mode = match *mode {
                    "all" => VoteMode::All,
                    "any" => VoteMode::Any,
                    "uni" => VoteMode::Uniform,
                    _ => return unsupported(raw),
                };
                (mode, ReductionTarget::Predicate(self.predicate_destination(d)?))
            }
            _ => return unsupported(raw),
        };
        let condition = self.condition(condition)?;
        let members = self.word(members, Type::B32)?;
        self.emit(Operation::Vote { mode, d, condition, members });
        Ok(())
    }

    /// `match.sync`
    pub(super) fn match_lanes(&mut self, raw: &Raw<'a>) -> Decoded {
        let (all, kind) = match raw.modifiers.as_slice() {
            ["any", "sync", "b32"] => (false, Type::B32),
            ["any", "sync", "b64"] => (false, Type::B64),
            ["all", "sync", "b32"] => (true, Type::B32),
            ["all", "sync", "b64"] => (true, Type::B64),
            _ => return unsupported(raw),
        };
        let [d, a, members] = operands(raw)?;
        let (d, valid) = match d {
            Operand::Pair(d, valid) if all => {
                let d = Operand::Name { name: d, component: None, offset: 0 };
                (self.word_destination(&d)?, Some(self.predicate(valid)?))
            }
            d => (self.word_destination(d)?, None),
        };
        let a = self.value(a, kind)?;
        let members = self.word(members, Type::B32)?;
        self.emit(Operation::Match { all, d, valid, a, members });
        Ok(())
    }

    /// `redux.sync`
    pub(super) fn redux(&mut self, raw: &Raw<'a>) -> Decoded {
        let ["sync", op, kind] = raw.modifiers.as_slice() else { return unsupported(raw) };
        let op = match (*op, *kind) {
            ("add", "u32" | "s32") => WordOp::Add,
            ("min", "u32") => WordOp::MinU,
            ("min", "s32") => WordOp::MinS,
            ("max", "u32") => WordOp::MaxU,
            ("max", "s32") => WordOp::MaxS,
            ("and", "b32") => WordOp::And,
            ("or", "b32") => WordOp::Or,
            ("xor", "b32") => WordOp::Xor,
            _ => return unsupported(raw),
        };
        let [d, a, members] = operands(raw)?;
        let (a, members) = (self.word(a, Type::B32)?, self.word(members, Type::B32)?);
        let d = self.word_destination(d)?;
        self.emit(Operation::Redux { op, d, a, members });
        Ok(())
    }

    /// `activemask`
    pub(super) fn active_mask(&mut self, raw: &Raw<'a>) -> Decoded {
        let (["b32"], [d]) = (raw.modifiers.as_slice(), raw.operands.as_slice()) else {
            return unsupported(raw);
        };
        let d = self.word_destination(d)?;
        self.emit(Operation::ActiveMask { d });
        Ok(())
    }
}
