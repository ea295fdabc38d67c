//! Host memory: which addresses are pinned, and how copies reach their bytes.
//!
//! The bytes belong to the host, and nothing in this module accesses them: each copy comes with a function that does.

use std::any::Any;
use std::sync::Arc;

use super::context::ContextHandle;
use super::region::Region;
use super::{Engine, Failure, State, lock};
use crate::config::Checks;
use crate::report::{Report, size};
use virtual_gpu_core::handle::OpRef;
use virtual_gpu_core::memory::HostBytes;
use virtual_gpu_core::number_map::NumberMap;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

/// Reads the host's bytes for a copy. Called more than once if a graph contains the copy.
pub type HostRead = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// Writes a copy's bytes to the host. Called more than once if a graph contains the copy.
pub type HostWrite = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// Until it is dropped, keeps the program from accessing pinned memory that a copy is using.
pub struct Guard {
    /// The number to pass to [`Engine::host_touched`].
    pub id: u64,
    /// Makes the memory accessible again when dropped.
    pub closed: Box<dyn Any + Send>,
}

/// A copy that the program has not waited for.
pub(super) struct Held {
    op: OpRef,
    writes: bool,
    call_site: CallSite,
    guard: Guard,
}

/// The host's side of a copy.
#[derive(Clone, Copy, Debug)]
pub struct HostSide {
    /// Where the bytes are.
    pub at: Region,
    /// Whether the memory is pinned, so that kernels can access it, too.
    pub is_pinned: bool,
}

/// The kind of a copy's host memory.
pub enum HostKind {
    /// Read during the call, or written before the call returns.
    Pageable {
        /// Where the bytes are.
        at: Region,
    },
    /// Read or written when the copy's turn comes, and guarded until the program has waited for the copy.
    Pinned {
        /// Where the bytes are.
        at: Region,
        /// Protects the memory, if the host is watched.
        guard: Option<Guard>,
    },
}

/// Keeps pinned memory alive. Its owner and the pending copies hold it.
pub type Memory = Arc<dyn Any + Send + Sync>;

/// Pinned memory, by the address of its first byte.
#[derive(Default)]
pub(super) struct Pinned(NumberMap<(u64, Memory, ContextHandle)>);

impl Pinned {
    /// Returns the allocation that contains `address`, along with its first address and size.
    fn at(&self, address: u64) -> Option<(u64, u64, &Memory)> {
        let (start, (len, memory, _)) = self.0.last_before(address.saturating_add(1))?;
        (address - start < *len).then_some((start, *len, memory))
    }
}

impl Pinned {
    /// Returns the first address and the size of pinned memory that overlaps `len` bytes at `address`.
    fn overlapping(&self, address: u64, len: u64) -> Option<(u64, u64)> {
        let (start, (known, ..)) = self.0.last_before(address.saturating_add(len))?;
        (start + known > address).then_some((start, *known))
    }
}

impl Engine {
    /// `cuMemHostAlloc` and `cuMemHostRegister`: pins `len` bytes of host memory at `address`, which live as long as
    /// `memory`. All GPUs access them at the same address, through `bytes`.
    ///
    /// # Errors
    /// Returns `HostMemoryAlreadyRegistered` if some of the bytes are already pinned.
    pub fn pin(&self, address: u64, len: u64, memory: Memory, bytes: Box<dyn HostBytes>) -> CudaResult<()> {
        self.check_capture_allows("cuMemHostAlloc")?;
        let call_site = CallSite::here();
        let mut state = self.state();
        let context = state.current_context()?;
        if let Some((start, known)) = state.pinned.overlapping(address, len) {
            let message = format!(
                "{} at {address:#x}: {} at {start:#x} are already pinned host memory",
                size(len),
                size(known)
            );
            return Err(Error::new(CudaStatus::HostMemoryAlreadyRegistered, message));
        }
        state.pinned.0.insert(address, (len, memory, context));
        drop(state);
        let mut mapped = lock(&self.mapped);
        let entry = mapped.entry(address).or_insert((len, 0));
        *entry = (entry.0.max(len), entry.1 + 1);
        drop(mapped);
        self.memory(self.managed()).insert_host(address, len, bytes, call_site);
        Ok(())
    }

    /// Returns whether GPUs can access host memory at this address, or pending work still can.
    pub(super) fn is_mapped(&self, address: u64) -> bool {
        let mapped = lock(&self.mapped);
        let before = mapped.range(..=address).next_back();
        before.is_some_and(|(start, (len, _))| address - start < *len)
    }

    /// Forgets pinned memory that no pending work needs anymore.
    pub(super) fn unmap(&self, address: u64) {
        let mut mapped = lock(&self.mapped);
        if let Some(entry) = mapped.get_mut(&address) {
            entry.1 -= 1;
            if entry.1 == 0 {
                mapped.remove(&address);
            }
        }
    }

    /// Returns whether the host's accesses to pinned memory are being watched.
    pub fn watches_the_host(&self) -> bool {
        self.config().checks != Checks::Off
    }

    /// Reports that the calling thread has touched memory that the guard with this number protects. The memory is now
    /// accessible.
    pub fn host_touched(&self, id: u64) {
        let here = CallSite::here();
        let mut state = self.state();
        let Some(at) = state.held.iter().position(|held| held.guard.id == id) else { return };
        let Held { op, writes, call_site, .. } = state.held.remove(at);
        let name =
            state.streams.get(&op.stream).map_or_else(String::new, |stream| format!(" on {}", stream.name));
        let (headline, what, did) = match writes {
            true => ("uses pinned memory that a copy is filling", "a copy to the host", "used"),
            false => ("writes to pinned memory that a copy is reading", "a copy from the host", "written"),
        };
        let report = Report::new(format!("the host {headline}, but has not waited for the copy"))
            .at(format!("{what}{name}"), &call_site)
            .at(format!("{did} by the host"), &here)
            .help("wait for the copy first, with stream.synchronize()? or with an event recorded after it");
        if let Some(failure) = Failure::of_problem(CudaStatus::LaunchFailed, &report, self.config().checks) {
            state.fail_stream(op.stream, &failure);
        }
    }

    /// `cuMemFreeHost`: returns immediately; pending copies keep the memory alive until they are done.
    ///
    /// # Errors
    /// Returns `InvalidValue` unless the address is the first byte of pinned memory.
    pub fn unpin(&self, address: u64) -> CudaResult<()> {
        self.check_capture_allows("cuMemFreeHost")?;
        let mut state = self.state();
        // Memory that is pinned has a context, so none has to be current.
        if let Some((_, memory, _)) = state.pinned.0.remove(address) {
            drop(state);
            self.free_pinned(address);
            // Drop the memory outside the lock, because it may be large.
            drop(memory);
            return Ok(());
        }
        state.current_context()?;
        let message = match state.pinned.at(address) {
            Some((start, ..)) => format!(
                "{address:#x} is {} past the start of pinned host memory: free it using the pointer that the allocation returned",
                size(address - start)
            ),
            None => format!("{address:#x} is not pinned host memory, or no longer is"),
        };
        Err(Error::new(CudaStatus::InvalidValue, message))
    }

    /// Returns the pinned memory that contains all `len` bytes at `address`; `None` if they are pageable.
    ///
    /// # Errors
    /// Returns `InvalidValue` if they begin in pinned memory but extend beyond it.
    pub fn pinned(&self, address: u64, len: u64) -> CudaResult<Option<Memory>> {
        let state = self.state();
        let Some((start, whole, memory)) = state.pinned.at(address) else { return Ok(None) };
        if len > whole - (address - start) {
            let offset = address - start;
            let message = format!(
                "a copy of {} at byte {offset} of pinned host memory, which has only {}",
                size(len),
                size(whole)
            );
            return Err(Error::new(CudaStatus::InvalidValue, message));
        }
        Ok(Some(memory.clone()))
    }
}

impl State {
    /// Keeps a copy's guard until a thread has waited for the copy. `writes` is true if the copy writes to the host.
    pub(super) fn hold(&mut self, op: OpRef, guard: Guard, writes: bool, call_site: CallSite) {
        self.held.push(Held { op, writes, call_site, guard });
    }

    /// Makes the memory used by copies that a thread has waited for accessible again.
    pub(super) fn open_seen(&mut self) {
        let order = &self.order;
        self.held.retain(|held| !order.is_seen(held.op.stream, held.op.number));
    }

    /// Returns the context that was current when the memory that starts at `address` was pinned.
    pub(super) fn pinned_in(&self, address: u64) -> Option<ContextHandle> {
        let (start, (.., context)) = self.pinned.0.last_before(address.saturating_add(1))?;
        (start == address).then_some(*context)
    }

    /// Returns whether the host has pinned memory at `address`.
    pub(super) fn is_pinned(&self, address: u64) -> bool {
        self.pinned.at(address).is_some()
    }
}
