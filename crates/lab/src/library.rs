//! Opens shared libraries for the lifetime of the process.

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use anyhow::{Context, bail};

/// A library that stays loaded until the process ends.
pub(crate) struct Library(NonNull<c_void>);

impl Library {
    /// Loads a library by its path or name.
    ///
    /// # Errors
    /// Fails with the loader's message if the library can't be loaded.
    pub(crate) fn open(name: &Path) -> anyhow::Result<Self> {
        let c_name = CString::new(name.as_os_str().as_encoded_bytes()).context("a path with a zero byte")?;
        // SAFETY: the name is a C string, and the constructors of CUDA's, NCCL's, and our own libraries have no
        // preconditions.
        let handle = unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_NOW) };
        let Some(handle) = NonNull::new(handle) else {
            // SAFETY: after a failure, `dlerror` returns a C string or null.
            let said = unsafe { libc::dlerror() };
            if said.is_null() {
                bail!("{}: can't be loaded", name.display());
            }
            // SAFETY: the pointer is not null, so it is a C string.
            bail!("{}", unsafe { CStr::from_ptr(said) }.to_string_lossy());
        };
        Ok(Self(handle))
    }

    /// Returns the address of a symbol in the library or its dependencies.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is never closed.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }

    /// Returns the file that a symbol was loaded from.
    pub(crate) fn file_of(&self, name: &CStr) -> Option<PathBuf> {
        let symbol = self.symbol(name)?;
        let mut info = MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: `dladdr` only compares addresses, and fills `info` if it returns a nonzero value. The library stays
        // loaded, and with it the name.
        unsafe {
            if libc::dladdr(symbol.as_ptr(), info.as_mut_ptr()) == 0 {
                return None;
            }
            let name = CStr::from_ptr(info.assume_init().dli_fname);
            Some(OsStr::from_bytes(name.to_bytes()).into())
        }
    }

    /// Calls a function that writes one `int` and returns a code that is 0 for success.
    ///
    /// # Safety
    /// If the symbol exists, it must be such a function.
    pub(crate) unsafe fn int_from(&self, name: &CStr) -> Result<c_int, String> {
        let shown = name.to_string_lossy();
        let symbol = self.symbol(name).ok_or_else(|| format!("the library has no {shown}"))?;
        // SAFETY: the caller promises the same.
        let function: extern "C" fn(*mut c_int) -> c_int = unsafe { std::mem::transmute(symbol) };
        let mut value = 0;
        match function(&raw mut value) {
            0 => Ok(value),
            code => Err(format!("{shown} returned error {code}")),
        }
    }
}
