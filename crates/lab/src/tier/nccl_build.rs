//! Finds the CUDA version that an NCCL library was built for.

use std::fs::File;
use std::path::Path;

use elf::ElfBytes;
use elf::endian::NativeEndian;
use virtual_gpu_core::mapped_file::map_forever;

use super::survey::CudaVersion;

/// What precedes the CUDA version in the text that NCCL prints for `NCCL_DEBUG=VERSION`, such as
/// `NCCL version 2.27.3+cuda12.9`. No function returns this version.
const BEFORE: &[u8] = b"+cuda";

/// Returns the CUDA version that the NCCL library in a file was built for, or `None` if the file contains no such text.
pub fn cuda_of_nccl(library: &Path) -> Option<CudaVersion> {
    let file = ElfBytes::<NativeEndian>::minimal_parse(map_forever(&File::open(library).ok()?)?).ok()?;
    // The rest of the library, some hundred MB, is code for GPUs.
    let (constants, _) = file.section_data(&file.section_header_by_name(".rodata").ok()??).ok()?;
    constants
        .windows(BEFORE.len())
        .enumerate()
        .filter(|(_, bytes)| *bytes == BEFORE)
        .find_map(|(at, _)| version(&constants[at + BEFORE.len()..]))
}

/// Reads a version such as `12.9` at the beginning of a text.
fn version(text: &[u8]) -> Option<CudaVersion> {
    let end = text.iter().position(|byte| !(byte.is_ascii_digit() || *byte == b'.'))?;
    let (major, minor) = std::str::from_utf8(&text[..end]).ok()?.split_once('.')?;
    Some(CudaVersion::new(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_follows_the_word() {
        assert_eq!(version(b"12.9\0more").unwrap().to_string(), "12.9");
        assert_eq!(version(b"13.0\n").unwrap().to_string(), "13.0");
        assert!(version(b"%d.%d\0").is_none() && version(b"12\0").is_none() && version(b"12.9").is_none());
    }

    #[test]
    fn other_files_have_none() {
        assert!(cuda_of_nccl(&std::env::current_exe().unwrap()).is_none());
        assert!(cuda_of_nccl(Path::new("/no/such/file")).is_none());
    }
}
