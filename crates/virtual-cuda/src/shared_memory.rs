//! The bytes of memory that processes share, and the record of which of them have been written.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use virtual_gpu_core::memory::{FileKey, HostBytes, Shared, SharedRecord};

use crate::shared_file::{Kind, SharedFile};

#[derive(Debug)]
struct Bytes(Arc<SharedFile>);

#[derive(Debug)]
struct Record(Arc<SharedFile>);

/// Makes a file for memory that other processes can open.
pub(crate) fn make(kind: Kind, size: u64, gpu: usize) -> std::io::Result<Shared> {
    SharedFile::new(kind, size, gpu).map(|file| of_file(Arc::new(file)))
}

/// Makes a file for memory from `cuMemCreate`.
pub(crate) fn make_physical(size: u64, gpu: usize) -> std::io::Result<Shared> {
    make(Kind::Physical, size, gpu)
}

/// Returns a file that is only the name of a pool.
pub(crate) fn name_of_pool(file: SharedFile) -> Arc<dyn SharedRecord> {
    Arc::new(Record(Arc::new(file)))
}

/// Returns the memory in a file.
pub(crate) fn of_file(file: Arc<SharedFile>) -> Shared {
    Shared { bytes: Box::new(Bytes(file.clone())), written: Arc::new(Record(file)) }
}

impl HostBytes for Bytes {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has this many bytes there. If another process changes them at the same time, that is a
        // race in the programs.
        unsafe { std::slice::from_raw_parts(self.0.content(), self.0.size() as usize) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the same as above.
        unsafe { std::slice::from_raw_parts_mut(self.0.content(), self.0.size() as usize) }
    }

    fn replace(&mut self, offset: usize, old: &[u8], new: &[u8]) -> bool {
        let end = offset.checked_add(old.len());
        if end.is_none_or(|end| end as u64 > self.0.size()) || !offset.is_multiple_of(old.len().max(1)) {
            return false;
        }
        // SAFETY: the bytes are in bounds.
        let at = unsafe { self.0.content().add(offset) };
        macro_rules! exchange {
            ($atomic:ident, $number:ident) => {{
                let [old, new] = [old, new].map(|bytes| bytes.try_into().map($number::from_ne_bytes));
                let (Ok(old), Ok(new)) = (old, new) else { return false };
                // SAFETY: the bytes are in bounds and aligned, and live as long as the file.
                let value = unsafe { $atomic::from_ptr(at.cast()) };
                value.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            }};
        }
        match old.len() {
            1 => exchange!(AtomicU8, u8),
            2 => exchange!(AtomicU16, u16),
            4 => exchange!(AtomicU32, u32),
            8 => exchange!(AtomicU64, u64),
            _ => false,
        }
    }
}

impl SharedRecord for Record {
    fn words(&self) -> &[AtomicU64] {
        self.0.record()
    }

    fn key(&self) -> Option<FileKey> {
        self.0.key()
    }

    fn secret(&self) -> u64 {
        self.0.secret()
    }

    fn descriptor(&self) -> Option<OwnedFd> {
        self.0.descriptor()
    }

    fn is_gone(&self) -> bool {
        self.0.is_gone()
    }
}
