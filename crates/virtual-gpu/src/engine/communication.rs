//! What the engine knows of communication between GPUs: a trait, which NCCL implements in a crate of its own.
//!
//! The lock order is engine, then communication: every function here is called with the engine locked, locks the
//! implementation's own state, and must not call back into a function of the engine that calls this trait
//! ([`Engine::run_ready`] and [`Engine::block_on`] do).

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::stream::Awaited;
use super::{Engine, Failure, State};
use crate::report::Report;
use virtual_gpu_core::handle::{CallKey, CommHandle, ManagementId, OpRef, StreamHandle};
use virtual_gpu_core::status::{CudaResult, CudaStatus};
use virtual_gpu_core::sync::MutexGuard;
use virtual_gpu_core::thread::ThreadKey;

/// Calls that can never complete, found together.
pub type Deadlocked = BTreeSet<CallKey>;

/// Work of a call that can run now: it runs without the engine's lock, and returns with it.
pub type CommunicationJob = Box<dyn for<'a> FnOnce(&'a Engine) -> MutexGuard<'a, State> + Send>;

/// Why a rank has not come to a call.
#[derive(Clone, Copy, Debug)]
pub enum Missing {
    /// It has left the communicator, or what it called has failed.
    Gone,
    /// It has called; its stream has not got there.
    InStream(OpRef),
    /// It has called, in another process. Its stream has not got there.
    Elsewhere,
    /// It has not called. This thread drives it.
    NotCalled(ThreadKey),
    /// It has not called, and threads hand its communicator's ranks to each other. This one had it last.
    Handed {
        /// The thread.
        thread: ThreadKey,
        /// It has called for the rank before.
        has_used: bool,
    },
}

/// What a thread waits for in a call that makes or ends communicators.
#[derive(Clone, Copy, Debug)]
pub enum Awaiting {
    /// A communicator that is made from an id.
    Communicator(CommHandle),
    /// One rank's part of a split or finalize.
    Management(ManagementId),
}

impl Awaiting {
    /// The call that is waited for, where the ranks that have to come are known. Any thread may still come to an id.
    pub(super) fn call(&self) -> Option<CallKey> {
        match *self {
            Self::Communicator(_) => None,
            Self::Management(id) => Some(CallKey::Management(id)),
        }
    }
}

/// Calls in a graph's node, which each launch makes again.
pub trait CapturedCalls: std::fmt::Display + Send + Sync {
    /// Makes the calls, in a stream of the graph that is launched, to come after `after`.
    ///
    /// # Errors
    /// `InvalidValue` where the communicator was destroyed since.
    fn enqueue(&self, engine: &mut State, stream: StreamHandle, after: Vec<Awaited>) -> CudaResult<Awaited>;
}

/// Captured calls, as a graph and its copies share them.
pub type SharedCalls = Arc<dyn CapturedCalls>;

/// Communication between GPUs, as the engine uses it.
pub trait Communication: Send + Sync {
    /// A stream has come to a call. Returns what can run now.
    ///
    /// # Errors
    /// The call is unknown: its stream fails.
    fn arrive(&'static self, engine: &mut State, call: CallKey) -> Result<Option<CommunicationJob>, Failure>;

    /// Why the ranks that a call waits for have not come to it.
    fn missing(&self, call: CallKey) -> Vec<Missing>;

    /// Whether a communicator that is being made is ready or has failed, or a split or finalize is over.
    fn is_settled(&self, awaiting: Awaiting) -> bool;

    /// Reports which rank waits for which, for calls that were found deadlocked together.
    fn deadlock_report(&self, engine: &State, calls: &Deadlocked) -> Report;

    /// Makes calls fail that can't complete: at once for the ranks that have come, on arrival for the others.
    ///
    /// # Errors
    /// A call is unknown: the streams that are at it fail.
    fn fail_calls(
        &self,
        engine: &mut State,
        calls: &Deadlocked,
        status: CudaStatus,
        report: &Report,
    ) -> Result<(), Failure>;

    /// Ends what other ranks have not come to for too long. `false` where another process has still to answer.
    fn give_up_joining(&self, engine: &mut State, awaited: &[Awaiting]) -> bool;

    /// A query has answered a thread that an operation is not done.
    fn was_polled(&self, thread: ThreadKey, op: OpRef);

    /// A thread has got the error of a GPU that has failed.
    fn note_gpu_failure(&self, device: usize, failure: &Failure);

    /// The threads that drive ranks: what is known of them is kept.
    fn owners(&self) -> HashSet<ThreadKey>;

    /// Streams are gone: no clock of another process need hold them.
    fn streams_forgotten(&self, streams: &[StreamHandle]);

    /// The report of a thread that waits, in `caller`, for a stream on which its own open group holds a call.
    fn wait_inside_a_group(
        &self,
        caller: &str,
        is_meant: &mut dyn FnMut(StreamHandle) -> bool,
    ) -> Option<Report>;
}

/// An engine without communicators.
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

    fn owners(&self) -> HashSet<ThreadKey> {
        HashSet::new()
    }

    fn streams_forgotten(&self, _: &[StreamHandle]) {}

    fn wait_inside_a_group(&self, _: &str, _: &mut dyn FnMut(StreamHandle) -> bool) -> Option<Report> {
        None
    }
}
