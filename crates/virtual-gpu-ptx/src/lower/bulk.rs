//! Bulk copies, tensor copies, and reductions in bulk.

use super::builder::Lowering;
use super::operand::Lowered;
use crate::instruction::{
    Address, AtomicOp, AtomicType, BulkCopy, BulkReduction, Operation, Space, TensorCopy as LoweredTensorCopy,
};
use crate::resolved::TensorCopy;
use crate::syntax::{Operand, Written};
use crate::types::Type;

impl<'a> Lowering<'_, 'a> {
    /// Lowers `cp.async.bulk`.
    pub(crate) fn bulk_copy(
        &mut self,
        written: &Written<'a>,
        [to, from]: [&Operand<'a>; 2],
        bytes: &Operand<'a>,
        mbarrier: Option<&Operand<'a>>,
        policy: Option<&Operand<'a>>,
    ) -> Lowered {
        let to_shared = mbarrier.is_some();
        let spaces = if to_shared { [Space::Shared, Space::Global] } else { [Space::Global, Space::Shared] };
        let to = self.address_in(written, to, spaces[0])?;
        let from = self.address_in(written, from, spaces[1])?;
        let mbarrier =
            mbarrier.map(|mbarrier| self.address_in(written, mbarrier, Space::Shared)).transpose()?;
        self.check_policy(policy)?;
        let bytes = self.word(bytes, Type::U32)?;
        self.emit(Operation::BulkCopy(BulkCopy { to, from, bytes, mbarrier }.into()));
        Ok(())
    }

    /// Lowers `cp.reduce.async.bulk`.
    pub(crate) fn bulk_reduction(
        &mut self,
        written: &Written<'a>,
        [to, from, bytes]: [&Operand<'a>; 3],
        op: AtomicOp,
        kind: AtomicType,
        policy: Option<&Operand<'a>>,
    ) -> Lowered {
        let to = self.address_in(written, to, Space::Global)?;
        let from = self.address_in(written, from, Space::Shared)?;
        self.check_policy(policy)?;
        let bytes = self.word(bytes, Type::U32)?;
        self.emit(Operation::BulkReduction(BulkReduction { to, from, bytes, op, kind }.into()));
        Ok(())
    }

    /// Lowers `cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`.
    pub(crate) fn tensor_copy(&mut self, written: &Written<'a>, copy: &TensorCopy<'a>) -> Lowered {
        let TensorCopy { map, coordinates, is_im2col, offsets, shared, mbarrier, op, policy } = copy;
        let map = self.address(map, Space::Generic)?.1;
        let shared = self.address_in(written, shared, Space::Shared)?;
        let mbarrier = mbarrier
            .as_ref()
            .map(|mbarrier| self.address_in(written, mbarrier, Space::Shared))
            .transpose()?;
        self.check_policy(policy.as_ref())?;
        let coordinates = self.words_of(coordinates, Type::S32)?;
        let offsets = self.words_of(offsets, Type::U16)?;
        let (is_im2col, reduction) = (*is_im2col, *op);
        let copy = LoweredTensorCopy { map, coordinates, is_im2col, offsets, shared, mbarrier, reduction };
        self.emit(Operation::TensorCopy(copy.into()));
        Ok(())
    }

    /// Returns an address that must be in this state space.
    fn address_in(&mut self, written: &Written<'a>, operand: &Operand<'a>, space: Space) -> Lowered<Address> {
        match self.address(operand, space)? {
            (found, address) if found == space => Ok(address),
            _ => Err(written.unsupported()),
        }
    }

    /// Checks the type of a cache policy, which has no effect here.
    fn check_policy(&mut self, policy: Option<&Operand<'a>>) -> Lowered {
        policy.map(|policy| self.long(policy, Type::B64)).transpose().map(|_| ())
    }
}
