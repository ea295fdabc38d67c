//! The file that a piece of code was loaded from: the executable or a shared library.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use crate::source_location::is_in_executable;

/// The smallest page of memory that a processor maps, in bytes.
const PAGE: usize = 4096;

/// Name prefixes of libraries that call the user's code but contain none of it: the C library, its loader, and the
/// unwinder.
const SYSTEM: [&str; 4] = ["libc.so", "libpthread.so", "ld-linux", "libgcc_s.so"];

/// Returns whether the code at an address belongs to the C library, or to the shared library of the virtual GPU.
///
/// Looking a file up takes the loader microseconds, and the same code is asked about again and again. So the answers are
/// remembered by page: no page has code from two files, and a program seldom unloads a library and loads another there.
pub(crate) fn is_of_system(address: usize) -> bool {
    static KNOWN: Mutex<BTreeMap<usize, bool>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    *known.entry(address / PAGE).or_insert_with(|| find(address))
}

fn find(address: usize) -> bool {
    static OWN_BASE: OnceLock<Option<usize>> = OnceLock::new();
    let Some(loaded) = Loaded::at(address) else { return false };
    let own_base = OWN_BASE.get_or_init(|| {
        let here = find as fn(usize) -> bool as usize;
        (!is_in_executable(here)).then(|| Loaded::at(here).map(|own| own.base)).flatten()
    });
    let name = loaded.path.file_name().unwrap_or_default().as_bytes();
    *own_base == Some(loaded.base) || SYSTEM.iter().any(|start| name.starts_with(start.as_bytes()))
}

/// Returns the path of the file that the code at an address was loaded from, as the loader knows it; `None` if the code
/// came from no file.
pub fn path_of_code(address: usize) -> Option<PathBuf> {
    Loaded::at(address).map(|loaded| loaded.path)
}

struct Loaded {
    /// Where the file is mapped in memory.
    base: usize,
    path: PathBuf,
}

impl Loaded {
    /// Returns the file with the code at an address; `None` if the code came from no file.
    fn at(address: usize) -> Option<Self> {
        let mut info = MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: `dladdr` only compares the address with the addresses of loaded files and fills `info` if it returns
        // a nonzero value. The name stays valid while the file is loaded, and this thread's stack has code from it.
        unsafe {
            if libc::dladdr(address as *const _, info.as_mut_ptr()) == 0 {
                return None;
            }
            let info = info.assume_init();
            let path = OsStr::from_bytes(CStr::from_ptr(info.dli_fname).to_bytes());
            Some(Self { base: info.dli_fbase as usize, path: path.into() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_of_the_system_and_the_executable_is_not() {
        assert!(is_of_system(libc::getpid as *const () as usize));
        assert!(!is_of_system(is_of_system as fn(usize) -> bool as usize));
        assert!(!is_of_system(8));
    }
}
