//! Calls of the driver on a machine without a GPU.

use std::ffi::{c_char, c_int, c_uint};
use std::io::{Read, Write};
use std::os::fd::FromRawFd;

use anyhow::{Context, ensure};
use libloading::{Library, Symbol};
use virtual_cuda::EXPORTS;

use crate::probe::{print, text};

/// The codes whose names and texts are read: more than there are, and some that no header has.
pub(super) const CODES: std::ops::RangeInclusive<c_uint> = 0..=1100;

/// Any driver function: none has more parameters, or one in a floating-point register. A function ignores those that it
/// doesn't have.
type Function = unsafe extern "C" fn(
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
) -> c_uint;

/// A function that writes the text for a code.
type TextOf = unsafe extern "C" fn(c_uint, *mut *const c_char) -> c_uint;

/// Makes the calls, and prints what they return.
pub(crate) fn calls(library: &Library) -> anyhow::Result<()> {
    // SAFETY: these are the types in cuda.h.
    unsafe {
        version(library)?;
        for name in ["cuGetErrorName", "cuGetErrorString"] {
            texts(name, *library.get::<TextOf>(name).context(name)?);
        }
        let init: Symbol<'_, unsafe extern "C" fn(c_uint) -> c_uint> = library.get("cuInit")?;
        let initialize = || {
            init(0);
        };
        for export in EXPORTS.iter().filter(|it| it.name.starts_with("cu") && it.parameters.is_some()) {
            let Ok(function) = library.get::<Function>(export.name) else { continue };
            let name = export.name;
            print(&format!("{name}(NULL) before cuInit"), apart(|| call(*function, 0))?);
            let failed = || {
                initialize();
                call(*function, 0)
            };
            print(&format!("{name}(NULL) after cuInit"), apart(failed)?);
        }
        print("cuInit, flags 1", init(1));
        print("cuInit", init(0));
        print("cuInit, again", init(0));
    }
    Ok(())
}

/// # Safety
/// The library is a driver; the same for the functions below.
unsafe fn version(library: &Library) -> anyhow::Result<()> {
    // SAFETY: the caller promises this.
    unsafe {
        let version: Symbol<'_, unsafe extern "C" fn(*mut c_int) -> c_uint> =
            library.get("cuDriverGetVersion")?;
        let mut value = 0;
        print("cuDriverGetVersion before cuInit", version(&mut value));
        print("version", value);
    }
    Ok(())
}

unsafe fn texts(name: &str, text_of: TextOf) {
    for code in CODES {
        let mut found: *const c_char = std::ptr::null();
        // SAFETY: the caller promises this.
        let (result, found) = unsafe { (text_of(code, &mut found), text(found)) };
        if result != 1 || found != "null" {
            print(&format!("{name}({code})"), format_args!("{result}, {found}"));
        }
    }
}

/// Passes the same value for each argument.
unsafe fn call(function: Function, value: usize) -> c_uint {
    // SAFETY: null pointers and no handles are errors that a driver reports.
    unsafe { function(value, value, value, value, value, value, value, value, value, value, value, value) }
}

/// Makes a call in a process of its own, because a driver may crash, and because cuInit has an effect only once.
fn apart(call: impl Fn() -> c_uint) -> anyhow::Result<String> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    ensure!(unsafe { libc::pipe(ends.as_mut_ptr()) } == 0, "no pipe");
    // SAFETY: the descriptors are open, and nothing else owns them.
    let [mut read, mut write] = ends.map(|end| unsafe { std::fs::File::from_raw_fd(end) });
    // SAFETY: this process has one thread.
    match unsafe { libc::fork() } {
        -1 => anyhow::bail!("can't fork"),
        0 => {
            let _ = write.write_all(call().to_string().as_bytes());
            // SAFETY: ends the process, without running what the parent runs when it ends.
            unsafe { libc::_exit(0) }
        }
        child => {
            drop(write);
            let mut result = String::new();
            read.read_to_string(&mut result)?;
            // SAFETY: the child exists, and its status isn't needed.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            Ok(if result.is_empty() { "crash".to_owned() } else { result })
        }
    }
}

/// Prints the runtime library's names and texts for codes.
pub(crate) fn runtime_texts(library: &Library) -> anyhow::Result<()> {
    // SAFETY: this is the type in cuda_runtime_api.h.
    unsafe {
        let text_of: Symbol<'_, unsafe extern "C" fn(c_uint) -> *const c_char> =
            library.get("cudaGetErrorString")?;
        for code in CODES {
            print(&format!("cuGetErrorString({code})"), format_args!("0, {}", text(text_of(code))));
        }
    }
    Ok(())
}

/// Prints what the course finds on this machine.
pub(crate) fn survey() {
    let shown = |result: anyhow::Result<String>| result.unwrap_or_else(|error| format!("error: {error:#}"));
    let driver = &lab::tier::survey().driver;
    print("driver", driver.as_ref().map_or_else(Clone::clone, |driver| format!("{} GPUs", driver.gpus)));
    print("tier for one rank", shown(lab::tier::tier_for(1).map(|tier| tier.to_string())));
    print("attached", shown(lab::attach(1).map(|tier| tier.to_string())));
}
