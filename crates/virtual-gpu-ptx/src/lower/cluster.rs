//! Clusters: addresses in other blocks' shared memory, and asynchronous stores to it.

use super::builder::Lowering;
use super::operand::Lowered;
use crate::instruction::{Operation, Space, StoreAsync as LoweredStore};
use crate::resolved::StoreAsync;
use crate::syntax::{Operand, Written};
use crate::types::Type;

impl<'a> Lowering<'_, 'a> {
    /// Lowers `mapa`.
    pub(crate) fn map_address(
        &mut self,
        kind: Type,
        is_generic: bool,
        [d, a, b]: &[Operand<'a>; 3],
    ) -> Lowered {
        let (a, b) = (self.value(a, kind)?, self.word(b, Type::U32)?);
        let d = self.value_destination(d, kind)?;
        self.emit(Operation::MapAddress { d, a, b, is_generic });
        Ok(())
    }

    /// Lowers `getctarank`.
    pub(crate) fn block_of_address(&mut self, kind: Type, [d, a]: &[Operand<'a>; 2]) -> Lowered {
        let a = self.value(a, kind)?;
        let d = self.word_destination(d, Type::U32)?;
        self.emit(Operation::BlockOfAddress { d, a });
        Ok(())
    }

    /// Lowers `st.async` and `red.async`.
    pub(crate) fn store_async(&mut self, written: &Written<'a>, store: &StoreAsync<'a>) -> Lowered {
        let StoreAsync { kind, values, address, mbarrier, reduction } = store;
        let address = self.address_in(written, address, Space::Shared)?;
        let mbarrier = self.address_in(written, mbarrier, Space::Shared)?;
        let values = values.iter().map(|value| self.value(value, *kind)).collect::<Lowered<_>>()?;
        let (bytes, reduction) = (kind.bits() / 8, *reduction);
        self.emit(Operation::StoreAsync(LoweredStore { address, bytes, values, mbarrier, reduction }.into()));
        Ok(())
    }
}
