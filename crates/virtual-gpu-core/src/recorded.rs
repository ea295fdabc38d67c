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
