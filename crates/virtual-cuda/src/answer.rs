//! Converts the engine's results to result codes and keeps the error messages.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_char, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};

use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error, NcclResult, NcclStatus};

use crate::calls::{Function, watch};
use crate::pointer::Out;
use crate::{EXPORTS, engine};

/// Messages from failed calls, by code. They live as long as the process, because C callers keep pointers to them.
#[derive(Default)]
struct Said {
    cuda: HashMap<c_uint, &'static CStr>,
    nccl: Option<&'static CStr>,
}

/// The last error on any thread, because the thread that prints an error may not be the one that received it.
static ANY_THREAD: Mutex<Option<Said>> = Mutex::new(None);

thread_local! {
    /// The last error on this thread. It is leaked, so it needs no destructor and outlives the thread's other data.
    static THIS_THREAD: Cell<Option<&'static Mutex<Said>>> = const { Cell::new(None) };
}

thread_local! {
    /// Whether this thread is running one of the program's host functions.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Calls one of the program's host functions. CUDA and NCCL calls inside it are rejected.
pub(crate) fn in_host_function(function: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    function();
    IN_HOST_FUNCTION.set(false);
}

/// Returns whether this thread is running one of the program's host functions.
pub(crate) fn is_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

fn called_by_host_function(name: &str) -> String {
    format!(
        "virtual GPU: {name} was called in a host function (cuLaunchHostFunc), which must not make CUDA calls"
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn this_thread() -> MutexGuard<'static, Said> {
    let said = THIS_THREAD.get().unwrap_or_else(|| {
        let said = Box::leak(Box::default());
        THIS_THREAD.set(Some(said));
        said
    });
    lock(said)
}

/// Calls `with` with the last error on this thread and the last error on any thread.
fn for_both(with: impl Fn(&mut Said)) {
    with(&mut this_thread());
    with(lock(&ANY_THREAD).get_or_insert_default());
}

/// Returns a copy of the text, which lives forever. Equal texts share one copy.
pub(crate) fn keep(text: &str) -> &'static CStr {
    static KEPT: Mutex<Option<HashSet<&'static CStr>>> = Mutex::new(None);
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    let mut kept = lock(&KEPT);
    let kept = kept.get_or_insert_default();
    if let Some(known) = kept.get(text.as_c_str()) {
        return known;
    }
    let text: &'static CStr = Box::leak(text.into_boxed_c_str());
    kept.insert(text);
    text
}

/// The driver functions that work before `cuInit`, other than those for error texts.
const BEFORE_INIT: [&str; 5] =
    ["cuInit", "cuDriverGetVersion", "cuGetProcAddress", "cuGetProcAddress_v2", "cuMemGetAddressRange_v2"];

/// Runs the body of a driver function as [`watch`] does, unless the driver is not initialized. Keeps a panic from reaching the caller
/// and stores the message for `cuGetErrorString`.
pub(crate) fn cuda(
    function: &'static Function,
    arguments: &[u64],
    body: &dyn Fn() -> CudaResult<()>,
) -> c_uint {
    run_cuda(function.name(), &|| watch(function, arguments, body))
}

/// Like [`cuda`], for a call that is not watched.
fn run_cuda(name: &'static str, body: &dyn Fn() -> CudaResult<()>) -> c_uint {
    let answer = may_be_called(name).and_then(|()| {
        let panicked = |_| Err(Error::new(CudaStatus::Unknown, panicked(name)));
        catch_unwind(AssertUnwindSafe(|| CallSite::captured_once_in(body))).unwrap_or_else(panicked)
    });
    answer.map_or_else(keep_cuda_error, |()| CudaStatus::Success as c_uint)
}

/// Returns an error if a driver function can't be called now.
fn may_be_called(name: &'static str) -> CudaResult<()> {
    if engine::has_ended() {
        return Err(CudaStatus::Deinitialized.into());
    }
    if IN_HOST_FUNCTION.get() {
        return Err(Error::new(CudaStatus::NotPermitted, called_by_host_function(name)));
    }
    match engine::get() {
        Err(error) if !BEFORE_INIT.contains(&name) => Err(error),
        _ => Ok(()),
    }
}

fn panicked(name: &str) -> String {
    format!("virtual GPU: internal error in {name} (it panicked)")
}

/// Stores an error for `cuGetErrorString` to return, and returns its code.
fn keep_cuda_error(Error { status, message }: Error<CudaStatus>) -> c_uint {
    let code = status as c_uint;
    let text = (!message.is_empty()).then(|| keep(&message));
    for_both(|said| match text {
        Some(text) => {
            said.cuda.insert(code, text);
        }
        None => {
            said.cuda.remove(&code);
        }
    });
    code
}

/// Like [`cuda`], but for NCCL; `ncclGetLastError` returns the message.
pub(crate) fn nccl(
    function: &'static Function,
    arguments: &[u64],
    body: &dyn Fn() -> NcclResult<()>,
) -> c_uint {
    run_nccl(function.name(), &|| watch(function, arguments, body))
}

/// Like [`nccl`], for a call that is not watched.
pub(crate) fn run_nccl(name: &'static str, body: &dyn Fn() -> NcclResult<()>) -> c_uint {
    let answer = match engine::has_ended() {
        // Ranks that drop their communicators while the process exits have nothing left to abort.
        true if name == "ncclCommAbort" => Ok(()),
        true => Err(Error::new(NcclStatus::SystemError, "the driver is shutting down")),
        false if IN_HOST_FUNCTION.get() => {
            Err(Error::new(NcclStatus::InvalidUsage, called_by_host_function(name)))
        }
        false => {
            let panicked = |_| Err(Error::new(NcclStatus::InternalError, panicked(name)));
            catch_unwind(AssertUnwindSafe(|| CallSite::captured_once_in(body))).unwrap_or_else(panicked)
        }
    };
    answer.map_or_else(keep_nccl_error, |()| NcclStatus::Success as c_uint)
}

/// Stores an error for `ncclGetLastError` to return, logs it, and returns its code.
fn keep_nccl_error(error: Error<NcclStatus>) -> c_uint {
    if error.status != NcclStatus::InProgress {
        let text = keep_last_error(&error);
        virtual_gpu_nccl::log::warn(&text.to_string_lossy());
    }
    error.status as c_uint
}

/// Stores an error for `ncclGetLastError` to return.
pub(crate) fn keep_last_error(error: &Error<NcclStatus>) -> &'static CStr {
    let text = keep(if error.message.is_empty() { error.status.meaning() } else { &error.message });
    for_both(|said| said.nccl = Some(text));
    text
}

/// Returns the error for a driver function that is not implemented.
pub(crate) fn unsupported(name: &'static str) -> c_uint {
    let newest = EXPORTS.iter().rfind(|it| {
        let version = it.name.strip_prefix(name).and_then(|rest| rest.strip_prefix("_v"));
        it.parameters.is_some() && version.is_some_and(|version| version.parse::<u32>().is_ok())
    });
    let help = newest.map_or_else(String::new, |newest| format!(": call {}", newest.name));
    let message = format!("virtual GPU: {name} is not supported{help}");
    run_cuda(name, &|| Err(Error::new(CudaStatus::NotSupported, message.clone())))
}

pub(crate) fn error_name(code: c_uint, to: Out<*const c_char>) -> c_uint {
    give_text(CudaStatus::from_value(code).map(|status| keep(status.c_name())), to)
}

pub(crate) fn error_text(code: c_uint, to: Out<*const c_char>) -> c_uint {
    let said = this_thread().cuda.get(&code).copied();
    let said = said.or_else(|| lock(&ANY_THREAD).as_ref()?.cuda.get(&code).copied());
    give_text(said.or_else(|| CudaStatus::from_value(code).map(|status| keep(status.meaning()))), to)
}

/// Writes the text for a code. For an unknown code, writes null and returns `INVALID_VALUE`.
fn give_text(text: Option<&'static CStr>, to: Out<*const c_char>) -> c_uint {
    let given = to.give(text.map_or(std::ptr::null(), CStr::as_ptr));
    match (text, given) {
        (Some(_), Ok(())) => CudaStatus::Success as c_uint,
        _ => CudaStatus::InvalidValue as c_uint,
    }
}

pub(crate) fn nccl_error_text(code: c_uint) -> *const c_char {
    keep(NcclStatus::from_value(code).map_or("unknown result code", NcclStatus::meaning)).as_ptr()
}

pub(crate) fn nccl_last_error() -> *const c_char {
    let said = this_thread().nccl.or_else(|| lock(&ANY_THREAD).as_ref()?.nccl);
    said.unwrap_or(c"").as_ptr()
}
