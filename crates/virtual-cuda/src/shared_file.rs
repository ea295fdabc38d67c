//! Files in memory that processes share: the bytes of an allocation, the records of an event, or the name of a pool.
//!
//! A handle for another process names the file by the process that made it and the file's descriptor there. The other
//! process opens it through `/proc`. So nothing is left behind when a process ends, however it ends.

use std::ffi::c_void;
use std::fs::File;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use virtual_gpu_core::memory::FileKey;

use virtual_gpu_nccl::random;

/// The first bytes of each file, with the format's version.
const MAGIC: u64 = u64::from_le_bytes(*b"vgpushr1");

/// The name of each file, as `/proc` shows it.
const NAME: &str = "virtual-gpu";

/// The header and each part start at a multiple of this.
const PAGE: usize = 4096;

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Kind {
    /// Memory from `cuMemAlloc`, or of a pool.
    Memory = 1,
    /// An event.
    Event = 2,
    /// Memory from `cuMemCreate`.
    Physical = 3,
    /// A memory pool, of which the file is only the name.
    Pool = 4,
}

/// The start of a file.
#[repr(C)]
struct Header {
    magic: u64,
    kind: u64,
    secret: u64,
    /// The number of bytes of the content.
    size: u64,
    /// The node-wide number of the GPU.
    gpu: u64,
    /// Not 0 once the process that made the file has freed the memory.
    gone: AtomicU64,
}

/// Why a file can't be opened.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The process has ended, or runs on another machine.
    Ended,
    /// The process has no such file: it is closed, or the handle is wrong.
    NoSuchFile,
    /// The system refuses it.
    System(std::io::Error),
}

/// Identifies a process on this machine, even if its id is used again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) id: u32,
    /// When it started, in the kernel's unit.
    pub(crate) started: u64,
}

impl Process {
    /// Returns the running process with this id.
    pub(crate) fn with(id: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The program's name, in parentheses, may contain anything.
        let mut fields = text[text.rfind(')')? + 1..].split_ascii_whitespace();
        let state = fields.next()?;
        // The state is the third field, and the start time is the twenty-second.
        let started = fields.nth(18)?.parse().ok()?;
        (!matches!(state, "Z" | "X")).then_some(Self { id, started })
    }

    /// Returns this process.
    pub(crate) fn this() -> Self {
        let id = std::process::id();
        Self::with(id).unwrap_or(Self { id, started: 0 })
    }

    /// Returns whether the process has ended.
    pub(crate) fn has_ended(self) -> bool {
        Self::with(self.id) != Some(self)
    }
}

/// An open file that is mapped into this process.
#[derive(Debug)]
pub(crate) struct SharedFile {
    start: usize,
    len: usize,
    /// Where the content starts.
    content: usize,
    /// The header's figures. They are read only once, because a stray write in another process could change them.
    size: u64,
    gpu: usize,
    secret: u64,
    /// The id of this process, if it made the file. A child process from `fork` keeps its parent's id.
    maker: Option<u32>,
    /// The file, if it stays open.
    file: Option<OwnedFd>,
}

/// Returns where the content of this size starts, and the file's length.
fn layout(kind: Kind, size: u64) -> Option<(usize, usize)> {
    let size = usize::try_from(size).ok()?;
    let record = match kind {
        Kind::Memory | Kind::Physical => size.div_ceil(64).checked_mul(size_of::<u64>())?,
        Kind::Event | Kind::Pool => 0,
    };
    let content = PAGE.checked_add(record.checked_next_multiple_of(PAGE)?)?;
    let len = content.checked_add(size.checked_next_multiple_of(PAGE)?)?;
    (len < isize::MAX as usize).then_some((content, len))
}

impl SharedFile {
    /// Makes a file for `size` bytes, all of them 0.
    pub(crate) fn new(kind: Kind, size: u64, gpu: usize) -> std::io::Result<Self> {
        let (content, len) = layout(kind, size).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let name = std::ffi::CString::new(NAME)?;
        // SAFETY: the name is a C string, and the new descriptor belongs to nothing else.
        let file = unsafe {
            match libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) {
                -1 => return Err(std::io::Error::last_os_error()),
                file => OwnedFd::from_raw_fd(file),
            }
        };
        let file = File::from(file);
        file.set_len(len as u64)?;
        // The seals keep the file's length, so the mapping stays valid.
        // SAFETY: the descriptor is open.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let mut made = Self::map(&file, content, len)?;
        let header = Header {
            magic: MAGIC,
            kind: kind as u64,
            secret: random(),
            size,
            gpu: gpu as u64,
            gone: AtomicU64::new(0),
        };
        (made.size, made.gpu, made.secret) = (header.size, gpu, header.secret);
        // SAFETY: the mapping has room for the header, is aligned, and is not shared yet.
        unsafe { (made.start as *mut Header).write(header) };
        (made.file, made.maker) = (Some(file.into()), Some(std::process::id()));
        Ok(made)
    }

    fn map(file: &File, content: usize, len: usize) -> std::io::Result<Self> {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: this is a new mapping, which replaces none.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let (start, maker, file) = (start as usize, None, None);
        Ok(Self { start, len, content, size: 0, gpu: 0, secret: 0, maker, file })
    }

    /// Opens a file of another process.
    pub(crate) fn open(process: Process, key: FileKey, kind: Kind) -> Result<Self, Refused> {
        if process.has_ended() {
            return Err(Refused::Ended);
        }
        let path = PathBuf::from(format!("/proc/{}/fd/{}", process.id, key.descriptor));
        let target = match std::fs::read_link(&path) {
            Ok(target) => target,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(Refused::NoSuchFile),
            Err(error) => return Err(Refused::System(error)),
        };
        // Opening anything else might have an effect on it.
        if !target.to_string_lossy().starts_with(&format!("/memfd:{NAME} ")) {
            return Err(Refused::NoSuchFile);
        }
        let refuse = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => Refused::NoSuchFile,
            _ => Refused::System(error),
        };
        let file = File::options().read(true).write(true).open(&path).map_err(refuse)?;
        let opened = Self::of_file(&file, kind)?;
        match opened.secret == key.secret {
            true => Ok(opened),
            false => Err(Refused::NoSuchFile),
        }
    }

    /// Maps a file that the program has got from another process, or from this one.
    pub(crate) fn of_descriptor(descriptor: i32, kind: Kind) -> Result<Self, Refused> {
        // SAFETY: the new descriptor belongs to nothing else; the call fails if the old one is not open.
        let copy = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 {
            return Err(Refused::System(std::io::Error::last_os_error()));
        }
        // SAFETY: as above.
        let file = unsafe { File::from_raw_fd(copy) };
        let mut opened = Self::of_file(&file, kind)?;
        opened.file = Some(file.into());
        Ok(opened)
    }

    fn of_file(file: &File, kind: Kind) -> Result<Self, Refused> {
        let len = file.metadata().map_err(Refused::System)?.len();
        let len = usize::try_from(len).map_err(|_| Refused::NoSuchFile)?;
        // SAFETY: the descriptor is open.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if len < PAGE || seals < 0 || seals & SEALS != SEALS {
            return Err(Refused::NoSuchFile);
        }
        let mut opened = Self::map(file, PAGE, len).map_err(Refused::System)?;
        let &Header { magic, kind: found, secret, size, gpu, .. } = opened.header();
        let expected = layout(kind, size);
        if (magic, found) != (MAGIC, kind as u64) || expected.map(|(_, len)| len) != Some(len) {
            return Err(Refused::NoSuchFile);
        }
        opened.content = expected.map_or(PAGE, |(content, _)| content);
        (opened.size, opened.gpu, opened.secret) = (size, gpu as usize, secret);
        Ok(opened)
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is at least a page long and aligned, and nothing but `gone` changes after a file is made.
        unsafe { &*(self.start as *const Header) }
    }

    /// Returns the size of the content in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the node-wide number of the GPU.
    pub(crate) fn gpu(&self) -> usize {
        self.gpu
    }

    /// Returns a number that no other file has.
    pub(crate) fn secret(&self) -> u64 {
        self.secret
    }

    /// Returns whether the process that made the file has freed the memory from `cuMemAlloc` or of a pool that is in
    /// it.
    pub(crate) fn is_gone(&self) -> bool {
        self.header().gone.load(Ordering::Acquire) != 0
    }

    /// Returns the file's key in handles, if this process has made it.
    pub(crate) fn key(&self) -> Option<FileKey> {
        let file = self.file.as_ref().filter(|_| self.maker.is_some())?;
        Some(FileKey { descriptor: file.as_raw_fd() as u32, secret: self.secret })
    }

    /// Returns a new descriptor for the file, which the caller owns, if the file is open.
    pub(crate) fn descriptor(&self) -> Option<OwnedFd> {
        self.file.as_ref().and_then(|file| file.try_clone().ok())
    }

    /// Returns the content's address.
    pub(crate) fn content(&self) -> *mut u8 {
        (self.start + self.content) as *mut u8
    }

    /// Returns the words between the header and the content.
    pub(crate) fn record(&self) -> &[AtomicU64] {
        let words = self.size().div_ceil(64) as usize;
        let room = (self.content - PAGE) / size_of::<u64>();
        // SAFETY: the mapping has this many words there, and they are only accessed atomically.
        unsafe { std::slice::from_raw_parts((self.start + PAGE) as *const AtomicU64, words.min(room)) }
    }

    /// Returns the content as words.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        let words = self.size() as usize / size_of::<u64>();
        // SAFETY: the mapping has this many words there, and they are only accessed atomically.
        unsafe { std::slice::from_raw_parts(self.content() as *const AtomicU64, words) }
    }
}

/// The seals that keep the file's length.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

impl Drop for SharedFile {
    fn drop(&mut self) {
        // A fork of the process that made the file has a copy of this value, but frees nothing.
        if self.maker == Some(std::process::id()) && self.header().kind == Kind::Memory as u64 {
            self.header().gone.store(1, Ordering::Release);
        }
        // SAFETY: the memory was mapped with this length and is unmapped only once.
        unsafe { libc::munmap(self.start as *mut c_void, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_opened_by_its_process_descriptor_and_secret_only() {
        let file = SharedFile::new(Kind::Memory, 100, 3).unwrap();
        let key = file.key().unwrap();
        let opened = SharedFile::open(Process::this(), key, Kind::Memory).unwrap();
        assert_eq!((opened.size(), opened.gpu(), opened.key()), (100, 3, None));
        assert_eq!((opened.record().len(), opened.words().len()), (2, 12));
        file.record()[1].store(7, Ordering::Relaxed);
        assert_eq!(opened.record()[1].load(Ordering::Relaxed), 7);
        let forged = FileKey { secret: key.secret ^ 1, ..key };
        let error = SharedFile::open(Process::this(), forged, Kind::Memory).unwrap_err();
        assert!(matches!(error, Refused::NoSuchFile));
        let error = SharedFile::open(Process::this(), key, Kind::Event).unwrap_err();
        assert!(matches!(error, Refused::NoSuchFile));
        let other = Process { started: 1, ..Process::this() };
        assert!(matches!(SharedFile::open(other, key, Kind::Memory).unwrap_err(), Refused::Ended));
        drop(file);
        assert!(opened.is_gone());
        let error = SharedFile::open(Process::this(), key, Kind::Memory).unwrap_err();
        assert!(matches!(error, Refused::NoSuchFile));
    }

    #[test]
    fn a_descriptor_of_another_file_is_refused() {
        let file = File::open("/proc/self/stat").unwrap();
        assert!(matches!(SharedFile::of_descriptor(file.as_raw_fd(), Kind::Pool), Err(Refused::NoSuchFile)));
        assert!(matches!(SharedFile::of_descriptor(-1, Kind::Pool), Err(Refused::System(_))));
    }
}
