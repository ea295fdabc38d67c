//! Calls and branches whose target is in a register: the register is compared with each possible target in turn.

use super::builder::Lowering;
use super::call_graph::code_address;
use super::operand::Lowered;
use crate::instruction::{Operation, Slot, Value};
use crate::kernel::Uniform;
use crate::resolved::{Call, ResolvedFunction};

impl<'f, 'a> Lowering<'f, 'a> {
    /// Lowers a call to the function whose address is in `target`; `direct_call` calls it. Any other address traps.
    pub(crate) fn indirect_call(
        &mut self,
        target: Slot,
        call: &Call<'a>,
        mut direct_call: impl FnMut(&mut Self, &'f ResolvedFunction<'a>, &Call<'a>) -> Lowered,
    ) -> Lowered {
        let functions = &self.index.file.functions;
        let fitting: Vec<(u32, &'f ResolvedFunction<'a>)> = self
            .index
            .callable
            .iter()
            .map(|&index| (index, &functions[index as usize]))
            .filter(|(_, function)| {
                function.returns.len() == call.returns.len()
                    && function.parameters.len() == call.arguments.len()
            })
            .collect();
        let end = self.skip_unless_guarded();
        for (index, function) in fitting {
            let (here, next) = (self.new_label(), self.new_label());
            let address = self.uniform_long(Uniform::Constant(code_address(index)));
            self.branch_if_equal(Value::Long(target), Value::Long(address), here);
            self.emit(Operation::Branch { target: next });
            self.place_label(here);
            direct_call(self, function, call)?;
            self.emit(Operation::Branch { target: end });
            self.place_label(next);
        }
        self.emit(Operation::Trap);
        self.place_label(end);
        Ok(())
    }
}
