//! The system functions that kernels call: `vprintf` and `__assertfail`, and, in [`heap`](crate::heap), `malloc` and
//! `free`.

use crate::fault::{Access as Kind, Assertion, FaultKind, Stop};
use crate::machine::Machine;
use crate::mask::Mask;
use crate::printf::{Part, parts};
use virtual_gpu_ptx::instruction::{Space, SystemCall};

/// The maximum number of arguments after the format string. Further conversions are written unchanged.
const MOST_ARGUMENTS: usize = 32;

/// Format strings and string arguments are truncated to this many bytes.
const LONGEST: usize = 1 << 16;

impl Machine<'_> {
    /// Executes a call to a function that the driver provides.
    pub(crate) fn system_call(&mut self, call: SystemCall, mask: &Mask) -> Result<(), Stop> {
        self.changes += 1;
        match call {
            SystemCall::Print { format, arguments, result } => {
                for thread in mask.threads() {
                    let format = self.local_value(thread, format, 8)?;
                    let arguments = self.local_value(thread, arguments, 8)?;
                    let parsed = match format {
                        0 => -1,
                        _ => self.print(thread, format, arguments)?,
                    };
                    let result = self.address_of(result, thread);
                    self.write_bytes(Space::Local, Kind::Write, thread, result, &parsed.to_le_bytes())?;
                }
                Ok(())
            }
            SystemCall::AssertFail { message, file, line, function } => {
                let Some(first) = mask.first() else { return Ok(()) };
                let mut text = |at| -> Result<String, Stop> {
                    let address = self.local_value(first, at, 8)?;
                    Ok(String::from_utf8_lossy(&self.string(first, address, LONGEST)?).into_owned())
                };
                let (message, file, function) = (text(message)?, text(file)?, text(function)?);
                let line = self.local_value(first, line, 4)? as u32;
                let threads = mask.threads().map(|thread| self.thread_index(thread)).collect();
                let assertion = Assertion { message, file, line, function, threads };
                Err(self.fault(FaultKind::Assert(Box::new(assertion)), first))
            }
            SystemCall::Allocate { size, alignment, result } => {
                mask.threads().try_for_each(|thread| self.allocate(thread, size, alignment, result))
            }
            SystemCall::Free { memory } => mask.threads().try_for_each(|thread| self.free(thread, memory)),
        }
    }

    /// Executes one thread's `printf`. Returns the number of arguments that it read.
    fn print(&mut self, thread: usize, format: u64, arguments: u64) -> Result<i32, Stop> {
        let format = self.string(thread, format, LONGEST)?;
        let mut out = Vec::new();
        let mut list = Arguments { address: arguments, read: 0 };
        for part in parts(&format) {
            let (mut conversion, written) = match part {
                Part::Text(text) => {
                    out.extend_from_slice(text);
                    continue;
                }
                Part::Conversion(conversion, written) => (conversion, written),
            };
            if list.read + usize::from(conversion.takes_width()) >= MOST_ARGUMENTS {
                out.extend_from_slice(written);
                continue;
            }
            if conversion.takes_width() {
                conversion.set_width(list.next(self, thread, 4)? as i32);
            }
            let bits = list.next(self, thread, conversion.bytes())?;
            match conversion.is_string() {
                true if bits == 0 => conversion.string(b"(null)", &mut out),
                true => {
                    let longest = conversion.longest().unwrap_or(LONGEST);
                    let text = self.string(thread, bits, longest)?;
                    conversion.string(&text, &mut out);
                }
                false => conversion.number(bits, &mut out),
            }
        }
        self.printed.push(out.into(), self.launch.print_buffer);
        Ok(list.read as i32)
    }

    /// Returns the bytes up to the next 0, but at most `longest` of them.
    fn string(&mut self, thread: usize, mut address: u64, longest: usize) -> Result<Vec<u8>, Stop> {
        let mut text = Vec::new();
        while text.len() < longest {
            let mut byte = [0];
            self.read_bytes(Space::Generic, Kind::Read, thread, address, &mut byte)?;
            if byte == [0] {
                break;
            }
            text.push(byte[0]);
            address = address.wrapping_add(1);
        }
        Ok(text)
    }
}

/// A `va_list`: each argument is at the next multiple of its size.
struct Arguments {
    address: u64,
    read: usize,
}

impl Arguments {
    fn next(&mut self, machine: &mut Machine<'_>, thread: usize, bytes: usize) -> Result<u64, Stop> {
        let address = self.address.next_multiple_of(bytes as u64);
        let mut value = [0; 8];
        machine.read_bytes(Space::Generic, Kind::Read, thread, address, &mut value[..bytes])?;
        self.address = address + bytes as u64;
        self.read += 1;
        Ok(u64::from_le_bytes(value))
    }
}
