//! What a program can ask of the compiler and the linker of PTX, and the logs that they write for it.

use std::ffi::{c_uint, c_void};

use virtual_gpu_core::status::{CudaResult, invalid};

use crate::pointer::{Out, Source};

/// An option's value, which may be a number or an address.
pub type OptionValue = *mut c_void;

/// `CU_JIT_NUM_OPTIONS`
const OPTIONS: c_uint = 34;
/// `CU_JIT_WALL_TIME`
const WALL_TIME: c_uint = 2;
/// `CU_JIT_INFO_LOG_BUFFER` and `CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES`
const INFO: [c_uint; 2] = [3, 4];
/// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`
const ERROR: [c_uint; 2] = [5, 6];

/// A program's log. "Log messages will be capped at this size (including null terminator)" (`cuda.h`).
#[derive(Clone, Copy, Debug, Default)]
struct Log {
    /// The address and the size of its buffer.
    buffer: Option<(usize, usize)>,
    /// Where the number of bytes that were written goes.
    size: Option<usize>,
}

/// The logs that a program asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Logs {
    info: Log,
    error: Log,
}

impl Logs {
    /// Reads the options of a call, and empties the logs. Compilation takes a time of 0, and the other options have no
    /// effect, because the virtual GPU interprets PTX and doesn't compile it.
    ///
    /// # Errors
    /// Returns `InvalidValue` if an option is not one, or if an array is missing.
    pub(crate) fn of(
        caller: &str,
        count: c_uint,
        options: Source<c_uint>,
        values: Out<OptionValue>,
    ) -> CudaResult<Self> {
        if count > OPTIONS || count > 0 && (options.is_null() || values.is_null()) {
            return Err(invalid(format!("{caller}: {count} options, or an array of them that is null")));
        }
        let options = options.values(count as usize)?;
        if let Some(unknown) = options.iter().find(|&&option| option >= OPTIONS) {
            return Err(invalid(format!("{caller}: {unknown} is not a CUjit_option")));
        }
        let slot = |option: c_uint| {
            let at = options.iter().position(|&known| known == option)?;
            Some(values.address() + at * size_of::<OptionValue>())
        };
        let read = |slot: usize| Source::<usize>::at(slot).value("the option's value");
        let log = |[buffer, size]: [c_uint; 2]| -> CudaResult<Log> {
            let size = slot(size);
            let buffer = match (slot(buffer), size) {
                (Some(buffer), Some(size)) => Some((read(buffer)?, read(size)? as u32 as usize)),
                _ => None,
            };
            Ok(Log { buffer: buffer.filter(|(at, size)| *at != 0 && *size > 0), size })
        };
        if let Some(slot) = slot(WALL_TIME) {
            Out::<f32>::at(slot).give(0.0)?;
        }
        let logs = Self { info: log(INFO)?, error: log(ERROR)? };
        logs.info.write("")?;
        logs.error.write("")?;
        Ok(logs)
    }

    /// Writes a message to the log for errors.
    pub(crate) fn report(&self, message: &str) -> CudaResult<()> {
        self.error.write(message)
    }
}

impl Log {
    /// Writes a text, cut off at the size of the buffer, and the number of its bytes.
    fn write(self, text: &str) -> CudaResult<()> {
        let mut written = 0;
        if let Some((at, size)) = self.buffer {
            written = text.len().min(size - 1);
            let mut text = text.as_bytes()[..written].to_vec();
            text.push(0);
            Out::<u8>::at(at).give_all(&text)?;
        }
        self.size.map_or(Ok(()), |slot| Out::<usize>::at(slot).give(written))
    }
}
