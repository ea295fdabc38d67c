//! The file that a piece of code was loaded from: the executable or a shared library.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

use crate::map::Map;

/// Name prefixes of libraries that call the user's code but contain none of it: the C library, its loader, the unwinder,
/// and Rust's standard library.
const SYSTEM: [&str; 5] = ["libc.so", "libpthread.so", "ld-linux", "libgcc_s.so", "libstd-"];

/// Returns the path of the file that the code at an address was loaded from, as the loader knows it; `None` if the code
/// came from no file.
pub fn path_of_code(address: usize) -> Option<PathBuf> {
    Loaded::at(address).map(|loaded| loaded.file().to_owned())
}

pub(crate) struct Loaded {
    /// Where the file is mapped in memory.
    pub(crate) base: usize,
    /// As the loader knows it; empty for the executable.
    path: PathBuf,
}

impl Loaded {
    /// Returns the file with the code at an address; `None` if the code came from no file.
    pub(crate) fn at(address: usize) -> Option<Self> {
        Self::find(|segments, _| segments.iter().any(|&(start, size)| address.wrapping_sub(start) < size))
    }

    /// Returns all files that contain code of the user, or may do so.
    pub(crate) fn all() -> Vec<Self> {
        let mut files: Vec<Self> = Vec::new();
        while let Some(file) = Self::find(|_, base| files.iter().all(|known| known.base != base)) {
            files.push(file);
        }
        files.retain(|file| !file.is_of_system());
        files
    }

    /// Returns the file with a key (see [`Self::key`]); `None` if this process has loaded none.
    fn with_key(key: u64) -> Option<Self> {
        Self::find(|_, base| key_of(base) == Some(key))
    }

    /// Returns the first loaded file that `is_it` accepts: by the start and the size of each of its segments in memory,
    /// and by the start of its first page.
    fn find(mut is_it: impl FnMut(&[(usize, usize)], usize) -> bool) -> Option<Self> {
        let mut found = None;
        let mut look = |info: &libc::dl_phdr_info| {
            // SAFETY: the loader passes this many program headers.
            let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
            let bias = info.dlpi_addr as usize;
            let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
            let segments: Vec<_> = loaded
                .map(|header| (bias.wrapping_add(header.p_vaddr as usize), header.p_memsz as usize, header))
                .collect();
            let Some(&(first, _, header)) = segments.first() else { return false };
            let base = first - first % (header.p_align as usize).max(1);
            let segments: Vec<_> = segments.iter().map(|&(start, size, _)| (start, size)).collect();
            let is_it = is_it(&segments, base);
            if is_it {
                // SAFETY: the loader passes a C string.
                let name = unsafe { CStr::from_ptr(info.dlpi_name) };
                found = Some(Self { base, path: OsStr::from_bytes(name.to_bytes()).into() });
            }
            is_it
        };
        let mut look: &mut dyn FnMut(&libc::dl_phdr_info) -> bool = &mut look;
        // SAFETY: `call` expects this closure, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(call), (&raw mut look).cast()) };
        found
    }

    /// Returns a path that opens the file. The executable's opens it even if another was built in its place.
    pub(crate) fn file(&self) -> &Path {
        if self.is_executable() { Path::new("/proc/self/exe") } else { &self.path }
    }

    fn is_executable(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    /// Returns whether the file is the C library, the standard library, or the shared library of the virtual GPU: none
    /// contains code of the user. Reading the C library's debug information, if it is installed, takes long.
    pub(crate) fn is_of_system(&self) -> bool {
        static OWN_BASE: OnceLock<Option<usize>> = OnceLock::new();
        let own_base = OWN_BASE.get_or_init(|| {
            let here = Self::at as fn(usize) -> Option<Self> as usize;
            Self::at(here).filter(|own| !own.is_executable()).map(|own| own.base)
        });
        let name = self.path.file_name().unwrap_or_default().as_bytes();
        *own_base == Some(self.base) || SYSTEM.iter().any(|start| name.starts_with(start.as_bytes()))
    }
}

/// The loader's callback: calls the closure that `look` points to. The loader goes on to the next file until this returns
/// something other than 0 (`dl_iterate_phdr(3)`).
unsafe extern "C" fn call(info: *mut libc::dl_phdr_info, _: usize, look: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid `info`, and `look` as it was passed to the loader.
    let (info, look) = unsafe { (&*info, &mut *look.cast::<&mut dyn FnMut(&libc::dl_phdr_info) -> bool>()) };
    c_int::from(look(info))
}

/// An address in a loaded file, which means the same in all processes that have loaded the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InFile {
    /// The file's key, by [`key_of`].
    pub(crate) file: u64,
    /// The number of bytes from the file's first page in memory.
    pub(crate) offset: u64,
}

impl InFile {
    /// Returns the place of an address; `None` if it is in no file. The answers are remembered.
    pub(crate) fn of(address: usize) -> Option<Self> {
        static KNOWN: LazyLock<Mutex<Map<usize, Option<InFile>>>> = LazyLock::new(Mutex::default);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(address).or_insert_with(|| {
            let loaded = Loaded::at(address)?;
            Some(Self { file: key_of(loaded.base)?, offset: (address - loaded.base) as u64 })
        })
    }

    /// Returns the address; `None` if this process has not loaded the file. Where files are is remembered.
    pub(crate) fn address(self) -> Option<usize> {
        static BASES: LazyLock<Mutex<Map<u64, usize>>> = LazyLock::new(Mutex::default);
        let mut bases = BASES.lock().unwrap_or_else(PoisonError::into_inner);
        let base = match bases.get(&self.file) {
            Some(&base) => base,
            None => *bases.entry(self.file).or_insert(Loaded::with_key(self.file)?.base),
        };
        base.checked_add(usize::try_from(self.offset).ok()?)
    }
}

/// Returns a key of the file that is mapped at an address: the hash of its device, inode, and path. All processes that have
/// mapped the same file know it by the same key, even after another file has taken its path. The answers are remembered.
fn key_of(base: usize) -> Option<u64> {
    static KNOWN: LazyLock<Mutex<Map<usize, Option<u64>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.entry(base).or_insert_with(|| {
        // `start-end permissions offset device inode path` (`proc_pid_maps(5)`)
        let maps = fs::read_to_string("/proc/self/maps").ok()?;
        let line = maps.lines().find(|line| {
            let start = line.split_once('-').and_then(|(start, _)| usize::from_str_radix(start, 16).ok());
            start == Some(base)
        })?;
        let mut parts = line.split_ascii_whitespace().skip(3);
        let (device, inode, path) = (parts.next()?, parts.next()?, parts.next()?);
        let mut hasher = DefaultHasher::new();
        (device, inode, path).hash(&mut hasher);
        Some(hasher.finish())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: fn(usize) -> Option<PathBuf> = path_of_code;

    #[test]
    fn the_c_library_is_of_the_system_and_the_executable_is_not() {
        let libc = Loaded::at(libc::getpid as *const () as usize).unwrap();
        assert!(libc.is_of_system() && libc.file().is_file());
        let own = Loaded::at(HERE as usize).unwrap();
        assert!(!own.is_of_system());
        assert_eq!(own.file(), Path::new("/proc/self/exe"));
        assert!(Loaded::at(8).is_none());
    }

    #[test]
    fn an_address_is_found_again() {
        let own = InFile::of(HERE as usize).unwrap();
        let libc = InFile::of(libc::getpid as *const () as usize).unwrap();
        assert_ne!(own.file, libc.file);
        assert_eq!(own.address(), Some(HERE as usize));
        assert_eq!(libc.address(), Some(libc::getpid as *const () as usize));
        assert_eq!(InFile::of(8), None);
        assert_eq!(InFile { file: own.file ^ libc.file, ..own }.address(), None);
    }
}
