//! The functions that no GPU has, whose names start with `virtualGpu`: they shape reports, and record what a program does.

use std::ffi::{c_int, c_ulonglong, c_void};
use std::path::Path;

use virtual_gpu_core::recorded::{LiveObject, RecordedCall, StreamOperation};

use crate::pointer::Text;
use crate::types::Stream;
use crate::{calls, stream};

/// Makes reports skip the sources under the folder `path`: calls made there are shown at their callers' lines.
///
/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn virtualGpuHideLibrary(path: Text) {
    if let Some(path) = path.text() {
        virtual_gpu_core::source_location::hide_library(Path::new(path));
    }
}

/// Names a stream after its role, such as `compute`, for reports and traces. An invalid handle is ignored.
///
/// # Safety
/// `role` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn virtualGpuNameStream(stream: Stream, role: Text) {
    if let Some(role) = role.text() {
        stream::name(stream, role);
    }
}

/// Makes reports show the nearest line in the sources under the folder `path` first.
///
/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn virtualGpuShowSourcesFirst(path: Text) {
    if let Some(path) = path.text() {
        virtual_gpu_core::source_location::show_sources_first(Path::new(path));
    }
}

/// Starts a record of the calls that the program's own sources make (see [`virtualGpuShowSourcesFirst`]) on this
/// thread, or on any thread if `any_thread` is not 0. Returns the record's number. Calls of `cuCtxGetCurrent` and
/// `cuCtxSetCurrent` are left out.
#[unsafe(no_mangle)]
pub extern "C" fn virtualGpuRecordCalls(any_thread: c_int) -> c_ulonglong {
    calls::record(any_thread != 0)
}

/// Ends a record and calls `visit` with each of its calls, in order, passing `data` each time.
///
/// # Safety
/// `visit` may be called with `data` and does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn virtualGpuRecordedCalls(
    record: c_ulonglong,
    visit: unsafe extern "C" fn(*const RecordedCall, *mut c_void),
    data: *mut c_void,
) {
    // SAFETY: the caller promises this.
    calls::take_record(record, |call| unsafe { visit(call, data) });
}

/// Records, from now on, when each operation of a stream runs.
#[unsafe(no_mangle)]
pub extern "C" fn virtualGpuRecordOperations() {
    stream::record_operations();
}

/// Calls `visit` with each recorded operation of GPU `gpu` that has run, in the order in which they were enqueued, and
/// with `data`.
///
/// # Safety
/// `visit` may be called with `data`, and does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn virtualGpuOperations(
    gpu: c_int,
    visit: unsafe extern "C" fn(*const StreamOperation, *mut c_void),
    data: *mut c_void,
) {
    // SAFETY: the caller promises this.
    stream::operations(gpu, |operation| unsafe { visit(operation, data) });
}

/// Returns 1 if the thread that enqueued the running host function is blocked until that function returns, and else 0.
#[unsafe(no_mangle)]
pub extern "C" fn virtualGpuHostFunctionIsAwaited() -> c_int {
    c_int::from(stream::host_function_is_awaited())
}

/// From now on, tracks the streams, events, modules, communicators, buffers, and so on that the program's own sources
/// create.
#[unsafe(no_mangle)]
pub extern "C" fn virtualGpuTrackObjects() {
    calls::track_objects();
}

/// Calls `visit` with each live tracked object, in order of creation, passing `data` each time.
///
/// # Safety
/// `visit` may be called with `data` and does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn virtualGpuLiveObjects(
    visit: unsafe extern "C" fn(*const LiveObject, *mut c_void),
    data: *mut c_void,
) {
    // SAFETY: the caller promises this.
    calls::live_objects(|object| unsafe { visit(object, data) });
}

/// Makes the `nth` call (counting from 1) that the program's own sources make from now on return an error. Counts calls
/// on this thread, or on any thread if `any_thread` is not 0. If `nth` is 0, no call fails. Calls whose error cudarc
/// can't return don't count.
#[unsafe(no_mangle)]
pub extern "C" fn virtualGpuFailCall(nth: c_ulonglong, any_thread: c_int) {
    calls::fail(nth, any_thread != 0);
}

/// If a call has failed since [`virtualGpuFailCall`], calls `visit` with that call and with `data`.
///
/// # Safety
/// `visit` may be called with `data` and does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn virtualGpuFailedCall(
    visit: unsafe extern "C" fn(*const RecordedCall, *mut c_void),
    data: *mut c_void,
) {
    // SAFETY: the caller promises this.
    calls::failed(|call| unsafe { visit(call, data) });
}
