//! The file that a piece of code was loaded from: the executable or a shared library.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use crate::source_location::is_in_executable;

/// Name prefixes of libraries that call the user's code but contain none of it: the C library, its loader, and the
/// unwinder.
const SYSTEM: [&str; 4] = ["libc.so", "libpthread.so", "ld-linux", "libgcc_s.so"];

/// Returns whether the code at an address belongs to the C library, or to the shared library of the virtual GPU.
pub(crate) fn is_of_system(address: usize) -> bool {
    let Some(loaded) = Loaded::at(address) else { return false };
    let here = is_of_system as fn(usize) -> bool as usize;
    let is_virtual = !is_in_executable(here) && Loaded::at(here).is_some_and(|own| own.base == loaded.base);
    is_virtual || SYSTEM.iter().any(|start| loaded.name.starts_with(start))
}

struct Loaded {
    /// Where the file is mapped in memory.
    base: usize,
    /// The file's name without its folder.
    name: String,
}

impl Loaded {
    /// Returns the file with the code at an address; `None` if the code came from no file.
    fn at(address: usize) -> Option<Self> {
        let mut info = MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: `dladdr` only compares the address with the addresses of loaded files and fills `info` if it returns
        // a nonzero value. The name stays valid while the file is loaded, and this thread's stack has code from it.
        let (base, path) = unsafe {
            if libc::dladdr(address as *const _, info.as_mut_ptr()) == 0 {
                return None;
            }
            let info = info.assume_init();
            (info.dli_fbase as usize, CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned())
        };
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        Some(Self { base, name })
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
