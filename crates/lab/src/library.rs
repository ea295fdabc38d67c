//! Shared libraries, opened for good.

use std::ffi::{CStr, CString, c_int, c_void};
use std::path::Path;
use std::ptr::NonNull;

use anyhow::{Context, bail};

/// A library that stays loaded until the process ends.
pub(crate) struct Library(NonNull<c_void>);

impl Library {
    /// Loads a library by its path or its name.
    ///
    /// # Errors
    /// What the loader says.
    pub(crate) fn open(name: &Path) -> anyhow::Result<Self> {
        let c_name = CString::new(name.as_os_str().as_encoded_bytes()).context("a path with a zero byte")?;
        // SAFETY: a C string; the constructors of CUDA's, NCCL's and our own libraries ask nothing of the caller.
        let handle = unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_NOW) };
        let Some(handle) = NonNull::new(handle) else {
            // SAFETY: after a failure, `dlerror` gives a C string or null.
            let said = unsafe { libc::dlerror() };
            if said.is_null() {
                bail!("{}: can't be loaded", name.display());
            }
            // SAFETY: not null, and so a C string.
            bail!("{}", unsafe { CStr::from_ptr(said) }.to_string_lossy());
        };
        Ok(Self(handle))
    }

    /// Address of a symbol of the library or of what it depends on.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is never closed.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }

    /// Calls a function that writes one `int` and returns a code that is 0 for success.
    ///
    /// # Safety
    /// The symbol, where there is one, is such a function.
    pub(crate) unsafe fn int_from(&self, name: &CStr) -> Result<c_int, String> {
        let shown = name.to_string_lossy();
        let symbol = self.symbol(name).ok_or_else(|| format!("the library has no {shown}"))?;
        // SAFETY: promised by the caller.
        let function: extern "C" fn(*mut c_int) -> c_int = unsafe { std::mem::transmute(symbol) };
        let mut value = 0;
        match function(&raw mut value) {
            0 => Ok(value),
            code => Err(format!("{shown} answers with error {code}")),
        }
    }
}
