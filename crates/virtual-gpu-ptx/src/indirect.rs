//! Calls and branches whose target a register says: each possible target is compared with the register in turn.

use std::collections::HashSet;

use super::decode::Call;
use super::instruction::{BoolOp, CompareAs, Comparison, Condition, Operation, Slot, Value};
use super::kernel::Uniform;
use super::lower::Lowering;
use super::syntax::{File, Function, Operand, Statement};
use crate::window;

/// The address of the file's `index`th function.
pub(super) fn code_address(index: u32) -> u64 {
    window::CODE + 16 * u64::from(index)
}

/// Functions with a body whose name stands where an address is wanted: in a variable's first bytes, or in a `mov`.
pub(super) fn callable(file: &File<'_>) -> Vec<u32> {
    let mut named = HashSet::new();
    for variable in &file.variables {
        named.extend(variable.initial.addresses.iter().map(|&(_, name, _)| name));
    }
    for statement in file.functions.iter().flat_map(|function| function.body.iter().flatten()) {
        if let Statement::Instruction(raw) = statement
            && raw.opcode == "mov"
            && let Some(Operand::Name { name, .. }) = raw.operands.last()
        {
            named.insert(name);
        }
    }
    let functions = file.functions.iter().enumerate();
    functions
        .filter(|(_, one)| !one.is_entry && one.body.is_some() && named.contains(one.name))
        .map(|(index, _)| index as u32)
        .collect()
}

impl<'f, 'a> Lowering<'f, 'a> {
    /// A call of the function whose address is in `target`. One that is no function of fitting parameters is a trap.
    pub(super) fn indirect_call(&mut self, target: Slot, call: &Call<'_, 'a>) -> Result<(), String> {
        let functions = &self.index.file.functions;
        let fitting: Vec<(u32, &'f Function<'a>)> = self
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
            self.place(function, call)?;
            self.emit(Operation::Branch { target: end });
            self.place_label(next);
        }
        self.emit(Operation::Trap);
        self.place_label(end);
        Ok(())
    }

    /// Threads for which the guard doesn't hold go to the label that is returned; the others go on, without guard.
    pub(super) fn skip_unless_guarded(&mut self) -> u32 {
        let end = self.new_label();
        if let Some(guard) = self.guard {
            self.guard = Some(Condition { negated: !guard.negated, ..guard });
            self.emit(Operation::Branch { target: end });
            self.guard = None;
        }
        end
    }

    /// A branch of the threads for which both values are the same.
    pub(super) fn branch_if_equal(&mut self, a: Value, b: Value, target: u32) {
        let predicate = self.new_predicate();
        self.emit(Operation::Compare {
            comparison: Comparison::Eq,
            kind: CompareAs::Unsigned,
            a,
            b,
            combine: BoolOp::First,
            c: None,
            d: Some(predicate),
            complement: None,
        });
        self.guard = Some(Condition { predicate, negated: false });
        self.emit(Operation::Branch { target });
        self.guard = None;
    }
}
