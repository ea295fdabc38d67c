//! `wmma`

use super::builder::Lowering;
use super::operand::Lowered;
use crate::instruction::{
    Fragment, FragmentAccess, FragmentElement, FragmentProduct, IntegerSum, Operation, Rounding, Space,
};
use crate::resolved::FragmentOperand;
use crate::syntax::{Operand, Written};
use crate::types::Type;

impl<'a> Lowering<'_, 'a> {
    /// Lowers `wmma.load` and `wmma.store`.
    pub(crate) fn access_fragment(
        &mut self,
        written: &Written<'a>,
        fragment: &FragmentOperand<'a>,
        [is_store, by_columns]: [bool; 2],
        space: Space,
        [address, stride]: [&Operand<'a>; 2],
    ) -> Lowered {
        let fragment = if is_store { self.read(fragment)? } else { self.written(fragment)? };
        let (space, address) = self.address(address, space)?;
        if !matches!(space, Space::Global | Space::Shared | Space::Generic) {
            return Err(written.unsupported());
        }
        let stride = self.word(stride, Type::U32)?;
        let members = self.whole_warp();
        let access = Box::new(FragmentAccess { fragment, by_columns, space, address, stride, members });
        self.emit(if is_store { Operation::StoreFragment(access) } else { Operation::LoadFragment(access) });
        Ok(())
    }

    /// Lowers `wmma.mma`, and `mma` with `.f64`.
    pub(crate) fn multiply_fragments(
        &mut self,
        [d, a, b, c]: &[FragmentOperand<'a>; 4],
        rounding: Rounding,
        sum: IntegerSum,
    ) -> Lowered {
        let (a, b) = (self.read(a)?, self.read(b)?);
        let (c, d) = (self.read(c)?, self.written(d)?);
        let members = self.whole_warp();
        let product = FragmentProduct { a, b, c, d, rounding, sum, members };
        self.emit(Operation::MultiplyFragments(product.into()));
        Ok(())
    }

    fn read(&mut self, operand: &FragmentOperand<'a>) -> Lowered<Fragment> {
        let &FragmentOperand { element, rows, columns, layout, .. } = operand;
        let registers = operand.registers.iter().map(|register| self.value(register, register_type(element)));
        Ok(Fragment { element, rows, columns, layout, registers: registers.collect::<Lowered<_>>()? })
    }

    fn written(&mut self, operand: &FragmentOperand<'a>) -> Lowered<Fragment> {
        let &FragmentOperand { element, rows, columns, layout, .. } = operand;
        let registers =
            operand.registers.iter().map(|register| self.value_destination(register, register_type(element)));
        Ok(Fragment { element, rows, columns, layout, registers: registers.collect::<Lowered<_>>()? })
    }
}

fn register_type(element: FragmentElement) -> Type {
    if element == FragmentElement::F64 { Type::B64 } else { Type::B32 }
}
