//! The host threads that call the engine.

use super::State;
use super::capture::CaptureMode;
use super::context::ContextHandle;
use super::wait::{Blocked, Polled};
use virtual_gpu_core::handle::StreamHandle;
use virtual_gpu_core::sorted::SortedMap;
use virtual_gpu_core::thread::{Life, ThreadKey};

/// The number of threads that are always remembered.
pub(super) const FEW_THREADS: usize = 64;

/// What the engine knows about a host thread.
pub(super) struct Thread {
    pub(crate) life: Life,
    /// The thread's contexts; the last one is current.
    pub(super) contexts: Vec<ContextHandle>,
    pub(crate) blocked: Option<Blocked>,
    /// The operations for which queries have returned "not ready", by stream.
    pub(super) polled: SortedMap<StreamHandle, Polled>,
    /// Which captures it can break.
    pub(super) capture_mode: CaptureMode,
}

impl State {
    /// Returns the calling thread's key, after making an entry for the thread.
    pub fn current_thread(&mut self) -> ThreadKey {
        self.thread();
        ThreadKey::current()
    }

    /// Forgets threads that have ended and don't drive a rank. Prunes only when the number of threads has doubled.
    pub(super) fn forget_threads(&mut self) {
        if self.threads.len() < self.prune_threads_at {
            return;
        }
        let owners = self.communication.owners();
        self.threads.retain(|thread, entry| owners.contains(thread) || !entry.life.has_ended());
        let threads = &self.threads;
        self.order.forget_threads(|thread| threads.contains_key(&thread));
        self.prune_threads_at = FEW_THREADS.max(2 * threads.len());
    }

    /// Returns the calling thread's entry.
    pub(super) fn thread(&mut self) -> &mut Thread {
        self.threads.get_or_insert_with(ThreadKey::current(), || Thread {
            life: Life::of_current(),
            contexts: Vec::new(),
            blocked: None,
            polled: SortedMap::default(),
            capture_mode: CaptureMode::Global,
        })
    }
}
