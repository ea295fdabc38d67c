//! Branches and barriers.

use super::builder::Lowering;
use super::names::Binding;
use super::operand::Lowered;
use crate::instruction::{Barrier, Operation, Reduction, ReductionTarget, Value};
use crate::kernel::Uniform;
use crate::resolved::BarrierReduction;
use crate::syntax::Operand;
use crate::types::Type;

/// The numbers of a block's barriers (manual, `bar`).
const BARRIERS: std::ops::Range<i64> = 0..16;

impl<'a> Lowering<'_, 'a> {
    fn label(&mut self, operand: &Operand<'a>) -> Lowered<u32> {
        match operand {
            Operand::Name { name, component: None, offset: 0 } => self.label_named(name),
            _ => Err("a label is missing".to_owned()),
        }
    }

    fn label_named(&mut self, name: &'a str) -> Lowered<u32> {
        match self.find(name) {
            Some(Binding::Label(label)) => Ok(label),
            _ => Err(format!("there is no label `{name}`")),
        }
    }

    /// Lowers `bra`.
    pub(crate) fn branch(&mut self, target: &Operand<'a>) -> Lowered {
        let target = self.label(target)?;
        self.emit(Operation::Branch { target });
        Ok(())
    }

    /// Lowers `brx.idx`. An index past the end of the list traps; PTX leaves the behavior undefined.
    pub(crate) fn indexed_branch(&mut self, index: &Operand<'a>, list: &'a str) -> Lowered {
        let Some(&labels) = self.branch_targets.get(list) else {
            return Err(format!("there is no list of branch targets `{list}`"));
        };
        let index = self.word(index, Type::U32)?;
        let end = self.skip_unless_guarded();
        for (at, name) in labels.iter().enumerate() {
            let target = self.label_named(name)?;
            let at = self.uniform_word(Uniform::Constant(at as u64));
            self.branch_if_equal(Value::Word(index), Value::Word(at), target);
        }
        self.emit(Operation::Trap);
        self.place_label(end);
        Ok(())
    }

    /// Lowers `bar` and `barrier`.
    pub(crate) fn barrier(
        &mut self,
        id_and_threads: [Option<&Operand<'a>>; 2],
        arrives_only: bool,
        aligned: bool,
        reduction: Option<&BarrierReduction<'a>>,
    ) -> Lowered {
        let target = match reduction {
            None => None,
            Some(BarrierReduction { reduction: Reduction::Count, d, .. }) => {
                Some(ReductionTarget::Word(self.word_destination(d, Type::U32)?))
            }
            Some(BarrierReduction { d, .. }) => {
                Some(ReductionTarget::Predicate(self.predicate_destination(d)?))
            }
        };
        let [id, threads] = id_and_threads;
        if let Some(Operand::Integer(number)) = id
            && !BARRIERS.contains(number)
        {
            return Err(format!("a block has no barrier {number}: they have the numbers from 0 to 15"));
        }
        let id = id.map(|id| self.word(id, Type::U32)).transpose()?;
        let threads = threads.map(|threads| self.word(threads, Type::U32)).transpose()?;
        let reduction = match (reduction, target) {
            (Some(BarrierReduction { reduction, condition, .. }), Some(target)) => {
                Some((*reduction, self.condition(condition)?, target))
            }
            _ => None,
        };
        let id = id.unwrap_or_else(super::builder::unused);
        self.emit(Operation::Barrier(Barrier { id, threads, arrives_only, aligned, reduction }));
        Ok(())
    }

    /// Lowers `bar.warp.sync`.
    pub(crate) fn warp_barrier(&mut self, members: &Operand<'a>) -> Lowered {
        let members = self.word(members, Type::B32)?;
        self.emit(Operation::WarpBarrier { members });
        Ok(())
    }

    /// Lowers `nanosleep`.
    pub(crate) fn sleep(&mut self, time: &Operand<'a>) -> Lowered {
        let nanoseconds = self.word(time, Type::U32)?;
        self.emit(Operation::Sleep { nanoseconds });
        Ok(())
    }
}
