//! Branches, ends, barriers, fences.

use super::super::instruction::{Barrier, Operation, Reduction, ReductionTarget, Slot, Value};
use super::super::kernel::Uniform;
use super::super::lower::Lowering;
use super::super::names::Binding;
use super::super::syntax::{Operand, Raw};
use super::{Decoded, Modifiers, Type, operands, unsupported};

impl<'a> Lowering<'_, 'a> {
    fn label(&mut self, operand: &Operand<'a>) -> Decoded<u32> {
        match operand {
            Operand::Name { name, component: None, offset: 0 } => match self.find(name) {
                Some(Binding::Label(label)) => Ok(label),
                _ => Err(format!("there is no label `{name}`")),
            },
            _ => Err("a label is missing".to_owned()),
        }
    }

    /// `bra`
    pub(super) fn branch(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        modifiers.take("uni");
        modifiers.finish()?;
        let [target] = operands(raw)?;
        let target = self.label(target)?;
        self.emit(Operation::Branch { target });
        Ok(())
    }

    /// `brx.idx`: a branch to one of the labels of a list. An index beyond it is a trap, where PTX leaves it open.
    pub(super) fn indexed_branch(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        let is_indexed = modifiers.take("idx");
        modifiers.take("uni");
        modifiers.finish()?;
        let ([index, Operand::Name { name, .. }], true) = (operands(raw)?, is_indexed) else {
            return unsupported(raw);
        };
        let Some(&labels) = self.branch_targets.get(name) else {
            return Err(format!("there is no list of branch targets `{name}`"));
        };
        let index = self.word(index, Type::U32)?;
        let end = self.skip_unless_guarded();
        for (at, name) in labels.iter().enumerate() {
            let target = self.label(&Operand::Name { name, component: None, offset: 0 })?;
            let at = self.uniform_word(Uniform::Constant(at as u64));
            self.branch_if_equal(Value::Word(index), Value::Word(at), target);
        }
        self.emit(Operation::Trap);
        self.place_label(end);
        Ok(())
    }

    /// `exit`
    pub(super) fn exit(&mut self, raw: &Raw<'a>) -> Decoded {
        let [] = operands(raw)?;
        Modifiers::of(raw).finish()?;
        self.emit(Operation::Exit);
        Ok(())
    }

    /// `trap`
    pub(super) fn trap(&mut self, raw: &Raw<'a>) -> Decoded {
        let [] = operands(raw)?;
        Modifiers::of(raw).finish()?;
        self.emit(Operation::Trap);
        Ok(())
    }

    /// Fences, which order what threads see of one another, and prefetches.
    pub(super) fn fence_or_nothing(&mut self, raw: &Raw<'a>) -> Decoded {
        let is_known = match raw.opcode {
            "membar" => matches!(raw.modifiers.as_slice(), ["cta" | "gl" | "sys"]),
            "fence" => {
                matches!(
                    raw.modifiers.as_slice(),
                    ["sc" | "acq_rel" | "acquire" | "release", "cta" | "gpu" | "sys" | "cluster"]
                )
            }
            _ => true,
        };
        if !is_known {
            return unsupported(raw);
        }
        self.emit(match raw.opcode {
            "membar" | "fence" => Operation::Fence,
            _ => Operation::Nothing,
        });
        Ok(())
    }

    /// `bar` and `barrier`
    pub(super) fn barrier(&mut self, raw: &Raw<'a>) -> Decoded {
        let mut modifiers = Modifiers::of(raw);
        modifiers.take("cta");
        if modifiers.take("warp") {
            let ["sync"] = modifiers.rest.as_slice() else { return unsupported(raw) };
            let [members] = operands(raw)?;
            let members = self.word(members, Type::B32)?;
            self.emit(Operation::WarpBarrier { members });
            return Ok(());
        }
        let aligned = raw.opcode == "bar" || modifiers.take("aligned");
        match modifiers.rest.as_slice() {
            ["sync"] | ["arrive"] => {
                let arrives_only = modifiers.take("arrive");
                let (id, threads) = match raw.operands.as_slice() {
                    [id] if !arrives_only => (id, None),
                    [id, threads] => (id, Some(threads)),
                    _ => return Err(format!("`{}` has the wrong number of operands", raw.name())),
                };
                let (id, threads) = self.barrier_operands(id, threads)?;
                let barrier = Barrier { id, threads, arrives_only, aligned, reduction: None };
                self.emit(Operation::Barrier(barrier));
                Ok(())
            }
            ["red", op, kind] => self.reducing_barrier(raw, op, kind, aligned),
            _ => unsupported(raw),
        }
    }

    fn barrier_operands(
        &mut self,
        id: &Operand<'a>,
        threads: Option<&Operand<'a>>,
    ) -> Decoded<(Slot, Option<Slot>)> {
        let id = self.word(id, Type::U32)?;
        let threads = threads.map(|threads| self.word(threads, Type::U32)).transpose()?;
        Ok((id, threads))
    }

    /// `bar.red.popc.u32 d, a, p` and `bar.red.and.pred p, a, q`
    fn reducing_barrier(&mut self, raw: &Raw<'a>, op: &str, kind: &str, aligned: bool) -> Decoded {
        let (d, id, threads, condition) = match raw.operands.as_slice() {
            [d, id, condition] => (d, id, None, condition),
            [d, id, threads, condition] => (d, id, Some(threads), condition),
            _ => return Err(format!("`{}` has the wrong number of operands", raw.name())),
        };
        let (reduction, target) = match (op, kind) {
            ("popc", "u32") => (Reduction::Count, ReductionTarget::Word(self.word_destination(d)?)),
            ("and", "pred") => (Reduction::All, ReductionTarget::Predicate(self.predicate_destination(d)?)),
            ("or", "pred") => (Reduction::Any, ReductionTarget::Predicate(self.predicate_destination(d)?)),
            _ => return unsupported(raw),
        };
        let (id, threads) = self.barrier_operands(id, threads)?;
        let condition = self.condition(condition)?;
        let reduction = Some((reduction, condition, target));
        self.emit(Operation::Barrier(Barrier { id, threads, arrives_only: false, aligned, reduction }));
        Ok(())
    }

    /// `nanosleep`
    pub(super) fn sleep(&mut self, raw: &Raw<'a>) -> Decoded {
        let (["u32"], [time]) = (raw.modifiers.as_slice(), raw.operands.as_slice()) else {
            return unsupported(raw);
        };
        let nanoseconds = self.word(time, Type::U32)?;
        self.emit(Operation::Sleep { nanoseconds });
        Ok(())
    }
}
