//! How many bytes a GPU has, and how many of them are taken.

use std::sync::atomic::{AtomicU64, Ordering};

use super::bad_address::OutOfMemory;

/// The bytes of a GPU. Allocations take them under the memory's lock, and memory pools under the engine's.
#[derive(Debug)]
pub struct Capacity {
    total: u64,
    taken: AtomicU64,
}

impl Capacity {
    /// Creates a capacity of which nothing is taken.
    pub fn new(total: u64) -> Self {
        Self { total, taken: AtomicU64::new(0) }
    }

    /// Returns the total number of bytes.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of bytes that are not taken.
    pub fn free(&self) -> u64 {
        self.total - self.taken.load(Ordering::Relaxed)
    }

    /// Takes bytes.
    ///
    /// # Errors
    /// Takes nothing and returns an error if fewer bytes are free.
    pub fn take(&self, bytes: u64) -> Result<(), OutOfMemory> {
        let sum = |taken: u64| taken.checked_add(bytes).filter(|&sum| sum <= self.total);
        let taken = self.taken.try_update(Ordering::Relaxed, Ordering::Relaxed, sum);
        taken.map(drop).map_err(|taken| OutOfMemory { asked: bytes, free: self.total - taken })
    }

    /// Returns bytes that were taken.
    pub fn give_back(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}
