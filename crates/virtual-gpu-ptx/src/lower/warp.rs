//! Operations that the lanes of a warp execute together.

use super::builder::Lowering;
use super::operand::Lowered;
use crate::instruction::{
    Accumulator, MatrixElement, MatrixLoad, MatrixProduct, MatrixStore, Operation, ReductionTarget,
    ShuffleMode, Slot, Space, VoteMode, WordOp,
};
use crate::kernel::Uniform;
use crate::syntax::{Operand, Written};
use crate::types::Type;

impl<'a> Lowering<'_, 'a> {
    /// Lowers `shfl.sync`.
    pub(crate) fn shuffle(
        &mut self,
        mode: ShuffleMode,
        d: &Operand<'a>,
        [a, b, c, members]: &[Operand<'a>; 4],
    ) -> Lowered {
        let (d, valid) = match d {
            Operand::Pair("_", valid) => (None, Some(self.predicate(valid)?)),
            Operand::Pair(d, valid) => {
                let valid = if *valid == "_" { None } else { Some(self.predicate(valid)?) };
                (Some(self.word_named(d)?), valid)
            }
            d => (Some(self.word_destination(d, Type::B32)?), None),
        };
        let (a, b) = (self.word(a, Type::B32)?, self.word(b, Type::B32)?);
        let (c, members) = (self.word(c, Type::B32)?, self.word(members, Type::B32)?);
        self.emit(Operation::Shuffle { mode, d, valid, a, b, c, members });
        Ok(())
    }

    /// Returns a destination register of up to 32 bits.
    fn word_named(&mut self, name: &'a str) -> Lowered<Slot> {
        self.word_destination(&Operand::Name { name, component: None, offset: 0 }, Type::B32)
    }

    /// Lowers `vote.sync`.
    pub(crate) fn vote(&mut self, mode: VoteMode, [d, condition, members]: &[Operand<'a>; 3]) -> Lowered {
        let d = match mode {
            VoteMode::Ballot => ReductionTarget::Word(self.word_destination(d, Type::B32)?),
            _ => ReductionTarget::Predicate(self.predicate_destination(d)?),
        };
        let condition = self.condition(condition)?;
        let members = self.word(members, Type::B32)?;
        self.emit(Operation::Vote { mode, d, condition, members });
        Ok(())
    }

    /// Lowers `match.sync`.
    pub(crate) fn match_lanes(
        &mut self,
        all: bool,
        kind: Type,
        [d, a, members]: &[Operand<'a>; 3],
    ) -> Lowered {
        let (d, valid) = match d {
            Operand::Pair(d, valid) if all => (self.word_named(d)?, Some(self.predicate(valid)?)),
            d => (self.word_destination(d, Type::B32)?, None),
        };
        let a = self.value(a, kind)?;
        let members = self.word(members, Type::B32)?;
        self.emit(Operation::Match { all, d, valid, a, members });
        Ok(())
    }

    /// Lowers `redux.sync`.
    pub(crate) fn redux(&mut self, op: WordOp, [d, a, members]: &[Operand<'a>; 3]) -> Lowered {
        let (a, members) = (self.word(a, Type::B32)?, self.word(members, Type::B32)?);
        let d = self.word_destination(d, Type::B32)?;
        self.emit(Operation::Redux { op, d, a, members });
        Ok(())
    }

    /// Lowers `activemask`.
    pub(crate) fn active_mask(&mut self, d: &Operand<'a>) -> Lowered {
        let d = self.word_destination(d, Type::B32)?;
        self.emit(Operation::ActiveMask { d });
        Ok(())
    }

    /// Lowers `ldmatrix`.
    pub(crate) fn load_matrices(
        &mut self,
        written: &Written<'a>,
        space: Space,
        transposed: bool,
        d: &[Operand<'a>],
        address: &Operand<'a>,
    ) -> Lowered {
        let destinations = self.written_fragment(d)?;
        let (space, address) = self.address(address, space)?;
        if !matches!(space, Space::Shared | Space::Generic) {
            return Err(written.unsupported());
        }
        let members = self.whole_warp();
        let load = MatrixLoad { space, address, transposed, destinations, members };
        self.emit(Operation::LoadMatrices(load.into()));
        Ok(())
    }

    /// Lowers `stmatrix`.
    pub(crate) fn store_matrices(
        &mut self,
        written: &Written<'a>,
        space: Space,
        transposed: bool,
        a: &[Operand<'a>],
        address: &Operand<'a>,
    ) -> Lowered {
        let sources = self.read_fragment(a)?;
        let (space, address) = self.address(address, space)?;
        if !matches!(space, Space::Shared | Space::Generic) {
            return Err(written.unsupported());
        }
        let members = self.whole_warp();
        let store = MatrixStore { space, address, transposed, sources, members };
        self.emit(Operation::StoreMatrices(store.into()));
        Ok(())
    }

    /// Lowers `movmatrix`.
    pub(crate) fn transpose_matrix(&mut self, [d, a]: &[Operand<'a>; 2]) -> Lowered {
        let a = self.word(a, Type::B32)?;
        let d = self.word_destination(d, Type::B32)?;
        let members = self.whole_warp();
        self.emit(Operation::TransposeMatrix { d, a, members });
        Ok(())
    }

    /// Lowers `elect.sync`.
    pub(crate) fn elect(&mut self, [d, members]: &[Operand<'a>; 2]) -> Lowered {
        let Operand::Pair(d, leader) = d else {
            return Err("`elect.sync` has two destinations, `d|p`".to_owned());
        };
        let d = if *d == "_" { None } else { Some(self.word_named(d)?) };
        let leader = self.predicate(leader)?;
        let members = self.word(members, Type::B32)?;
        self.emit(Operation::Elect { d, leader, members });
        Ok(())
    }

    /// Lowers `mma`.
    pub(crate) fn multiply_matrices(
        &mut self,
        elements: [MatrixElement; 2],
        accumulator: Accumulator,
        [d, a, b, c]: &[Vec<Operand<'a>>; 4],
    ) -> Lowered {
        let (a, b) = (self.read_fragment(a)?, self.read_fragment(b)?);
        let (c, d) = (self.read_fragment(c)?, self.written_fragment(d)?);
        let members = self.whole_warp();
        let product = MatrixProduct { elements, accumulator, a, b, c, d, members };
        self.emit(Operation::MultiplyMatrices(product.into()));
        Ok(())
    }

    fn read_fragment(&mut self, parts: &[Operand<'a>]) -> Lowered<Box<[Slot]>> {
        parts.iter().map(|part| self.word(part, Type::B32)).collect()
    }

    fn written_fragment(&mut self, parts: &[Operand<'a>]) -> Lowered<Box<[Slot]>> {
        parts.iter().map(|part| self.word_destination(part, Type::B32)).collect()
    }

    pub(super) fn whole_warp(&mut self) -> Slot {
        self.uniform_word(Uniform::Constant(u64::from(u32::MAX)))
    }
}
