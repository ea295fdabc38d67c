//! The engine's view of communication between GPUs: a trait that NCCL implements in a separate crate.
//!
//! The lock order is engine, then communication. Every function here is called with the engine locked and locks the
//! implementation's own state. The implementation must not call any engine function that calls this trait
//! ([`Engine::run_ready`] and [`Engine::block_on`] do).

use std::sync::Arc;

use super::stream::Awaited;
use super::{Engine, Failure, State};
use crate::report::Report;
use virtual_gpu_core::handle::{CallKey, CommHandle, CommId, ManagementId, OpRef, Rank, StreamHandle};
use virtual_gpu_core::sorted::SortedSet;
use virtual_gpu_core::status::{CudaResult, CudaStatus};
use virtual_gpu_core::sync::MutexGuard;
use virtual_gpu_core::thread::ThreadKey;

/// A set of calls that can never complete, found in one search.
pub type Deadlocked = SortedSet<CallKey>;

/// The work of a call that can run now. It runs without the engine's lock and returns with the lock held.
pub type CommunicationJob = Box<dyn for<'a> FnOnce(&'a Engine) -> MutexGuard<'a, State> + Send>;

/// Why a rank has not reached a call.
#[derive(Clone, Copy, Debug)]
pub enum Missing {
    /// The rank has left the communicator, or its call has failed.
    Gone,
    /// The rank has made the call, but its stream has not reached it yet.
    InStream(OpRef),
    /// The rank has made the call in another process, but its stream has not reached it.
    Elsewhere,
    /// The rank has not made the call. The given thread drives the rank.
    NotCalled(ThreadKey),
    /// The rank has not made the call, and its communicator's ranks are handed from thread to thread. The given thread
    /// used the rank last.
    Handed {
        /// The thread.
        thread: ThreadKey,
        /// Whether the thread has already made a call for the rank.
        has_used: bool,
    },
}

/// What a thread is waiting for in a call that creates or destroys communicators.
#[derive(Clone, Copy, Debug)]
pub enum Awaiting {
    /// A communicator that is being created from an id.
    Communicator(CommHandle),
    /// One rank's part of a split or finalize.
    Management(ManagementId),
}

impl Awaiting {
    /// Returns the awaited call if the missing ranks are known. For an id, they are unknown, because any thread may
    /// still use it.
    pub(super) fn call(&self) -> Option<CallKey> {
        match *self {
            Self::Communicator(_) => None,
            Self::Management(id) => Some(CallKey::Management(id)),
        }
    }
}

/// The calls in a graph node, which every launch repeats.
pub trait CapturedCalls: std::fmt::Display + Send + Sync {
    /// Returns whether a communicator's rank makes them.
    fn are_of(&self, comm: CommId, rank: Rank) -> bool;

    /// Makes the calls after the operations in `after`, on one of the launched graph's streams.
    ///
    /// # Errors
    /// Returns `InvalidValue` if the communicator has since been destroyed.
    fn enqueue(&self, engine: &mut State, stream: StreamHandle, after: Vec<Awaited>) -> CudaResult<Awaited>;
}

/// Captured calls, shared by a graph and its copies.
pub type SharedCalls = Arc<dyn CapturedCalls>;

/// The communication between GPUs that the engine uses.
pub trait Communication: Send + Sync {
    /// Records that a stream has reached a call. Returns the work that can run now.
    ///
    /// # Errors
    /// Fails if the call is unknown; then its stream fails, too.
    fn arrive(&'static self, engine: &mut State, call: CallKey) -> Result<Option<CommunicationJob>, Failure>;

    /// Returns why the ranks that a call is waiting for have not reached it.
    fn missing(&self, call: CallKey) -> Vec<Missing>;

    /// Returns whether a communicator that is being created is ready or has failed, or whether a split or finalize is
    /// over.
    fn is_settled(&self, awaiting: Awaiting) -> bool;

    /// Reports which rank is waiting for which, for calls that are deadlocked together.
    fn deadlock_report(&self, engine: &State, calls: &Deadlocked) -> Report;

    /// Makes calls that can't complete fail: immediately for the ranks that have arrived, and on arrival for the
    /// others.
    ///
    /// # Errors
    /// Fails if a call is unknown; then the streams that have reached it fail, too.
    fn fail_calls(
        &self,
        engine: &mut State,
        calls: &Deadlocked,
        status: CudaStatus,
        report: &Report,
    ) -> Result<(), Failure>;

    /// Ends calls that have waited too long for other ranks. Returns `false` if an answer from another process is still
    /// pending.
    fn give_up_joining(&self, engine: &mut State, awaited: &[Awaiting]) -> bool;

    /// Records that a query has told a thread that an operation is not done.
    fn was_polled(&self, thread: ThreadKey, op: OpRef);

    /// Records that a thread has received a failed GPU's error.
    fn note_gpu_failure(&self, device: usize, failure: &Failure);

    /// Returns the threads that drive ranks. The engine does not forget what it knows about them.
    fn owners(&self) -> SortedSet<ThreadKey>;

    /// Announces that streams are gone, so other processes' clocks no longer need them.
    fn streams_forgotten(&self, streams: &[StreamHandle]);

    /// Reports a thread that is waiting, in `caller`, for a stream for which its own open group holds a call.
    fn wait_inside_a_group(
        &self,
        caller: &str,
        is_meant: &mut dyn FnMut(StreamHandle) -> bool,
    ) -> Option<Report>;
}

/// A stand-in for an engine without communicators.
pub(super) struct NoCommunication;

impl Communication for NoCommunication {
    fn arrive(&'static self, _: &mut State, _: CallKey) -> Result<Option<CommunicationJob>, Failure> {
        Ok(None)
    }

    fn missing(&self, _: CallKey) -> Vec<Missing> {
        Vec::new()
    }

    fn is_settled(&self, _: Awaiting) -> bool {
        true
    }

    fn deadlock_report(&self, _: &State, _: &Deadlocked) -> Report {
        Report::new("deadlock")
    }

    fn fail_calls(&self, _: &mut State, _: &Deadlocked, _: CudaStatus, _: &Report) -> Result<(), Failure> {
        Ok(())
    }

    fn give_up_joining(&self, _: &mut State, _: &[Awaiting]) -> bool {
        false
    }

    fn was_polled(&self, _: ThreadKey, _: OpRef) {}

    fn note_gpu_failure(&self, _: usize, _: &Failure) {}

    fn owners(&self) -> SortedSet<ThreadKey> {
        SortedSet::default()
    }

    fn streams_forgotten(&self, _: &[StreamHandle]) {}

    fn wait_inside_a_group(&self, _: &str, _: &mut dyn FnMut(StreamHandle) -> bool) -> Option<Report> {
        None
    }
}
