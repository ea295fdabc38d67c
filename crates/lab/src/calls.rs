//! Access to the virtual driver's record of an exercise's CUDA and NCCL calls. A real driver has no such record.

use std::ffi::{CStr, OsStr, c_char, c_int, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::Context;
use virtual_gpu_core::recorded::{LiveObject, Place, RecordedCall, StreamOperation};
use virtual_gpu_core::source_location::SourceLine;

use crate::library::Library;
use crate::tier::{Tier, attached};

/// A call made by a line in the exercise.
#[derive(Debug)]
pub(crate) struct Call {
    /// The C function without its version: `cuMemcpyDtoHAsync`.
    pub(crate) function: String,
    /// The first eight bytes of each argument.
    pub(crate) arguments: Vec<u64>,
    /// The result code; 0 is success.
    pub(crate) code: u32,
    pub(crate) line: SourceLine,
}

/// An operation that ran on a stream.
#[derive(Debug)]
pub(crate) struct Operation {
    /// Its stream's number.
    pub(crate) stream: u64,
    pub(crate) stream_name: String,
    /// Its kind, such as `kernel`.
    pub(crate) category: String,
    pub(crate) name: String,
    /// When its stream reached it, in milliseconds.
    pub(crate) start: f64,
    /// When it was done, in milliseconds.
    pub(crate) end: f64,
}

/// The threads whose calls count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    This,
    All,
}

/// The number of a record of calls.
pub(crate) struct Record(c_ulonglong);

type VisitCall = unsafe extern "C" fn(*const RecordedCall, *mut c_void);
type VisitOperation = unsafe extern "C" fn(*const StreamOperation, *mut c_void);
type VisitObject = unsafe extern "C" fn(*const LiveObject, *mut c_void);

/// The virtual driver, if the checks run on it.
pub(crate) struct VirtualDriver(Library);

impl VirtualDriver {
    /// Returns the loaded driver, or `None` on real GPUs.
    ///
    /// # Errors
    /// Fails if the virtual driver can't be found.
    pub(crate) fn find() -> anyhow::Result<Option<Self>> {
        if attached() != Some(Tier::Virtual) {
            return Ok(None);
        }
        // The driver is already loaded, so its name is enough.
        Ok(Some(Self(Library::open(Path::new("libcuda.so"))?)))
    }

    /// Runs `function`, and returns the calls that it makes from lines in the exercise.
    ///
    /// # Errors
    /// Fails if the virtual driver can't record calls.
    pub(crate) fn record<T>(
        &self,
        threads: Threads,
        function: impl FnOnce() -> T,
    ) -> anyhow::Result<(T, Vec<Call>)> {
        let record = self.start_record(threads)?;
        let result = function();
        Ok((result, self.end_record(record)?))
    }

    /// Starts a record of calls from lines in the exercise.
    ///
    /// # Errors
    /// Fails if the virtual driver can't record calls.
    pub(crate) fn start_record(&self, threads: Threads) -> anyhow::Result<Record> {
        // SAFETY: this is the function's type in `virtual_cuda`.
        let start =
            unsafe { self.function::<extern "C" fn(c_int) -> c_ulonglong>(c"virtualGpuRecordCalls")? };
        Ok(Record(start(c_int::from(threads == Threads::All))))
    }

    /// Ends a record, and returns its calls.
    ///
    /// # Errors
    /// Fails if the virtual driver can't record calls.
    pub(crate) fn end_record(&self, record: Record) -> anyhow::Result<Vec<Call>> {
        // SAFETY: this is the function's type in `virtual_cuda`.
        let take = unsafe {
            self.function::<unsafe extern "C" fn(c_ulonglong, VisitCall, *mut c_void)>(
                c"virtualGpuRecordedCalls",
            )?
        };
        let mut calls: Vec<Call> = Vec::new();
        // SAFETY: `add_call` takes such a vector.
        unsafe { take(record.0, add_call, (&raw mut calls).cast()) };
        Ok(calls)
    }

    /// Runs `function`, and makes the `nth` call (counted from 1) that it makes from lines in the exercise fail.
    /// Returns that call, if there was one.
    ///
    /// # Errors
    /// Fails if the virtual driver can't make calls fail.
    pub(crate) fn with_failure<T>(
        &self,
        nth: u64,
        threads: Threads,
        function: impl FnOnce() -> T,
    ) -> anyhow::Result<(T, Option<Call>)> {
        // SAFETY: these are the functions' types in `virtual_cuda`.
        let (fail, failed) = unsafe {
            (
                self.function::<extern "C" fn(c_ulonglong, c_int)>(c"virtualGpuFailCall")?,
                self.function::<unsafe extern "C" fn(VisitCall, *mut c_void)>(c"virtualGpuFailedCall")?,
            )
        };
        let any_thread = c_int::from(threads == Threads::All);
        fail(nth, any_thread);
        let result = function();
        let mut calls: Vec<Call> = Vec::new();
        // SAFETY: `add_call` takes such a vector.
        unsafe { failed(add_call, (&raw mut calls).cast()) };
        fail(0, any_thread);
        Ok((result, calls.pop()))
    }

    /// Returns a function that tells whether the thread that enqueued the running host function is blocked until that
    /// function returns. Its result is 1 or 0.
    ///
    /// # Errors
    /// Fails if the virtual driver can't tell.
    pub(crate) fn host_function_is_awaited(&self) -> anyhow::Result<extern "C" fn() -> c_int> {
        // SAFETY: this is the function's type in `virtual_cuda`.
        unsafe { self.function(c"virtualGpuHostFunctionIsAwaited") }
    }

    /// Starts tracking the objects that lines in the exercise create.
    ///
    /// # Errors
    /// Fails if the virtual driver can't track objects.
    pub(crate) fn track_objects(&self) -> anyhow::Result<()> {
        // SAFETY: this is the function's type in `virtual_cuda`.
        let track = unsafe { self.function::<extern "C" fn()>(c"virtualGpuTrackObjects")? };
        track();
        Ok(())
    }

    /// Returns the live tracked objects: for each, the C function and the line that created it.
    ///
    /// # Errors
    /// Fails if the virtual driver can't track objects.
    pub(crate) fn live_objects(&self) -> anyhow::Result<Vec<(String, SourceLine)>> {
        // SAFETY: this is the function's type in `virtual_cuda`.
        let visit = unsafe {
            self.function::<unsafe extern "C" fn(VisitObject, *mut c_void)>(c"virtualGpuLiveObjects")?
        };
        let mut objects: Vec<(String, SourceLine)> = Vec::new();
        // SAFETY: `add_object` takes such a vector.
        unsafe { visit(add_object, (&raw mut objects).cast()) };
        Ok(objects)
    }

    /// Starts recording when each stream operation runs.
    ///
    /// # Errors
    /// Fails if the virtual driver can't record operations.
    pub(crate) fn record_operations(&self) -> anyhow::Result<()> {
        // SAFETY: this is the function's type in `virtual_cuda`.
        let record = unsafe { self.function::<extern "C" fn()>(c"virtualGpuRecordOperations")? };
        record();
        Ok(())
    }

    /// Returns the recorded operations that have run on GPU 0, in the order in which they were enqueued.
    ///
    /// # Errors
    /// Fails if the virtual driver can't record operations.
    pub(crate) fn operations(&self) -> anyhow::Result<Vec<Operation>> {
        // SAFETY: this is the function's type in `virtual_cuda`.
        let visit = unsafe {
            self.function::<unsafe extern "C" fn(c_int, VisitOperation, *mut c_void)>(
                c"virtualGpuOperations",
            )?
        };
        let mut operations: Vec<Operation> = Vec::new();
        // SAFETY: `add_operation` takes such a vector.
        unsafe { visit(0, add_operation, (&raw mut operations).cast()) };
        Ok(operations)
    }

    /// Returns a function from the virtual driver.
    ///
    /// # Safety
    /// `F` must be the function's type.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> anyhow::Result<F> {
        let symbol = self.0.symbol(name).context("libcuda.so is not the course's virtual driver")?;
        // SAFETY: the caller promises the type, and all function pointers have the same size.
        Ok(unsafe { std::mem::transmute_copy(&symbol) })
    }
}

/// Adds a call to the `Vec<Call>` behind `calls`.
unsafe extern "C" fn add_call(call: *const RecordedCall, calls: *mut c_void) {
    // SAFETY: the driver passes a call that lives until this function returns, and `record` passed the vector.
    unsafe {
        let call = &*call;
        let arguments = std::slice::from_raw_parts(call.arguments, call.argument_count).to_vec();
        let (function, line) = (function_name(call.function), source_line(&call.place));
        (*calls.cast::<Vec<Call>>()).push(Call { function, arguments, code: call.code, line });
    }
}

/// Adds an object to the `Vec<(String, SourceLine)>` behind `objects`.
unsafe extern "C" fn add_object(object: *const LiveObject, objects: *mut c_void) {
    // SAFETY: the driver passes an object that lives until this function returns, and `live_objects` passed the vector.
    unsafe {
        let object = &*object;
        let made = (function_name(object.function), source_line(&object.place));
        (*objects.cast::<Vec<(String, SourceLine)>>()).push(made);
    }
}

/// Adds an operation to the `Vec<Operation>` behind `operations`.
unsafe extern "C" fn add_operation(operation: *const StreamOperation, operations: *mut c_void) {
    // SAFETY: the driver passes an operation that lives until this function returns, and `operations` passed the vector.
    unsafe {
        let operation = &*operation;
        let text = |text| CStr::from_ptr(text).to_string_lossy().into_owned();
        let milliseconds = |nanoseconds: u64| nanoseconds as f64 / 1e6;
        (*operations.cast::<Vec<Operation>>()).push(Operation {
            stream: operation.stream,
            stream_name: text(operation.stream_name),
            category: text(operation.category),
            name: text(operation.name),
            start: milliseconds(operation.start),
            end: milliseconds(operation.end),
        });
    }
}

/// Returns a function's name without its version.
///
/// # Safety
/// `name` must be a C string.
unsafe fn function_name(name: *const c_char) -> String {
    // SAFETY: promised by the caller.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let end = name.rfind("_v").filter(|at| name[at + 2..].parse::<u32>().is_ok());
    name[..end.unwrap_or(name.len())].to_owned()
}

/// # Safety
/// The file of `place` must be a C string.
unsafe fn source_line(place: &Place) -> SourceLine {
    // SAFETY: promised by the caller.
    let file = unsafe { CStr::from_ptr(place.file) };
    let file = Path::new(OsStr::from_bytes(file.to_bytes())).to_owned();
    SourceLine { file, line: place.line, column: place.column }
}

/// Formats a line in the exercise the way reports do: its location and its text.
pub(crate) fn shown(line: &SourceLine) -> String {
    let text = std::fs::read_to_string(&line.file).unwrap_or_default();
    let text = text.lines().nth(line.line.saturating_sub(1) as usize).unwrap_or_default().trim();
    format!("  --> {line}:{}\n        {text}", line.column)
}
