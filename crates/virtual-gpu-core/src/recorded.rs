//! The layout of the virtual driver's reports about the program's calls, which it shares with the test harness.

use std::ffi::{c_char, c_uint};

/// A call made by the program's own sources, as `virtualGpuRecordedCalls` reports it. Pointers are valid until the
/// visit returns.
#[derive(Debug)]
#[repr(C)]
pub struct RecordedCall {
    /// The C function: `cuMemcpyDtoHAsync_v2`.
    pub function: *const c_char,
    /// The first eight bytes of each argument.
    pub arguments: *const u64,
    /// The number of arguments.
    pub argument_count: usize,
    /// The result code; 0 is success.
    pub code: c_uint,
    /// The line that made the call.
    pub place: Place,
}

/// A live object that was created by the program's own sources, as `virtualGpuLiveObjects` reports it.
#[derive(Debug)]
#[repr(C)]
pub struct LiveObject {
    /// The C function that created the object.
    pub function: *const c_char,
    /// The line that created the object.
    pub place: Place,
}

/// An operation that ran in a stream, as `virtualGpuOperations` reports it. Pointers are valid until the visit returns.
#[derive(Debug)]
#[repr(C)]
pub struct StreamOperation {
    /// The stream's number. No other stream of the GPU has it.
    pub stream: u64,
    /// The stream's name, such as `stream 3` or `the compute stream`.
    pub stream_name: *const c_char,
    /// The kind, such as `kernel`, `collective`, or `copy`.
    pub category: *const c_char,
    /// The name, such as that of the kernel.
    pub name: *const c_char,
    /// The time at which the operation's stream reached it, in modeled nanoseconds.
    pub start: u64,
    /// The time at which it was done, in modeled nanoseconds.
    pub end: u64,
}

/// A line of the program's own sources.
#[derive(Debug)]
#[repr(C)]
pub struct Place {
    /// The file's absolute path.
    pub file: *const c_char,
    /// The line, from 1.
    pub line: c_uint,
    /// The column where the call begins, counted in bytes from 1.
    pub column: c_uint,
}
