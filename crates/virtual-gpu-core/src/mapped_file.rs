//! Files in memory.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

/// Maps a file into memory until the process ends, so that only the parts in use are read. Returns `None` if the file is
/// empty or can't be mapped.
pub fn map_forever(file: &File) -> Option<&'static [u8]> {
    let length = usize::try_from(file.metadata().ok()?.len()).ok().filter(|&length| length > 0)?;
    // SAFETY: this creates a new mapping that can only be read.
    let start =
        unsafe { libc::mmap(null_mut(), length, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
    // SAFETY: the mapping has this many bytes and is never removed. A program or library that is built or installed again
    // is replaced, and not rewritten in place, so the bytes don't change.
    (start != libc::MAP_FAILED).then(|| unsafe { std::slice::from_raw_parts(start.cast(), length) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mapping_has_the_bytes_of_the_file() {
        let own = File::open("/proc/self/exe").unwrap();
        let bytes = map_forever(&own).unwrap();
        assert_eq!(bytes.len() as u64, own.metadata().unwrap().len());
        assert!(bytes.starts_with(b"\x7fELF"));
        assert!(map_forever(&File::open("/dev/null").unwrap()).is_none());
    }
}
