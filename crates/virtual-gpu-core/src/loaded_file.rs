//! The file that a piece of code was loaded from: the executable or a shared library.

use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::source_location::is_in_executable;

/// Name prefixes of libraries that call the user's code but contain none of it: the C library, its loader, and the
/// unwinder.
const SYSTEM: [&str; 4] = ["libc.so", "libpthread.so", "ld-linux", "libgcc_s.so"];

/// Returns the path of the file that the code at an address was loaded from, as the loader knows it; `None` if the code
/// came from no file.
pub fn path_of_code(address: usize) -> Option<PathBuf> {
    Loaded::at(address).map(|loaded| loaded.path)
}

pub(crate) struct Loaded {
    /// Where the file is mapped in memory.
    pub(crate) base: usize,
    /// As the loader knows it: for the executable, the name that it was started with.
    path: PathBuf,
    is_executable: bool,
}

impl Loaded {
    /// Returns the file with the code at an address; `None` if the code came from no file.
    pub(crate) fn at(address: usize) -> Option<Self> {
        let mut info = MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: `dladdr` only compares the address with the addresses of loaded files and fills `info` if it returns
        // a nonzero value. The name stays valid while the file is loaded, and this thread's stack has code from it.
        unsafe {
            if libc::dladdr(address as *const _, info.as_mut_ptr()) == 0 {
                return None;
            }
            let info = info.assume_init();
            let path = OsStr::from_bytes(CStr::from_ptr(info.dli_fname).to_bytes());
            let is_executable = is_in_executable(address);
            Some(Self { base: info.dli_fbase as usize, path: path.into(), is_executable })
        }
    }

    /// Returns a path that opens the file. The executable's opens it even if another was built in its place.
    pub(crate) fn file(&self) -> &Path {
        if self.is_executable { Path::new("/proc/self/exe") } else { &self.path }
    }

    /// Returns whether the file is the C library, or the shared library of the virtual GPU: neither contains code of the
    /// user. Reading the C library's debug information, if it is installed, takes long.
    pub(crate) fn is_of_system(&self) -> bool {
        static OWN_BASE: OnceLock<Option<usize>> = OnceLock::new();
        let own_base = OWN_BASE.get_or_init(|| {
            let here = Self::at as fn(usize) -> Option<Self> as usize;
            Self::at(here).filter(|own| !own.is_executable).map(|own| own.base)
        });
        let name = self.path.file_name().unwrap_or_default().as_bytes();
        *own_base == Some(self.base) || SYSTEM.iter().any(|start| name.starts_with(start.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_of_the_system_and_the_executable_is_not() {
        let libc = Loaded::at(libc::getpid as *const () as usize).unwrap();
        assert!(libc.is_of_system() && libc.file().is_file());
        let own = Loaded::at(path_of_code as fn(usize) -> Option<PathBuf> as usize).unwrap();
        assert!(!own.is_of_system());
        assert_eq!(own.file(), Path::new("/proc/self/exe"));
        assert!(Loaded::at(8).is_none());
    }
}
