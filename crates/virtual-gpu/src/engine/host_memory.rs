//! Host memory: which addresses are pinned, and how copies reach its bytes.
//!
//! The bytes are the host's, and nothing here looks at them: copies carry a function that does.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Engine, State};
use crate::report::size;
use crate::status::{CudaResult, CudaStatus, Error};

/// Reads the host's bytes of a copy; more than once where a graph holds it.
pub type HostRead = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// Writes the host's bytes of a copy; more than once where a graph holds it.
pub type HostWrite = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// What a copy's host memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// Read at the call, and written before it returns.
    Pageable,
    /// Read and written when the copy's turn comes.
    Pinned,
}

/// What keeps pinned memory alive: whoever has it, and the copies that are under way.
pub type Memory = Arc<dyn Any + Send + Sync>;

/// Pinned memory, by the address of its first byte.
#[derive(Default)]
pub(super) struct Pinned(BTreeMap<u64, (u64, Memory)>);

impl Pinned {
    /// The allocation that `address` lies in, with its first address and size.
    fn at(&self, address: u64) -> Option<(u64, u64, &Memory)> {
        let (&start, (len, memory)) = self.0.range(..=address).next_back()?;
        (address - start < *len).then_some((start, *len, memory))
    }
}

impl Engine {
    /// `cuMemHostAlloc`: the `len` bytes of host memory from `address` on, which live as long as `memory`.
    pub fn pin(&self, address: u64, len: u64, memory: Memory) -> CudaResult<()> {
        self.check_capture_allows("cuMemHostAlloc")?;
        let mut state = self.state();
        state.current_context()?;
        state.pinned.0.insert(address, (len, memory));
        Ok(())
    }

    /// `cuMemFreeHost`: returns at once; copies that are under way keep the memory until they are done.
    ///
    /// # Errors
    /// `InvalidValue` for anything but the first byte of pinned memory.
    pub fn unpin(&self, address: u64) -> CudaResult<()> {
        self.check_capture_allows("cuMemFreeHost")?;
        let mut state = self.state();
        state.current_context()?;
        if let Some((_, memory)) = state.pinned.0.remove(&address) {
            // Outside of the lock, since it may be large.
            drop(state);
            drop(memory);
            return Ok(());
        }
        let message = match state.pinned.at(address) {
            Some((start, ..)) => format!(
                "{address:#x} lies {} inside of pinned host memory: free it by the pointer that it was made with",
                size(address - start)
            ),
            None => format!("{address:#x} is no pinned host memory, or no longer"),
        };
        Err(Error::new(CudaStatus::InvalidValue, message))
    }

    /// The pinned memory that all of `len` bytes from `address` on lie in; none where they are pageable.
    ///
    /// # Errors
    /// `InvalidValue` where they begin in pinned memory and go beyond it.
    pub fn pinned(&self, address: u64, len: u64) -> CudaResult<Option<Memory>> {
        let state = self.state();
        let Some((start, whole, memory)) = state.pinned.at(address) else { return Ok(None) };
        if len > whole - (address - start) {
            let offset = address - start;
            let message = format!(
                "a copy of {} at byte {offset} of pinned host memory: it has {}",
                size(len),
                size(whole)
            );
            return Err(Error::new(CudaStatus::InvalidValue, message));
        }
        Ok(Some(memory.clone()))
    }
}

impl State {
    /// Whether the host has pinned memory at `address`.
    pub(super) fn is_pinned(&self, address: u64) -> bool {
        self.pinned.at(address).is_some()
    }
}
