//! `mbarrier`

use super::builder::Lowering;
use super::operand::Lowered;
use crate::instruction::{Mbarrier, MbarrierOp, Operation, Space, Value};
use crate::resolved::MbarrierOperands;
use crate::syntax::{Operand, Written};
use crate::types::Type;

impl<'a> Lowering<'_, 'a> {
    /// Lowers an operation on an mbarrier object.
    pub(crate) fn mbarrier(
        &mut self,
        written: &Written<'a>,
        op: &MbarrierOperands<'a>,
        space: Space,
        address: &Operand<'a>,
    ) -> Lowered {
        let (space, address) = self.address(address, space)?;
        if !matches!(space, Space::Shared | Space::Generic) {
            return Err(written.unsupported());
        }
        let op = match op {
            MbarrierOperands::Init { count } => MbarrierOp::Init { count: self.word(count, Type::U32)? },
            MbarrierOperands::Invalidate => MbarrierOp::Invalidate,
            MbarrierOperands::Arrive { state, count, transactions, drops, completes, releases } => {
                let count = self.word(count, Type::U32)?;
                let transactions =
                    transactions.as_ref().map(|count| self.word(count, Type::U32)).transpose()?;
                let state = match state {
                    Operand::Sink => None,
                    state => Some(self.long_destination(state, Type::B64)?),
                };
                let (drops, completes, releases) = (*drops, *completes, *releases);
                MbarrierOp::Arrive { state, count, transactions, drops, completes, releases }
            }
            MbarrierOperands::Expect { transactions } => {
                MbarrierOp::Expect { transactions: self.word(transactions, Type::U32)? }
            }
            MbarrierOperands::Complete { transactions } => {
                MbarrierOp::Complete { transactions: self.word(transactions, Type::U32)? }
            }
            MbarrierOperands::Test { d, phase, by_parity, acquires, time } => {
                let phase = match by_parity {
                    true => Value::Word(self.word(phase, Type::U32)?),
                    false => Value::Long(self.long(phase, Type::B64)?),
                };
                // A thread is never suspended for a time: it tests again after the other threads have had their turn.
                if let Some(time) = time {
                    self.word(time, Type::U32)?;
                }
                MbarrierOp::Test { d: self.predicate_destination(d)?, phase, acquires: *acquires }
            }
            MbarrierOperands::ArriveAfterCopies { increments } => {
                MbarrierOp::ArriveAfterCopies { increments: *increments }
            }
        };
        self.emit(Operation::Mbarrier(Mbarrier { op, space, address }.into()));
        Ok(())
    }
}
