//! Host memory: which addresses are pinned, and how copies reach its bytes.
//!
//! The bytes are the host's, and nothing here looks at them: copies carry a function that does.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Engine, Failure, State};
use crate::config::Checks;
use crate::report::{Report, size};
use virtual_gpu_core::handle::OpRef;
use virtual_gpu_core::source_location::CallSite;
use virtual_gpu_core::status::{CudaResult, CudaStatus, Error};

/// Reads the host's bytes of a copy; more than once where a graph holds it.
pub type HostRead = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// Writes the host's bytes of a copy; more than once where a graph holds it.
pub type HostWrite = Arc<dyn Fn(&[u8]) + Send + Sync>;

/// Keeps the program away from pinned memory that a copy uses, for as long as it lives.
pub struct Guard {
    /// Its number, which [`Engine::host_touched`] tells.
    pub id: u64,
    /// What opens the memory when it is dropped.
    pub closed: Box<dyn Any + Send>,
}

/// A copy that the program has not waited for.
pub(super) struct Held {
    op: OpRef,
    writes: bool,
    call_site: CallSite,
    guard: Guard,
}

/// What a copy's host memory is.
pub enum HostKind {
    /// Read at the call, and written before it returns.
    Pageable,
    /// Read and written when the copy's turn comes, and guarded until the program has waited for that.
    Pinned(Option<Guard>),
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

    /// Whether what the host does to pinned memory is watched.
    pub fn watches_the_host(&self) -> bool {
        self.config().checks != Checks::Off
    }

    /// The calling thread has touched memory that the guard with this number keeps closed: a finding. It is open now.
    pub fn host_touched(&self, id: u64) {
        let here = CallSite::here();
        let mut state = self.state();
        let Some(at) = state.held.iter().position(|held| held.guard.id == id) else { return };
        let Held { op, writes, call_site, .. } = state.held.remove(at);
        let name =
            state.streams.get(&op.stream).map_or_else(String::new, |stream| format!(" on {}", stream.name));
        let (headline, what, did) = match writes {
            true => ("uses pinned memory that a copy fills", "a copy to the host", "used"),
            false => ("writes to pinned memory that a copy reads", "a copy from the host", "written"),
        };
        let report = Report::new(format!("the host {headline}, and has not waited for it"))
            .at(format!("{what}{name}"), &call_site)
            .at(format!("{did} by the host"), &here)
            .help("wait for the copy first: stream.synchronize()?, or an event behind it");
        let failure = Failure::announce(CudaStatus::LaunchFailed, &report);
        if self.config().checks == Checks::Error {
            state.fail_stream(op.stream, &failure);
        }
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
    /// Keeps a copy's guard until a thread has waited for the copy. `writes` says that the copy writes to the host.
    pub(super) fn hold(&mut self, op: OpRef, guard: Guard, writes: bool, call_site: CallSite) {
        self.held.push(Held { op, writes, call_site, guard });
    }

    /// Opens what copies used that a thread has waited for.
    pub(super) fn open_seen(&mut self) {
        let order = &self.order;
        self.held.retain(|held| !order.is_seen(held.op.stream, held.op.number));
    }

    /// Whether the host has pinned memory at `address`.
    pub(super) fn is_pinned(&self, address: u64) -> bool {
        self.pinned.at(address).is_some()
    }
}
