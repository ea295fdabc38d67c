//! Driver functions that a program finds by name: `cuGetProcAddress`, and the symbols that the library exports.

use std::ffi::{CStr, c_int, c_void};

use cudarc::driver::sys::{self, CUdriverProcAddressQueryResult as Status, CUresult, CUstream};
use lab::Check;

use crate::device::untracked;
use crate::fails;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("symbols::the_version_decides_which_function_is_found", versions),
        Check::new("symbols::the_status_says_why_nothing_is_found", status),
        Check::new("symbols::the_first_form_returns_an_error_instead", first_form),
        Check::new("symbols::functions_for_the_thread_s_own_default_stream", own_default_stream),
        Check::new("symbols::bad_arguments_are_named", bad_arguments),
        Check::new("symbols::every_name_of_cuda_12_9_is_exported_and_none_of_13", exported),
    ]
}

/// The flag for functions that use the thread's own default stream.
const PER_THREAD: u64 = 2;

/// Returns what the library exports under a name.
pub(crate) fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: the library is loaded and stays loaded.
    unsafe {
        let library = libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        assert!(!library.is_null());
        libc::dlsym(library, name.as_ptr())
    }
}

/// Asks for a function, without any preparation, and returns the call's result, the address, and the status.
fn ask(name: &CStr, version: c_int, flags: u64) -> (CUresult, *mut c_void, Status) {
    let mut address = std::ptr::dangling_mut();
    let mut status = Status::CU_GET_PROC_ADDRESS_SUCCESS;
    // SAFETY: both results are writable.
    let result =
        unsafe { sys::cuGetProcAddress_v2(name.as_ptr(), &raw mut address, version, flags, &raw mut status) };
    (result, address, status)
}

#[track_caller]
fn finds(name: &CStr, version: c_int, flags: u64, expected: &CStr) {
    let (result, address, status) = ask(name, version, flags);
    assert_eq!((result, status), (CUresult::CUDA_SUCCESS, Status::CU_GET_PROC_ADDRESS_SUCCESS));
    assert!(!address.is_null());
    assert_eq!(address, symbol(expected), "{name:?} of CUDA {version} is not {expected:?}");
}

fn versions() -> anyhow::Result<()> {
    lab::attach(1)?;
    // Works before cuInit.
    finds(c"cuMemAlloc", 3020, 0, c"cuMemAlloc_v2");
    finds(c"cuMemAlloc", 12_090, 1, c"cuMemAlloc_v2");
    finds(c"cuMemAlloc", 3010, 0, c"cuMemAlloc");
    finds(c"cuInit", 2000, 0, c"cuInit");
    finds(c"cuCtxCreate", 3020, 0, c"cuCtxCreate_v2");
    finds(c"cuCtxCreate", 11_040, 0, c"cuCtxCreate_v3");
    finds(c"cuCtxCreate", 12_090, 0, c"cuCtxCreate_v4");
    finds(c"cuGetProcAddress", 11_030, 0, c"cuGetProcAddress");
    finds(c"cuGetProcAddress", 12_000, 0, c"cuGetProcAddress_v2");
    finds(c"cuGetErrorString", 6000, 0, c"cuGetErrorString");
    // A program for a newer CUDA gets the newest function that the driver has.
    finds(c"cuStreamGetCaptureInfo", 13_000, 0, c"cuStreamGetCaptureInfo_v3");
    // A function that is not supported is found. It returns an error when it is called.
    finds(c"cuImportExternalMemory", 12_000, 0, c"cuImportExternalMemory");
    Ok(())
}

fn status() -> anyhow::Result<()> {
    lab::attach(1)?;
    let success = CUresult::CUDA_SUCCESS;
    let (not_found, too_old) =
        (Status::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, Status::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    let null = std::ptr::null_mut();
    // The second one exists only in CUDA 13; the third one is not a base name.
    for name in [c"cuNoSuchFunction", c"cuCtxGetDevice_v2", c"cuMemAlloc_v2", c"", c"#", c"ptsz"] {
        assert_eq!(ask(name, 12_090, 0), (success, null, not_found), "{name:?}");
    }
    assert_eq!(ask(c"cuLaunchKernelEx", 11_000, 0), (success, null, too_old));
    assert_eq!(ask(c"cuMemAllocAsync", 11_010, PER_THREAD), (success, null, too_old));
    assert_eq!(ask(c"cuInit", -1, 0), (success, null, too_old));
    let mut address = std::ptr::dangling_mut();
    // SAFETY: the address is writable, and the status is optional.
    let result = unsafe {
        sys::cuGetProcAddress_v2(c"cuNo".as_ptr(), &raw mut address, 12_000, 0, std::ptr::null_mut())
    };
    assert_eq!((result, address), (success, null));
    Ok(())
}

fn first_form() -> anyhow::Result<()> {
    lab::attach(1)?;
    type GetProcAddress = unsafe extern "C" fn(*const i8, *mut *mut c_void, c_int, u64) -> CUresult;
    // SAFETY: this is the function's type in CUDA 11.3.
    let get: GetProcAddress = unsafe { std::mem::transmute(symbol(c"cuGetProcAddress")) };
    let mut address = std::ptr::dangling_mut();
    let mut ask = |name: &CStr| {
        // SAFETY: the address is writable.
        unsafe { get(name.as_ptr().cast(), &raw mut address, 11_030, 0) }.result().map(|()| address)
    };
    assert_eq!(ask(c"cuMemFree")?, symbol(c"cuMemFree_v2"));
    let words = ["CUDA 11030 has no driver function `cuLaunchKernelEx`"];
    fails(ask(c"cuLaunchKernelEx"), CUresult::CUDA_ERROR_NOT_FOUND, &words);
    assert_eq!(address, std::ptr::null_mut());
    Ok(())
}

fn own_default_stream() -> anyhow::Result<()> {
    let context = untracked(0);
    finds(c"cuMemcpyHtoD", 12_000, PER_THREAD, c"cuMemcpyHtoD_v2_ptds");
    finds(c"cuMemcpyHtoD", 6000, PER_THREAD, c"cuMemcpyHtoD_v2");
    finds(c"cuMemPrefetchAsync", 8000, PER_THREAD, c"cuMemPrefetchAsync_ptsz");
    finds(c"cuMemPrefetchAsync", 12_090, PER_THREAD, c"cuMemPrefetchAsync_v2_ptsz");
    finds(c"cuMemAlloc", 12_090, PER_THREAD, c"cuMemAlloc_v2");
    finds(c"cuMemsetD8Async", 12_090, 1, c"cuMemsetD8Async");
    type Set = unsafe extern "C" fn(u64, u8, usize, CUstream) -> CUresult;
    // SAFETY: these are the function's parameters.
    let set: Set = unsafe { std::mem::transmute(symbol(c"cuMemsetD8Async_ptsz")) };
    let stream = context.new_stream()?;
    let buffer = stream.alloc_zeros::<u8>(4)?;
    stream.synchronize()?;
    let address = crate::raw::address(&buffer);
    let own = 2 as CUstream;
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    let mut graph = std::ptr::null_mut();
    // SAFETY: the handles are valid, and the buffer has four bytes.
    unsafe {
        // The set becomes a part of the graph, so stream 0 means the thread's own default stream.
        sys::cuStreamBeginCapture_v2(own, mode).result()?;
        set(address, 7, 4, std::ptr::null_mut()).result()?;
        sys::cuStreamEndCapture(own, &raw mut graph).result()?;
        assert_eq!(stream.clone_dtoh(&buffer)?, [0; 4]);
        set(address, 7, 4, std::ptr::null_mut()).result()?;
        sys::cuStreamSynchronize(own).result()?;
        assert_eq!(stream.clone_dtoh(&buffer)?, [7; 4]);
        sys::cuGraphDestroy(graph).result()?;
    }
    Ok(())
}

fn bad_arguments() -> anyhow::Result<()> {
    lab::attach(1)?;
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    let (status, mut address) = (std::ptr::null_mut(), std::ptr::null_mut());
    fails(ask(c"cuInit", 12_000, 3).0.result(), invalid, &["the flags must be 0, 1, or 2, not 0x3"]);
    // SAFETY: the pointers are null or valid.
    unsafe {
        let unnamed = sys::cuGetProcAddress_v2(std::ptr::null(), &raw mut address, 12_000, 0, status);
        fails(unnamed.result(), invalid, &["the name is null"]);
        let nowhere = sys::cuGetProcAddress_v2(c"cuInit".as_ptr(), std::ptr::null_mut(), 12_000, 0, status);
        fails(nowhere.result(), invalid, &["the result pointer is null"]);
    }
    Ok(())
}

fn exported() -> anyhow::Result<()> {
    lab::attach(1)?;
    let versions = include_str!("../../../virtual-cuda/src/versions.txt");
    let lines: Vec<_> = versions.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(lines.len() > 430);
    for line in lines {
        let words: Vec<_> = line.split(' ').collect();
        let name = std::ffi::CString::new(words[0])?;
        for word in &words[1..] {
            let Ok(version) = word.parse() else { continue };
            let (result, address, status) = ask(&name, version, PER_THREAD);
            assert_eq!(
                (result, status),
                (CUresult::CUDA_SUCCESS, Status::CU_GET_PROC_ADDRESS_SUCCESS),
                "{line}"
            );
            assert!(!address.is_null(), "{line}");
        }
    }
    for name in [c"cuCtxGetDevice_v2", c"cuMemGetDefaultMemPool", c"cuLaunchHostFunc_v2"] {
        assert!(symbol(name).is_null(), "{name:?}");
    }
    Ok(())
}
