//! Calls that are not inlined: calls to functions that may call themselves, directly or through others, and calls to
//! the driver's functions.
//!
//! A function that may call itself can't be inlined. It is lowered once, after the kernel. Its variables are in a frame
//! on the thread's stack.

use super::builder::{Lowering, Subroutine};
use super::names::Binding;
use super::operand::Lowered;
use crate::instruction::{self, Address, Operation, Slot, SystemCall, Value};
use crate::resolved::{Call, ResolvedFunction};
use crate::syntax::VariableSpace;

/// The alignment of a frame's size, and the minimum size, in bytes. In this implementation, a frame holds the
/// function's variables, including its parameters. A compiler instead keeps parameters in registers, and its frames
/// hold registers and the return address.
pub(crate) const FRAME_ALIGNMENT: u64 = 16;

/// Returns the address of a variable in local memory.
fn local_address(binding: Binding) -> Address {
    match binding {
        Binding::Framed(frame, offset) => {
            Address { base: Value::Long(Slot::register(frame)), offset: offset.into() }
        }
        Binding::Local(offset) => Address { base: Value::Long(Slot::uniform(0)), offset: offset.into() },
        _ => Address { base: Value::Long(Slot::uniform(0)), offset: 0 },
    }
}

impl<'f, 'a> Lowering<'f, 'a> {
    /// Lowers a call to a function that may call itself.
    pub(super) fn call_subroutine(&mut self, function: &'f ResolvedFunction<'a>, call: &Call<'a>) -> Lowered {
        let mut addresses = Vec::new();
        for (_, binding) in self.match_arguments(function, call)? {
            addresses.push(local_address(binding));
        }
        let known = self.subroutines.iter().position(|known| known.function.name == function.name);
        let number = known.unwrap_or_else(|| {
            let entry = self.new_label();
            self.subroutines.push(Subroutine { function, entry });
            self.subroutines.len() - 1
        });
        let arguments = addresses.split_off(function.returns.len());
        self.emit(Operation::Call(instruction::Call {
            frame: number as u32,
            target: self.subroutines[number].entry,
            arguments: arguments.into(),
            results: addresses.into(),
        }));
        Ok(())
    }

    /// Returns the function's results and parameters, along with the variables that the call passes for them.
    pub(crate) fn match_arguments(
        &mut self,
        function: &'f ResolvedFunction<'a>,
        call: &Call<'a>,
    ) -> Lowered<Vec<(&'a str, Binding)>> {
        let formal = function.returns.iter().chain(&function.parameters);
        if function.returns.len() != call.returns.len() || function.parameters.len() != call.arguments.len() {
            return Err(format!("`{}` is called with the wrong number of arguments", function.name));
        }
        let mut bindings = Vec::new();
        for (formal, actual) in formal.zip(call.returns.iter().chain(&call.arguments)) {
            match self.find(actual) {
                Some(local @ (Binding::Local(_) | Binding::Framed(..)))
                    if formal.space == VariableSpace::Param =>
                {
                    bindings.push((formal.name, local));
                }
                _ => return Err(format!("unsupported: `{actual}` is not a `.param` variable")),
            }
        }
        Ok(bindings)
    }

    /// Lowers a call to one of the driver's functions. Returns false if the driver has no function with this name and
    /// signature.
    pub(crate) fn system_call(&mut self, call: &Call<'a>) -> Lowered<bool> {
        let mut addresses = Vec::new();
        for actual in call.arguments.iter().chain(&call.returns) {
            match self.find(actual) {
                Some(local @ (Binding::Local(_) | Binding::Framed(..))) => {
                    addresses.push(local_address(local))
                }
                _ => return Err(format!("unsupported: `{actual}` is not a `.param` variable")),
            }
        }
        let call = match (call.name, call.returns.len(), addresses.as_slice()) {
            ("vprintf", 1, &[format, arguments, result]) => SystemCall::Print { format, arguments, result },
            ("__assertfail", 0, &[message, file, line, function, _]) => {
                SystemCall::AssertFail { message, file, line, function }
            }
            ("malloc", 1, &[size, result]) => SystemCall::Allocate { size, alignment: None, result },
            ("__cuda_syscall_aligned_malloc", 1, &[size, alignment, result]) => {
                SystemCall::Allocate { size, alignment: Some(alignment), result }
            }
            ("free", 0, &[memory]) => SystemCall::Free { memory },
            _ => return Ok(false),
        };
        self.emit(Operation::System(call.into()));
        Ok(true)
    }
}
