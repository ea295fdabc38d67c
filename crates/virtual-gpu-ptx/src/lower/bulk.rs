//! Bulk copies, tensor copies, and reductions in bulk.

use super::builder::Lowering;
use super::operand::Lowered;
use crate::instruction::{
    Address, AtomicOp, AtomicType, BulkCopy, BulkReduction, Operation, Space, TensorCopy as LoweredTensorCopy,
};
use crate::resolved::{BulkCopy as ResolvedCopy, TensorCopy};
use crate::syntax::{Operand, Written};
use crate::types::Type;

impl<'a> Lowering<'_, 'a> {
    /// Lowers `cp.async.bulk`.
    pub(crate) fn bulk_copy(&mut self, written: &Written<'a>, copy: &ResolvedCopy<'a>) -> Lowered {
        let ResolvedCopy { to, from, source, bytes, mbarrier, blocks, policy } = copy;
        let target = if mbarrier.is_some() { Space::Shared } else { Space::Global };
        let to = self.address_in(written, to, target)?;
        let from = self.address_in(written, from, *source)?;
        let mbarrier = self.mbarrier_of_copy(written, mbarrier.as_ref())?;
        self.check_policy(policy.as_ref())?;
        let bytes = self.word(bytes, Type::U32)?;
        let blocks = blocks.as_ref().map(|blocks| self.word(blocks, Type::U16)).transpose()?;
        let source = *source;
        self.emit(Operation::BulkCopy(BulkCopy { to, from, source, bytes, mbarrier, blocks }.into()));
        Ok(())
    }

    /// Returns the address of the mbarrier object whose transactions a copy completes.
    fn mbarrier_of_copy(
        &mut self,
        written: &Written<'a>,
        mbarrier: Option<&Operand<'a>>,
    ) -> Lowered<Option<Address>> {
        mbarrier.map(|mbarrier| self.address_in(written, mbarrier, Space::Shared)).transpose()
    }

    /// Lowers `cp.reduce.async.bulk`.
    pub(crate) fn bulk_reduction(
        &mut self,
        written: &Written<'a>,
        [to, from, bytes]: [&Operand<'a>; 3],
        mbarrier: Option<&Operand<'a>>,
        op: AtomicOp,
        kind: AtomicType,
    ) -> Lowered {
        let target = if mbarrier.is_some() { Space::Shared } else { Space::Global };
        let to = self.address_in(written, to, target)?;
        let from = self.address_in(written, from, Space::Shared)?;
        let mbarrier = self.mbarrier_of_copy(written, mbarrier)?;
        let bytes = self.word(bytes, Type::U32)?;
        self.emit(Operation::BulkReduction(BulkReduction { to, from, mbarrier, bytes, op, kind }.into()));
        Ok(())
    }

    /// Lowers `cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`.
    pub(crate) fn tensor_copy(&mut self, written: &Written<'a>, copy: &TensorCopy<'a>) -> Lowered {
        let TensorCopy { map, coordinates, is_im2col, offsets, shared, mbarrier, blocks, op, policy } = copy;
        let map = self.address(map, Space::Generic)?.1;
        let shared = self.address_in(written, shared, Space::Shared)?;
        let mbarrier = self.mbarrier_of_copy(written, mbarrier.as_ref())?;
        self.check_policy(policy.as_ref())?;
        let blocks = blocks.as_ref().map(|blocks| self.word(blocks, Type::U16)).transpose()?;
        let coordinates = self.words_of(coordinates, Type::S32)?;
        let offsets = self.words_of(offsets, Type::U16)?;
        let (is_im2col, reduction) = (*is_im2col, *op);
        let copy =
            LoweredTensorCopy { map, coordinates, is_im2col, offsets, shared, mbarrier, blocks, reduction };
        self.emit(Operation::TensorCopy(copy.into()));
        Ok(())
    }

    /// Returns an address that must be in this state space.
    pub(super) fn address_in(
        &mut self,
        written: &Written<'a>,
        operand: &Operand<'a>,
        space: Space,
    ) -> Lowered<Address> {
        match self.address(operand, space)? {
            (found, address) if found == space => Ok(address),
            _ => Err(written.unsupported()),
        }
    }

    /// Checks the type of a cache policy, which has no effect here.
    pub(super) fn check_policy(&mut self, policy: Option<&Operand<'a>>) -> Lowered {
        policy.map(|policy| self.long(policy, Type::B64)).transpose().map(|_| ())
    }
}
